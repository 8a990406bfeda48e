"""How things look: consoles, tables, sizes, durations. Nothing here talks to a service."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from stele.words.tables import table
from stele.words.units import ago, clock, counted, duration, joined, percent, size
from stele.words.visible import VisibleConsole, visible

__all__ = [
    "NEVER_BROKEN",
    "PIPE_WIDTH",
    "STATE_STYLE",
    "ago",
    "clock",
    "console",
    "counted",
    "duration",
    "error_console",
    "id_table",
    "joined",
    "percent",
    "print_fields",
    "print_id_table",
    "print_json",
    "print_line",
    "print_value_as_json",
    "size",
    "styled",
    "table",
]

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


def _told_width() -> int:
    """What COLUMNS says, where it says a number; 0, as in some build servers, says nothing."""
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isdecimal() else 0


def _console(is_terminal: bool, *, stderr: bool) -> Console:
    width = None if is_terminal else _told_width() or PIPE_WIDTH
    return VisibleConsole(stderr=stderr, width=width, highlight=False, emoji=False, soft_wrap=False)


def print_line(text: str, out: Console | None = None) -> None:
    """A text on standard output, or on another, as it is: one line, in which nothing is a style."""
    (out or console()).print(text, soft_wrap=True, highlight=False, markup=False)


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


def print_id_table(found: Table) -> None:
    """As columns where there is room for every word of them; else two lines a row. No id is ever broken."""
    out = console()
    least = [_longest_word(column) for column in found.columns]
    if sum(least) + 2 * len(least) <= out.width:
        for column, width in zip(found.columns, least, strict=True):
            column.min_width = width
        out.print(found, crop=False)
        return
    out.print(Text(str(found.title or ""), style="italic"), soft_wrap=True)
    headers = [str(column.header) for column in found.columns]
    for first, *cells in zip(*(column.cells for column in found.columns), strict=True):
        out.print(Text(str(first), style="bold"), soft_wrap=True)
        named = zip(headers[1:], cells, strict=True)
        said = [
            Text.assemble((f"{name} ", "dim"), _text(cell)) for name, cell in named if str(cell)
        ]
        out.print(Text("  ").append_text(Text(", ").join(said)), soft_wrap=True)


def _longest_word(column: Column) -> int:
    """Columns that it takes at least: where it may be broken, between words."""
    cells = [str(cell) for cell in (column.header, *column.cells)]
    whole = column.no_wrap
    return max(len(part) for cell in cells for part in ([cell] if whole else cell.split() or [""]))


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def styled(state: str) -> Text:
    """A state in its colour."""
    return Text(state, style=STATE_STYLE.get(state, ""))


def print_json(raw: bytes) -> None:
    """An answer as it came, indented."""
    sys.stdout.write(visible(msgspec.json.format(raw, indent=2).decode()) + "\n")


def print_value_as_json(value: object) -> None:
    print_json(msgspec.json.encode(value))


def print_fields(fields: Iterable[tuple[str, str | Text]]) -> None:
    """A line for each that says something."""
    for name, value in fields:
        if value:
            console().print(Text.assemble(f"  {name:<10} ", value), soft_wrap=True)
