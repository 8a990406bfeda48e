"""The processes of a stack as a table, and the last lines of their logs."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from rich.table import Table

from stele.cli.errors import UsageError
from stele.cli.local.servers import with_servers
from stele.cli.output import styled, table
from stele.cli.places import BrokerProcess, LocalService, RedisProcess, StackFile
from stele.stack.folders import was_removed
from stele.stack.process import last_line as last_of


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
    """Return the last lines of a process's log. Raises UsageError for an unknown process."""
    found = [path for path in _log_files(directory, name) if path.exists()]
    if not found:
        folders = (directory / "services").glob("*")
        known = sorted(p.name for p in folders if p.is_dir() and not was_removed(p))
        raise UsageError(
            f"There is no log of '{name}' in {directory}.",
            f"Known: {', '.join([*known, 'broker-1', 'redis', 'stack']) or 'none'}.",
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
