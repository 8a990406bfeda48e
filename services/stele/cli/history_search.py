"""Epochs that a question means: the metadata-log looks at a slice of the history at each call."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, TextIO

import msgspec

from stele.cli.client import Client
from stele.cli.output import joined
from stele.cli.reading import SERVICE

PATH: Final = "/v1/epochs/search"
MOST_AT_ONCE: Final = 1000
"""The metadata-log refuses to find more in one call."""


class Slice(msgspec.Struct, frozen=True):
    """Of ``SearchAnswer``; an epoch as it came, so that JSON shows all of it."""

    newest: int
    looked_at: int
    next_before: int
    epochs: tuple[dict[str, Any], ...]
    begins: int = 0
    stores: tuple[str, ...] = ()


def not_kept(begins: int, stores: tuple[str, ...]) -> str:
    """That older epochs are not kept, for people; empty when all are."""
    if not begins:
        return ""
    where = f"; {joined(stores)} has older ones" if stores else ""
    return f"epochs up to {begins} were deleted from the archive{where}"


class Progress:
    """A line on a terminal that is written over; elsewhere nothing."""

    def __init__(self, out: TextIO | None = None) -> None:
        out = out or sys.stderr
        self._out = out if out.isatty() else None

    def tell(self, line: str) -> None:
        self._write(f"\r\x1b[K{line}")

    def end(self) -> None:
        """The line goes."""
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._out is not None:
            self._out.write(text)
            self._out.flush()


def slices(
    client: Client, asked: Mapping[str, object], count: int, before: int | None = None
) -> Iterator[Slice]:
    """Slices with ``count`` epochs in all, or with fewer when there are no more. Raises CliError."""
    while count > 0 and before != 0:
        limit = min(count, MOST_AT_ONCE)
        part = client.get(SERVICE, PATH, Slice, **asked, before=before, limit=limit)
        yield part
        count -= len(part.epochs)
        before = part.next_before
