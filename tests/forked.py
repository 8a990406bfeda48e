"""Starts services and commands as forks of a process that has imported them, for a tenth of the cost.

They are separate processes: with their own group, files, memory, signals and exit code. Two servers fork in
turn, with different hash seeds, so that processes of a test iterate over sets in different orders.

Another build, by PYTHONPATH, has separate servers.

``STELE_TEST_SPAWN=plain`` starts each process normally. The same applies to other programs, to variables of the
interpreter, and to processes started by the product: the stack, the demo and the drill.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from stele_harness.stack.process import Process, Program, spawn
from tests.fork_server import MESSAGE_BYTES, MODULES

ROOT: Final = Path(__file__).parent.parent
SPAWN: Final = "STELE_TEST_SPAWN"
READY_S: Final = 240.0  # to import everything, on a machine that has other things to do
ANSWER_S: Final = 150.0
POLL_S: Final = 0.2
ANSWER_BYTES: Final = 64  # of a pid or an exit code
OF_THE_INTERPRETER: Final = ("PYTHON", "LD_", "MALLOC_")
"""Variables that the interpreter reads at its start."""
OF_A_BUILD: Final = ("PYTHONPATH", "STELE_SCHEMAS")
"""Where what is imported comes from."""
COMMAND_LINE: Final = "stele.cli"
ONE_THREAD: Final = "OPENBLAS_NUM_THREADS"
"""Else the import of numpy starts others."""

_turns: Final = itertools.cycle((0, 1))


class ForkServer:
    """A ``tests.fork_server``; it ends with this process, and what it has forked with it."""

    def __init__(self, build: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        with TemporaryDirectory(prefix="stele-forks-") as name:
            folder = Path(name)
            address = str(folder / "socket")
            argv = [sys.executable, "-m", "tests.fork_server", address]
            others = {name: value for name, value in os.environ.items() if name not in OF_A_BUILD}
            env = {**others, **build, ONE_THREAD: "1"}
            command = Program("forks", argv, folder / "out", folder / "err", env, cwd=ROOT)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(address)
                listener.listen(1)
                listener.settimeout(POLL_S)
                self._connection = _accepted(listener, spawn(command))
        self._connection.settimeout(ANSWER_S)

    def ask(self, message: dict[str, Any], *files: int) -> Any:
        """Raises OSError when it is too long or the server has ended, and TimeoutError."""
        data = json.dumps(message).encode()
        if len(data) > MESSAGE_BYTES:
            raise OSError(errno.E2BIG, f"an environment and a command line of {len(data)} bytes")
        with self._lock:
            socket.send_fds(self._connection, [data], files)
            answer = self._connection.recv(ANSWER_BYTES)
        if not answer:
            raise OSError(errno.EPIPE, "the server for forks has ended, and all that it has forked")
        return json.loads(answer)


def _accepted(listener: socket.socket, server: Process) -> socket.socket:
    end = time.monotonic() + READY_S
    while server.poll() is None and time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            return listener.accept()[0]
    raise AssertionError(f"no server for forks: {server.tail()}")


class Forked:
    """The methods of ``subprocess.Popen`` that ``Process`` needs."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._lock = threading.Lock()
        self._end = os.pidfd_open(pid)  # readable when it has ended; only poll() reaps it

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                self.returncode = self._server.ask({"poll": self.pid})
                if self.returncode is not None:
                    os.close(self._end)
            return self.returncode

    def wait(self, timeout: float) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            ended = select.poll()
            ended.register(self._end, select.POLLIN)
            ended.poll(timeout * 1000)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code


def start(command: Program) -> Process:
    """As ``stele_harness.stack.process.spawn``; a fork where that is equivalent."""
    return _fork(command) if _can_be_forked(command) else spawn(command)


def _can_be_forked(command: Program) -> bool:
    """Linux only: elsewhere nothing tells when the child of another process has ended."""
    program, option, module = [*command.argv, "", "", ""][:3]
    return (
        sys.platform == "linux"
        and os.environ.get(SPAWN) != "plain"
        and (program, option) == (sys.executable, "-m")
        and (module in (*MODULES, COMMAND_LINE) or module.startswith("tests."))
        and command.cwd is None
        and _read_early(command.env) == _read_early(os.environ)
    )


def _read_early(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if name.startswith(OF_THE_INTERPRETER) and name not in OF_A_BUILD
    }


def _fork(command: Program) -> Process:
    with command.stdout.open("ab") as stdout, command.stderr.open("ab") as stderr:
        begin = stdout.tell()
        build = tuple((name, command.env[name]) for name in OF_A_BUILD if name in command.env)
        server = _server(next(_turns), build)
        message = {
            "module": command.argv[2],
            "argv": command.argv[3:],
            "env": dict(command.env),
        }
        pid = server.ask(message, stdout.fileno(), stderr.fileno())
        return Process(command, Forked(server, pid), begin)


@cache
def _server(turn: int, build: tuple[tuple[str, str], ...]) -> ForkServer:
    del turn
    return ForkServer(dict(build))
