"""Whether a stack runs over a directory, when it is ready, and how it is stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stele.cli.errors import CliError, UnreachableError
from stele.cli.local.lock import RUNS_ALREADY, is_held
from stele.cli.places import STACK_FILE, StackFile, read_stack_file

READY_FILE = "stack.ready"
STOP_DEADLINE_S = 90.0
"""Services one after the other, then Redis, then the brokers, which hand over their partitions."""
READY_DEADLINE_S = 240.0
POLL_S = 0.1
OURS = frozenset(
    {
        *("kafka", "redis", "services", "control"),
        *("stack.json", "stack.json.new", "stack.lock", "stack.log", "stack.ready", "ports.json"),
    }
)
"""All that a stack puts into its directory."""


class Starting(Protocol):
    """The process that holds a stack, as who started it sees it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""


def require_stack(directory: Path) -> StackFile:
    """The stack that runs over a directory. Raises UnreachableError when none does."""
    stack = read_stack_file(directory)
    if stack is None or not is_held(directory):
        raise UnreachableError(
            f"No stack runs over {directory}.", "Start one with `stele stack up`, or give --dir."
        )
    return stack


def is_ready(directory: Path) -> bool:
    """True once every service of the stack has announced itself."""
    return (directory / READY_FILE).exists()


def forget_dead(directory: Path) -> None:
    """Remove what a stack that was killed says of itself: it would be taken for the next one.

    Raises CliError when a stack runs.
    """
    if is_held(directory):
        raise CliError(f"A stack runs over {directory} already.", RUNS_ALREADY)
    forget(directory)


def forget(directory: Path) -> None:
    """Remove what an earlier stack over the directory says of itself."""
    for name in (READY_FILE, STACK_FILE):
        (directory / name).unlink(missing_ok=True)


def wait_ready(
    directory: Path,
    started: Starting,
    on_wait: Callable[[StackFile | None], None],
    deadline_s: float = READY_DEADLINE_S,
) -> StackFile:
    """The stack of the process ``started`` once it is ready; ``on_wait`` is shown how far it is.

    What another process says of a stack over the directory is not taken for its word. Raises CliError.
    """
    end = time.monotonic() + deadline_s
    while True:
        stack = read_stack_file(directory)
        if stack is not None and stack.pid != started.pid:
            stack = None
        on_wait(stack)
        if stack is not None and is_ready(directory):
            return stack
        code = started.poll()
        if code is not None:
            raise CliError(f"The stack did not start (exit status {code}).", _last_words(directory))
        if time.monotonic() > end:
            raise UnreachableError(
                f"The stack was not ready in {deadline_s:.0f} s.", _last_words(directory)
            )
        time.sleep(POLL_S)


def bring_down(directory: Path, deadline_s: float = STOP_DEADLINE_S) -> None:
    """Stop the stack over a directory, in order; by force after the deadline. Raises CliError."""
    stack = require_stack(directory)
    with contextlib.suppress(ProcessLookupError):
        os.kill(stack.pid, signal.SIGTERM)
    if _released(directory, deadline_s):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(stack.pid, signal.SIGKILL)  # its children die with it
    if not _released(directory, deadline_s=5.0):
        raise CliError(f"Process {stack.pid} does not end.", f"See {directory / 'stack.log'}.")


def empty(directory: Path) -> None:
    """Remove what an earlier stack left. Raises CliError for anything else, and while a stack runs."""
    if is_held(directory):
        raise CliError(
            f"A stack runs over {directory}.", f"Stop it: stele stack down --dir {directory}"
        )
    if directory.exists():
        strange = {path.name for path in directory.iterdir()} - OURS
        if strange:
            raise CliError(
                f"{directory} holds {', '.join(sorted(strange))}, which no stack made.",
                "Move it away, or give --dir another directory.",
            )
        shutil.rmtree(directory)


def _released(directory: Path, deadline_s: float) -> bool:
    end = time.monotonic() + deadline_s
    while is_held(directory):
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def _last_words(directory: Path) -> str:
    log = directory / "stack.log"
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return f"{lines[-1]} (from {log})"
    return f"See {log}."
