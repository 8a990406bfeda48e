"""Output: consoles, tables, sizes, durations. No function here calls a service."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from stele.domain.model.schema import Balancing, Off
from stele.words.units import (
    VisibleConsole,
    ago,
    clock,
    counted,
    duration,
    joined,
    percent,
    size,
    table,
    visible,
)

__all__ = [
    "NEVER_BROKEN",
    "NO_ADDRESS",
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
    "print_csv",
    "print_fields",
    "print_fitted",
    "print_json",
    "print_line",
    "print_value_as_json",
    "print_yaml",
    "size",
    "styled",
    "table",
]

PIPE_WIDTH = 160
"""Columns when the output is not a terminal: a table in a file should not break its lines."""

MOST_WIDTH = 10_000
"""Limit of the width of a wide table."""

NO_ADDRESS = "(unknown)"
"""Shown for a node whose last address was since announced by another node."""

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
    """Return a console for the current standard output."""
    return _console(sys.stdout.isatty(), stderr=False)


def error_console() -> Console:
    return _console(sys.stderr.isatty(), stderr=True)


def _console(is_terminal: bool, *, stderr: bool) -> Console:
    width = None
    if not is_terminal:
        columns = os.environ.get("COLUMNS", "")
        # Some build servers set it to 0, which means unset.
        width = (int(columns) if columns.isdecimal() else 0) or PIPE_WIDTH
    return VisibleConsole(stderr=stderr, width=width, highlight=False, emoji=False, soft_wrap=False)


def print_line(text: str | Text, out: Console | None = None) -> None:
    """Print one line unchanged, on standard output or another console, without styles."""
    (out or console()).print(text, soft_wrap=True, highlight=False, markup=False)


NEVER_BROKEN = ("status", "epoch", "took")


def id_table(title: str, first: str, *columns: str, right: Sequence[str] = ()) -> Table:
    """Return a table whose first column is never wrapped, so that an id can be copied."""
    found = table(title, first, *columns, right=right)
    found.columns[0].no_wrap = True
    found.columns[0].overflow = "ignore"
    for column in found.columns[1:]:
        column.no_wrap = column.header in NEVER_BROKEN
        column.min_width = 6 if column.header == columns[-1] else None
    return found


def print_fitted(found: Table, *, wide: bool = False) -> None:
    """Print a table in columns if each word has room, else in two lines per row.

    An id is never broken. A wide table has one line per row, whatever the terminal's width.
    """
    out = console()
    least = [_longest_word(column) for column in found.columns]
    if wide:
        for column in found.columns:
            column.no_wrap = True
        width = Measurement.get(out, out.options.update(width=MOST_WIDTH), found).maximum
        broad = VisibleConsole(width=max(width, out.width), highlight=False, emoji=False)
        broad.print(found, soft_wrap=True)
        return
    if sum(least) + 2 * len(least) <= out.width:
        for column, width in zip(found.columns, least, strict=True):
            column.min_width = width
        out.print(found, crop=False)
        return
    if found.title:
        print_line(Text(str(found.title), style="italic"), out)
    headers = [str(column.header) for column in found.columns]
    for first, *cells in zip(*(column.cells for column in found.columns), strict=True):
        print_line(Text(str(first), style="bold"), out)
        named = zip(headers[1:], cells, strict=True)
        said = [
            Text.assemble((f"{name} ", "dim"), _text(cell)) for name, cell in named if str(cell)
        ]
        print_line(Text("  ").append_text(Text(", ").join(said)), out)


def print_csv(found: Table) -> None:
    """Print the cells of a table as CSV, with a header."""
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(str(column.header) for column in found.columns)
    cells = ([visible(str(cell)) for cell in column.cells] for column in found.columns)
    rows.writerows(zip(*cells, strict=True))


_PLAIN_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_NO_KEYS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
"""Words that YAML reads as values."""


def print_yaml(value: object) -> None:
    """Print a value as YAML. Strings are quoted as in JSON, which YAML reads too."""
    sys.stdout.write(visible("\n".join(_yaml_lines(msgspec.to_builtins(value)))) + "\n")


def _yaml_lines(value: object) -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else ()
    for key, inner in items:
        first, *rest = _yaml_lines(inner)
        is_nested = isinstance(inner, dict | list) and bool(inner)
        name = str(key)
        if not _PLAIN_KEY.fullmatch(name) or name.lower() in _NO_KEYS:
            name = msgspec.json.encode(name).decode()
        yield f"{name}:" if is_nested else f"{name}: {first}"
        yield from (f"  {line}" for line in ((first, *rest) if is_nested else rest))
    for inner in value if isinstance(value, list) else ():
        first, *rest = _yaml_lines(inner)
        yield f"- {first}"
        yield from (f"  {line}" for line in rest)
    if not isinstance(value, dict | list) or not value:
        yield msgspec.json.encode(value).decode()


def _longest_word(column: Column) -> int:
    """Return the least width of a column, which may be broken only between words."""
    cells = [str(cell) for cell in (column.header, *column.cells)]
    whole = column.no_wrap
    return max(len(part) for cell in cells for part in ([cell] if whole else cell.split() or [""]))


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def styled(state: str, words: str | None = None) -> Text:
    """Return a state in its colour; ``words`` replace its text."""
    return Text(words or state, style=STATE_STYLE.get(state, ""))


def print_json(raw: bytes) -> None:
    """Print a JSON answer, indented."""
    sys.stdout.write(visible(msgspec.json.format(raw, indent=2).decode()) + "\n")


def print_value_as_json(value: object) -> None:
    print_json(msgspec.json.encode(value))


def print_fields(fields: Iterable[tuple[str, str | Text]]) -> None:
    """Print one line for each field that has a value."""
    for name, value in fields:
        if value:
            print_line(Text.assemble(f"  {name:<10} ", value))


# Words for switches of balancing.


def switch_text(name: str, balancing: Balancing, *, expired: bool = False) -> str:
    """Return since when it is off, the actor, the reason and the end."""
    by = f" by {balancing.actor}" if balancing.actor else ""
    why = f" ({balancing.reason})" if balancing.reason else ""
    until = f", until {clock(balancing.until_ms)}" if balancing.until_ms else ""
    until += _grace(balancing)
    passed = ": that has passed, and it counts as on" if expired else ""
    return (
        f"{Off(name, balancing).words()} since epoch {balancing.off_since}{by}{why}{until}{passed}"
    )


def off_text(own: Balancing, keyspace: Balancing | None = None) -> str:
    """Return the note for a keyspace or table; empty if balancing is on for it."""
    if own.off_since:
        return f"balancing is off{_until(own)}"
    if keyspace is not None and keyspace.off_since:
        return f"balancing is off with its keyspace{_until(keyspace)}"
    return ""


def _until(balancing: Balancing) -> str:
    until = f" until {clock(balancing.until_ms)}" if balancing.until_ms else ""
    return until + _grace(balancing)


def _grace(balancing: Balancing) -> str:
    """Return when started work is cancelled."""
    at_ms = balancing.abort_at_ms
    return f", what had begun is cancelled at {clock(at_ms)}" if at_ms else ""
