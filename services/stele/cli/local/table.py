"""The processes of a stack as a table, and the ends of their logs."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from rich.table import Table

from stele.cli.errors import UsageError
from stele.cli.local.servers import with_servers
from stele.cli.output import styled, table
from stele.cli.places import StackFile
from stele.stack.process import tail


def stack_table(stack: StackFile) -> Table:
    """One row a process, with the state that its servers have now."""
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
    for broker in stack.brokers:
        found.add_row(broker.name, styled(broker.state), str(broker.pid or ""), "", broker.address)
    redis = stack.redis
    found.add_row("redis", styled(redis.state), str(redis.pid or ""), "", redis.url)
    for service in stack.services:
        found.add_row(
            service.name,
            styled(service.state),
            str(service.pid or ""),
            str(service.restarts or ""),
            service.url,
        )
    return found


def tail_log(directory: Path, name: str, lines: int) -> list[str]:
    """The last lines of a process's log. Raises UsageError when there is no such process."""
    found = [path for path in _log_files(directory, name) if path.exists()]
    if not found:
        known = sorted(p.name for p in (directory / "services").glob("*") if p.is_dir())
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
    """The last that a process wrote before it ended; empty when there is nothing."""
    files = [path for path in reversed(_log_files(directory, name)) if path.exists()]
    lines = (line for path in files for line in reversed(tail(path).splitlines()))
    return next((line.strip() for line in lines if line.strip()), "")


def _log_files(directory: Path, name: str) -> list[Path]:
    if name == "stack":
        return [directory / "stack.log"]
    if name == "redis":
        return [directory / "redis" / "redis.log"]
    if name.startswith("broker-"):
        return [directory / "kafka" / name / "broker.log"]
    return [directory / "services" / name / file for file in ("stdout.log", "stderr.log")]
