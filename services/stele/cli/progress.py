"""A bar of streamed bytes."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)


def bytes_bar(out: Console) -> Progress:
    """Return a bar that vanishes at the end. Without a terminal it is not drawn."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[eta]}"),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )
