"""The bar of bytes under what is followed; who follows nothing imports none of it."""

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
    """It vanishes at the end, and is not drawn where there is no terminal."""
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
