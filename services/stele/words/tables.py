"""Tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def table(title: str, *columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table; columns in ``right`` are aligned to the right."""
    found = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        found.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return found
