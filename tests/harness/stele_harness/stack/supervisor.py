"""Keeps child processes running: restarts with back-off, a limit, an orderly end.

    starting -> running -> (ended) -> backing_off -> running ...
                   |                       `-> given_up    more than RESTARTS_PER_MINUTE
                   `-> stopped             `-> stopped     on request

One thread watches all children. A child that serves HTTP writes one JSON line to its standard
output, `{"service": ..., "instance": ..., "http": "http://127.0.0.1:PORT"}`, when it is ready.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from stele_harness.stack.process import STOP_DEADLINE_S, Process, Program, spawn

FIRST_BACK_OFF_S = 0.2
LAST_BACK_OFF_S = 10.0
STABLE_AFTER_S = 30.0  # a run this long starts the back-off from the beginning again
RESTARTS_PER_MINUTE = 10  # with the back-off above, only a child that dies at once gets there
WATCH_INTERVAL_S = 0.05
READY_DEADLINE_S = 240.0
EXIT_BAD_CONFIGURATION = 78  # sysexits.h, as runtime.service: a retry would read the same settings


class ProcessState(StrEnum):
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    GIVEN_UP = "given_up"
    STOPPED = "stopped"


class ChildFailed(Exception):
    """A child is not ready in time or has been given up.

    The text holds the last line of its log.
    """


@dataclass(frozen=True, slots=True)
class ChildStatus:
    name: str
    state: ProcessState
    pid: int | None
    url: str | None  # what it announced in this run
    restarts: int
    exit_code: int | None  # of the run before; negative: the signal that ended it


@dataclass(slots=True)
class BackOff:
    """When and whether an ended process is restarted. Times are monotonic seconds."""

    restart_at_s: float = 0.0
    _wait_s: float = FIRST_BACK_OFF_S
    _ends_s: deque[float] = field(default_factory=deque)  # of the last minute

    def after_end(self, started_at_s: float, now_s: float) -> ProcessState:
        """Note the end of a run.

        Return BACKING_OFF until ``restart_at_s``, or GIVEN_UP after too many in a minute.
        """
        self._ends_s.append(now_s)
        while self._ends_s[0] < now_s - 60:
            self._ends_s.popleft()
        if len(self._ends_s) > RESTARTS_PER_MINUTE:
            return ProcessState.GIVEN_UP
        if now_s - started_at_s >= STABLE_AFTER_S:
            self._wait_s = FIRST_BACK_OFF_S
        self.restart_at_s = now_s + self._wait_s
        self._wait_s = min(LAST_BACK_OFF_S, self._wait_s * 2)
        return ProcessState.BACKING_OFF


@dataclass(slots=True)
class _Child:
    command: Program
    process: Process
    state: ProcessState = ProcessState.RUNNING
    restarts: int = 0
    restarts_before: int = 0
    """Restarts before the last requested start. Later ones happened without a request."""
    exit_code: int | None = None
    back_off: BackOff = field(default_factory=BackOff)
    url: str | None = None


class Supervisor:
    """Children by name, in order of their start."""

    def __init__(self, *, on_change: Callable[[], None] = lambda: None) -> None:
        self._children: dict[str, _Child] = {}
        self._changed = threading.Condition(threading.RLock())
        self._on_change = on_change
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self, command: Program) -> None:
        """Start a child and keep it running. Its name must be new, or stopped before."""
        with self._changed:
            known = self._children.get(command.name)
            assert known is None or known.state in (ProcessState.STOPPED, ProcessState.GIVEN_UP), (
                command.name
            )
            restarts = known.restarts + 1 if known else 0
            self._children[command.name] = _Child(
                command, spawn(command), restarts=restarts, restarts_before=restarts
            )
            if self._watcher is None:
                self._stopping.clear()
                self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
                self._watcher.start()
        self._on_change()

    def restart(self, name: str) -> None:
        """Start a stopped or given-up child again with its previous command."""
        self.start(self._child(name).command)

    def status(self) -> tuple[ChildStatus, ...]:
        with self._changed:
            return tuple(_status(child) for child in self._children.values())

    def status_of(self, name: str) -> ChildStatus:
        with self._changed:
            return _status(self._child(name))

    def wait_url(
        self,
        name: str,
        deadline_s: float = READY_DEADLINE_S,
        max_restarts: int = RESTARTS_PER_MINUTE,
    ) -> str:
        """Return the address that the child announced. Raises ChildFailed.

        It does not wait for a child that ended more than `max_restarts` times since its requested
        start.
        """
        end = time.monotonic() + deadline_s
        with self._changed:
            child = self._child(name)
            while (url := _announced_url(child)) is None:
                if child.state in (ProcessState.GIVEN_UP, ProcessState.STOPPED):
                    raise ChildFailed(_story(child, f"is {child.state}"))
                if child.restarts - child.restarts_before > max_restarts:
                    raise ChildFailed(_story(child, "keeps ending"))
                if time.monotonic() >= end:
                    raise ChildFailed(_story(child, f"announced nothing in {deadline_s} s"))
                self._changed.wait(WATCH_INTERVAL_S)
            return url

    def wait_state(
        self, name: str, state: ProcessState, deadline_s: float = READY_DEADLINE_S
    ) -> None:
        """Return once the child is in a state. Raises ChildFailed."""
        with self._changed:
            child = self._child(name)
            if not self._changed.wait_for(lambda: child.state is state, deadline_s):
                raise ChildFailed(_story(child, f"is {child.state}, not {state}"))

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal as a fault: the child is restarted when it ends. SIGSTOP pauses it."""
        self._child(name).process.signal(number)

    def stop(self, name: str, deadline_s: float = STOP_DEADLINE_S) -> int | None:
        """Stop a child permanently. Return its exit code."""
        with self._changed:
            child = self._child(name)
            child.state = ProcessState.STOPPED
            process = child.process
        code = process.stop(deadline_s)
        with self._changed:
            child.exit_code = code
            self._changed.notify_all()
        self._on_change()
        return code

    def kill_for_good(self, name: str) -> None:
        """Kill a child as if its machine were lost. It is not restarted."""
        with self._changed:
            child = self._child(name)
            child.state = ProcessState.STOPPED  # before it dies, so that the watcher ignores it
        child.process.signal(signal.SIGKILL)
        self.stop(name)

    def forget(self, name: str) -> None:
        """Remove a stopped child."""
        with self._changed:
            assert self._child(name).state is ProcessState.STOPPED, name
            del self._children[name]
        self._on_change()

    def stop_all(self, deadline_s: float = STOP_DEADLINE_S) -> dict[str, int | None]:
        """Stop every child, the last one first, each within the deadline.

        Return exit codes by name.
        """
        with self._changed:
            names = [n for n, c in self._children.items() if c.state is not ProcessState.STOPPED]
            for name in names:  # first, so that the watcher restarts none meanwhile
                self._children[name].state = ProcessState.STOPPED
        codes = {name: self.stop(name, deadline_s) for name in reversed(names)}
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        return codes

    def _child(self, name: str) -> _Child:
        try:
            return self._children[name]
        except KeyError:
            known = ", ".join(self._children) or "nothing"
            raise KeyError(f"No child named {name}; there is {known}.") from None

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_INTERVAL_S):
            with self._changed:
                changed = [self._step(child) for child in self._children.values()]
                if any(changed):
                    self._changed.notify_all()
            if any(changed):
                self._on_change()

    def _step(self, child: _Child) -> bool:
        now = time.monotonic()
        if child.state is ProcessState.RUNNING:
            code = child.process.poll()
            if code is None:
                return False
            child.process.kill()  # end its child processes
            _plan_restart(child, code, now)
            return True
        if child.state is ProcessState.BACKING_OFF and now >= child.back_off.restart_at_s:
            try:
                child.process = spawn(child.command)
            except OSError as error:  # memory or processes are exhausted; a retry may succeed
                _plan_restart(child, -(error.errno or 1), now)
                return True
            child.url = None
            child.restarts += 1
            child.state = ProcessState.RUNNING
            return True
        return False


def _plan_restart(child: _Child, exit_code: int, now: float) -> None:
    child.exit_code = exit_code
    child.state = child.back_off.after_end(child.process.started_at, now)
    if exit_code == EXIT_BAD_CONFIGURATION:
        child.state = ProcessState.GIVEN_UP


def _status(child: _Child) -> ChildStatus:
    running = child.state is ProcessState.RUNNING
    return ChildStatus(
        name=child.command.name,
        state=child.state,
        pid=child.process.pid if running else None,
        url=_announced_url(child) if running else None,
        restarts=child.restarts,
        exit_code=child.exit_code,
    )


def _announced_url(child: _Child) -> str | None:
    if child.url is None and child.state is ProcessState.RUNNING:
        for line in child.process.stdout_of_this_run().splitlines():
            child.url = child.url or _url_in(line)
    return child.url


def _url_in(line: str) -> str | None:
    try:
        announcement = json.loads(line)
    except ValueError:
        return None
    url = announcement.get("http") if isinstance(announcement, dict) else None
    return url if isinstance(url, str) else None


def _story(child: _Child, what: str) -> str:
    since = child.restarts - child.restarts_before
    return (
        f"{child.command.name} {what} (restarts {since}, last exit code {child.exit_code}); "
        f"the last line of {child.command.stderr}:\n{child.process.last_line()}"
    )
