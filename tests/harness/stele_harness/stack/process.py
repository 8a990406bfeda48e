"""One child process: its own process group, output to files, and it dies with its parent.

On Linux the kernel kills the child when the *thread* that forked it ends (PR_SET_PDEATHSIG). Every
fork therefore happens on one thread that lives as long as the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
STOP_DEADLINE_S = 10.0  # between SIGTERM and SIGKILL; a service's own deadline is shorter
KILL_DEADLINE_S = 5.0  # after SIGKILL only the kernel is slow
TAIL_BYTES = 4_000  # of a log, in error messages

# Loaded before any fork: the child may not import or allocate much between fork and exec.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Program:
    """The program to run. `env` is the whole environment; output is appended to the two files."""

    name: str
    argv: Sequence[str]
    stdout: Path
    stderr: Path
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: Path | None = None


class Child(Protocol):
    """The part of ``subprocess.Popen`` that is used."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int:
        """Raises subprocess.TimeoutExpired."""
        ...


class Process:
    """A started Command.

    Its whole group is killed too, so no process that it forked outlives it.
    """

    def __init__(self, command: Program, child: Child, stdout_start: int) -> None:
        self.command = command
        self.stdout_start = stdout_start  # where in the stdout file this run begins, bytes
        self.started_at = time.monotonic()
        self._child = child
        _alive.add(self)

    @property
    def pid(self) -> int:
        return self._child.pid

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal that ended it), None while it runs."""
        return self._child.poll()

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group. Has no effect when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def wait(self, deadline_s: float) -> int | None:
        """Return the exit code, or None when the deadline passes first."""
        try:
            return self._child.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> int | None:
        """End the group at once and reap it."""
        self.signal(signal.SIGKILL)
        code = self.wait(KILL_DEADLINE_S)
        if code is not None:
            _alive.discard(self)
        return code

    def terminate(self) -> None:
        """Request an orderly end, without waiting."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process handles no SIGTERM

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> int | None:
        """Send SIGTERM, and SIGKILL to the rest of the group after the deadline."""
        self.terminate()
        code = self.wait(deadline_s)
        self.kill()
        return code if code is not None else self.poll()

    def stdout_of_this_run(self) -> str:
        return _read_from(self.command.stdout, self.stdout_start)

    def tail(self) -> str:
        """Return the end of its output, for error messages."""
        return (tail(self.command.stderr) + tail(self.command.stdout)).strip()

    def last_line(self) -> str:
        """Return the last line of its standard error, else of its output; empty when there is
        none.
        """
        return last_line([self.command.stderr, self.command.stdout])


class ServerProcess:
    """A server's process, which can be started again. A call has no effect before the start."""

    stop_deadline_s = STOP_DEADLINE_S
    _process: Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Inject a fault: SIGSTOP pauses the server, SIGCONT resumes it."""
        if self._process:
            self._process.signal(number)

    def kill(self) -> None:
        """Crash the server: SIGKILL."""
        if self._process:
            self._process.kill()

    def terminate(self) -> None:
        """Request an orderly stop, without waiting."""
        if self._process:
            self._process.terminate()

    def stop(self) -> None:
        if self._process:
            self._process.stop(self.stop_deadline_s)


def spawn(command: Program) -> Process:
    """Start a process. Raises OSError when the program cannot be run."""
    return _forks.run(lambda: _fork(command))


def tail(path: Path, limit_bytes: int = TAIL_BYTES) -> str:
    """Return the last bytes of a text file; the empty string when there is none."""
    try:
        return _read_from(path, max(0, path.stat().st_size - limit_bytes))
    except FileNotFoundError:
        return ""


def last_line(paths: Iterable[Path]) -> str:
    """Return the last line that is not blank, of the first of these files that has one."""
    lines = (line.strip() for path in paths for line in reversed(tail(path).splitlines()))
    return next((line for line in lines if line), "")


def _read_from(path: Path, start: int) -> str:
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def _fork(command: Program) -> Process:
    for path in (command.stdout, command.stderr):
        path.parent.mkdir(parents=True, exist_ok=True)
    with command.stdout.open("ab") as stdout, command.stderr.open("ab") as stderr:
        start = stdout.tell()
        popen = subprocess.Popen(
            list(command.argv),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=dict(command.env),
            cwd=command.cwd,
            process_group=0,
            preexec_fn=_die_with_parent if _prctl else None,  # noqa: PLW1509
        )
    return Process(command, popen, start)


def _die_with_parent() -> None:
    assert _prctl is not None
    _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class _ForkThread:
    """Runs every fork on one daemon thread, started when first needed."""

    def __init__(self) -> None:
        self._requests: SimpleQueue[tuple[Callable[[], Process], Future[Process]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, fork: Callable[[], Process]) -> Process:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="forks", daemon=True)
                self._thread.start()
        done: Future[Process] = Future()
        self._requests.put((fork, done))
        return done.result()

    def _loop(self) -> None:
        while True:
            fork, done = self._requests.get()
            try:
                done.set_result(fork())
            except BaseException as error:
                done.set_exception(error)


_alive: set[Process] = set()
_forks = _ForkThread()


@atexit.register
def _kill_what_is_left() -> None:
    for process in list(_alive):
        if process.poll() is None:
            process.kill()
