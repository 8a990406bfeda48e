"""Forks services with their imports already loaded: ``python -m tests.fork_server SOCKET``.

Each request is one message of JSON. ``{"module", "argv", "env"}``, with the files for stdout and stderr, starts
``python -m MODULE ARGV`` and answers its pid; ``{"poll": PID}`` answers its exit code once it has ended
(negative: the signal), else null. Its forks end with it.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

MODULES: Final = tuple(
    f"stele.{service}"
    for service in (
        "catch_up",
        "coordinator",
        "metadata_log",
        "node",
        "session_guard",
        "tablet_balancer",
    )
)
LATER: Final = (
    "cyclopts",
    "faust.app.router",
    "faust.assignor.leader_assignor",
    "faust.tables.manager",
    "faust.worker",
    "httpx",
    "redis.asyncio",
    "rich.table",
    "uvicorn.protocols.websockets.auto",
    "uvloop",
)
"""Further imports of running services, and imports of ``stele.cli`` for most commands."""
MESSAGE_BYTES: Final = 128 * 1024  # of an environment and a command line
PR_SET_PDEATHSIG: Final = 1  # <sys/prctl.h>


def main(address: str) -> None:
    """Returns when the other end is closed; in what it forks, when the module has ended."""
    for module in (*(f"{module}.__main__" for module in MODULES), *LATER):
        import_module(module)
    threads = len([*Path("/proc/self/task").iterdir()])
    assert threads == 1, f"a fork copies one thread, and what was imported has started {threads}"
    gc.collect()
    gc.freeze()  # otherwise each fork collects all of it again
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        found = _serve(connection)
    if found is not None:
        _become(*found)


def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return in each child its message, and None when the connection is closed."""
    server, prctl = os.getpid(), ctypes.CDLL(None).prctl
    while request := _received(connection):
        message, files = request
        if "poll" in message:
            _answer(connection, _exit_code(message["poll"]))
            continue
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != server:
                os._exit(1)
            return request
        os.setpgid(child, child)
        for file in files:
            os.close(file)
        _answer(connection, child)
    return None


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    files = array.array("i")
    space = socket.CMSG_SPACE(2 * files.itemsize)
    data, ancillary, _, _ = connection.recvmsg(MESSAGE_BYTES, space)
    for _, _, content in ancillary:
        files.frombytes(content)
    return (json.loads(data), [*files]) if data else None


def _answer(connection: socket.socket, value: int | None) -> None:
    connection.sendall(json.dumps(value).encode())


def _exit_code(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(message: dict[str, Any], files: list[int]) -> None:
    """Do the same as ``python -m MODULE ARGV``."""
    for file, standard in zip(files, (1, 2), strict=True):
        os.dup2(file, standard)
        os.close(file)
    os.environ.clear()
    os.environ.update(message["env"])
    sys.argv = [message["module"], *message["argv"]]
    sys.modules.pop(f"{message['module']}.__main__", None)  # the module itself runs again
    runpy.run_module(message["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
