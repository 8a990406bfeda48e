"""How things look: consoles, tables, sizes, durations. Nothing here talks to a service."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 160
"""Columns when the output is no terminal: a table in a file should not break its lines."""

STATE_STYLE = {
    "normal": "green",
    "done": "green",
    "running": "cyan",
    "bootstrapping": "cyan",
    "decommissioning": "cyan",
    "moving": "cyan",
    "rebuilding": "cyan",
    "pending": "yellow",
    "none": "yellow",
    "failed": "red",
    "cancelled": "yellow",
    "left": "dim",
    "up": "green",
    "down": "red",
    "unknown": "yellow",
    "backing_off": "yellow",
    "given_up": "red",
    "stopped": "dim",
}


def console() -> Console:
    """Standard output, as it is now."""
    return _console(sys.stdout.isatty(), stderr=False)


def error_console() -> Console:
    return _console(sys.stderr.isatty(), stderr=True)


def _console(is_terminal: bool, *, stderr: bool) -> Console:
    width = None if is_terminal else int(os.environ.get("COLUMNS", PIPE_WIDTH))
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def table(title: str, *columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table; columns in ``right`` are aligned to the right."""
    found = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        found.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return found


NEVER_BROKEN = ("status", "epoch", "took")


def id_table(title: str, first: str, *columns: str, right: Sequence[str] = ()) -> Table:
    """A table whose first column is never broken over lines: an id is there to be copied."""
    found = table(title, first, *columns, right=right)
    found.columns[0].no_wrap = True
    found.columns[0].overflow = "ignore"
    for column in found.columns[1:]:
        column.no_wrap = column.header in NEVER_BROKEN
        column.min_width = 6 if column.header == columns[-1] else None
    return found


def styled(state: str) -> Text:
    """A state in its colour."""
    return Text(state, style=STATE_STYLE.get(state, ""))


def print_json(raw: bytes) -> None:
    """An answer as it came, indented."""
    sys.stdout.write(msgspec.json.format(raw, indent=2).decode() + "\n")


def print_value_as_json(value: object) -> None:
    print_json(msgspec.json.encode(value))


def print_fields(fields: Iterable[tuple[str, str | Text]]) -> None:
    """A line for each that says something."""
    for name, value in fields:
        if value:
            console().print(Text.assemble(f"  {name:<10} ", value), soft_wrap=True)


def size(size_bytes: float) -> str:
    """Bytes for people: ``57.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def duration(seconds: float | None) -> str:
    """Seconds for people: ``0.3 s``, ``2 min 5 s``; ``never`` when there is no number."""
    if seconds is None or not math.isfinite(seconds):
        return "never"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def clock(at_ms: int) -> str:
    """Milliseconds since 1970 as local time; empty for 0."""
    if not at_ms:
        return ""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def counted(number: int, one: str, more: str) -> str:
    """``1 range changes``, ``2 ranges change``."""
    return f"{number} {one if number == 1 else more}"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def joined(names: Iterable[str]) -> str:
    return " ".join(names)
