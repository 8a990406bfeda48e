"""The life of a stack: whether it runs in a directory or is ready, and how it is stopped."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from rich.table import Table

from stele.cli.client import Client
from stele.cli.errors import CliError, UnreachableError, UsageError
from stele.cli.output import styled, table
from stele.cli.places import (
    LOCK_FILE,
    STACK_FILE,
    BrokerProcess,
    LocalService,
    RedisProcess,
    ServiceAddresses,
    StackFile,
    is_held,
    read_stack_file,
)
from stele.domain.model.membership import Node
from stele.domain.names import NodeState
from stele_harness.stack.control import LOOK_TIMEOUT_S, node_rows, with_servers
from stele_harness.stack.folders import is_node, was_removed
from stele_harness.stack.process import last_line as last_of
from stele_harness.stack.supervisor import EXIT_BAD_CONFIGURATION, RESTARTS_PER_MINUTE, ProcessState

RUNS_ALREADY = (
    "`stele stack status` shows it. To have what was left out (`--without`): `stele stack down`, which keeps"
    " the data, then `stele stack up`. --dir chooses another."
)


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory inside the block. Raises CliError if another stack has it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CliError(f"A stack is already running in {directory}.", RUNS_ALREADY) from error
        yield


# The processes of a stack as a table, and the last lines of their logs.


def stack_table(stack: StackFile) -> Table:
    """Return a table with one row per process and its servers' current states."""
    stack = with_servers(stack)
    found = table(
        f"stack of cluster {stack.environment.get('STELE_CLUSTER', '')}, process {stack.pid}",
        "process",
        "state",
        "pid",
        "restarts",
        "address",
        right=("pid", "restarts"),
    )
    redis = stack.redis
    rows: list[tuple[str, BrokerProcess | RedisProcess | LocalService, str]] = [
        *((broker.name, broker, broker.address) for broker in stack.brokers),
        ("redis", redis, redis.url),
        *((service.name, service, service.url) for service in stack.services),
    ]
    for name, process, address in rows:
        numbers = (str(process.pid or ""), str(process.restarts or ""))
        found.add_row(name, styled(process.state), *numbers, address)
    return found


def tail_log(directory: Path, name: str, lines: int) -> list[str]:
    """Return the last lines of a process's log. Raises CliError for an unknown process."""
    found = [path for path in _log_files(directory, name) if path.exists()]
    if not found:
        folders = (directory / "services").glob("*")
        known = sorted(p.name for p in folders if p.is_dir() and not was_removed(p))
        if not known:
            require_stack(directory)
        raise UsageError(
            f"There is no log of '{name}' in {directory}.",
            f"Known: {', '.join([*known, 'broker-1', 'redis', 'stack'])}.",
        )
    tail: deque[str] = deque(maxlen=lines)
    for path in found:
        with path.open(errors="replace") as file:
            tail.extend(line.rstrip("\n") for line in file)
    return list(tail)


def last_line(directory: Path, name: str) -> str:
    """Return the last line that a process wrote before it ended; empty if there is none."""
    return last_of(reversed(_log_files(directory, name)))


def _log_files(directory: Path, name: str) -> list[Path]:
    if name == "stack":
        return [directory / "stack.log"]
    if name == "redis":
        return [directory / "redis" / "redis.log"]
    if name.startswith("broker-"):
        return [directory / "kafka" / name / "broker.log"]
    return [directory / "services" / name / file for file in ("stdout.log", "stderr.log")]


READY_FILE = "stack.ready"
STOP_DEADLINE_S = 90.0
"""Limit of a stop: services one by one, then Redis, then brokers, which hand over partitions."""
READY_DEADLINE_S = 600.0
POLL_S = 0.1
OURS = frozenset(
    {
        *("kafka", "redis", "services", "control"),
        *("stack.json", "stack.json.new", "stack.lock", "stack.log", "stack.ready", "ports.json"),
    }
)
"""All files that a stack creates in its directory."""


class Starting(Protocol):
    """The process that runs a stack, as its starter sees it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""


def require_stack(directory: Path) -> StackFile:
    """Return the stack of a directory. Raises UnreachableError when none runs."""
    stack = read_stack_file(directory)
    if stack is None or not is_held(directory):
        raise UnreachableError(
            f"No stack is running in {directory}.",
            "Start one with `stele stack up`, or give --dir.",
        )
    return stack


def is_ready(directory: Path) -> bool:
    """Return True once every service of the stack has announced itself."""
    return (directory / READY_FILE).exists()


def forget_dead(directory: Path) -> None:
    """Remove the state files of a killed stack, so that they are not taken for the next one's.

    Raises CliError when a stack runs.
    """
    if is_held(directory):
        raise CliError(f"A stack is already running in {directory}.", RUNS_ALREADY)
    forget(directory)


def forget(directory: Path) -> None:
    """Remove the state files of an earlier stack over the directory."""
    for name in (READY_FILE, STACK_FILE):
        (directory / name).unlink(missing_ok=True)


def wait_ready(
    directory: Path,
    started: Starting,
    on_wait: Callable[[StackFile | None], None],
    deadline_s: float = READY_DEADLINE_S,
) -> StackFile:
    """Return the stack of process ``started`` once it is ready.

    ``on_wait`` receives the progress. A stack file of another process is ignored. Raises CliError.
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
    """Remove an earlier stack's files. Raises CliError for other files and for a running stack."""
    if is_held(directory):
        raise CliError(
            f"A stack is running in {directory}.", f"Stop it: stele stack down --dir {directory}"
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


SETTLE_S: Final = 10.0
"""Limit of waiting. A node that is refused ends within two or three seconds, even on a busy
machine."""
NODE_LEFT: Final = "(node_left)"
"""Suffix of the last line of a node whose name and data directory cannot be used again."""
ACCEPTS: Final = re.compile(r"with STELE_ACCEPT_(OLDER_COPY|LOST_EPOCHS)=([0-9a-f]+)")
"""The variable that a refused node names in its last line. The node starts with it."""


def settle(directory: Path, name: str, limit_s: float = SETTLE_S) -> str:
    """Return the id of the join request of a started node.

    It is empty for a healthy member, and while the id is not known. Raises CliError if the node
    ends because it cannot run as configured. A node announces its address before it knows that.
    """
    end_s = time.monotonic() + limit_s
    while True:
        now = read_stack_file(directory)
        service = None if now is None else now.service(name)
        if service is not None and service.state == ProcessState.GIVEN_UP:
            raise CliError(*why_given_up(directory, service))
        node = _row(directory, name)
        if node is not None and node.state not in (NodeState.LEFT, NodeState.NORMAL):
            return node.request_id
        if node is not None and node.state is NodeState.NORMAL and _is_well(service):
            return ""
        if time.monotonic() > end_s:
            return ""
        time.sleep(POLL_S)


def _is_well(service: LocalService | None) -> bool:
    """Return True if the process reports that it is healthy."""
    if service is None or not service.pid:
        return False
    with contextlib.closing(Client(ServiceAddresses({}, ""), timeout_s=LOOK_TIMEOUT_S)) as client:
        try:
            client.get_bytes(f"{service.url}/healthz")
        except CliError:
            return False
    return True


def _row(directory: Path, name: str) -> Node | None:
    """Return the node's row in the log; None while it has none or no service answers."""
    return next((node for node in node_rows(directory) if node.node_id == name), None)


def departed_nodes(directory: Path, stack: StackFile) -> list[str]:
    """Return the running nodes that have left the cluster."""
    running = {s.name for s in stack.services if s.state == ProcessState.RUNNING}
    if not any(map(is_node, running)):
        return []
    left = {node.node_id for node in node_rows(directory) if node.state is NodeState.LEFT}
    return sorted(running & left)


def why_given_up(directory: Path, service: LocalService) -> tuple[str, str]:
    """Return why a process is not started again automatically, and the advice."""
    name, status = service.name, service.exit_code
    last = last_line(directory, name)
    if status == EXIT_BAD_CONFIGURATION:
        why = f"{name} does not run: its configuration or its data prevents a start (exit status {status})"
    else:
        often = f"more than {RESTARTS_PER_MINUTE} times within a minute"
        why = f"{name} does not run: it ended {often}, the last time with exit status {status}"
    if NODE_LEFT in last:  # another start would end the same way
        hint = f"`stele stack remove {name}` deletes it, `stele stack add-node` starts another."
        return f"{why}: {last.rstrip('.')}.", hint
    start = f"`stele stack start {name}` tries again once the cause is gone."
    remove = f"`stele stack remove {name}` removes it if it is not a member"
    another = "`stele stack add-node` starts another"
    if found := ACCEPTS.search(last):
        option = f"--accept-{found[1].lower().replace('_', '-')} {found[2]}"
        start += f" `stele stack start {name} {option}` accepts the loss."
        another = f"`stele stack add-node --replace {name}` puts a new node in its place"
    said = last.rstrip(".") or f"see `stele stack logs {name}`"
    return f"{why}: {said}.", f"{remove}, {another}. {start}" if is_node(name) else start
