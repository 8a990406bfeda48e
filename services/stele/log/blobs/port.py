"""The port of a blob store, and what can go wrong with one.

A name is bound to what its blob says: whoever puts the same name again puts what is as good. So there is a
decided answer when nobody knows whether a call took effect: do it again.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""Names are paths of plain words, in any store."""


class Blob(NamedTuple):
    """A blob as it is listed."""

    name: str
    size_bytes: int


class Stat(NamedTuple):
    """A blob looked at by itself. ``sha256`` is empty where the store does not know it."""

    size_bytes: int
    sha256: str


class StoreError(Exception):
    """A store did not do what it was to do."""


class BlobMissingError(StoreError):
    """The store has no blob of this name."""

    def __init__(self, name: str, store: str) -> None:
        self.name = name
        super().__init__(f"{name} is not in {store}.")


class StoreUnavailableError(StoreError):
    """Nobody answered in time. What was to be put or deleted may be, or not: do it again."""


class StoreRefusedError(StoreError):
    """The store says no, and will again: the text says why, and what to do."""


class BlobStore(Protocol):
    """Every call ends within a time limit, and raises StoreUnavailableError or StoreRefusedError.

    Nobody ever sees a part of what is put.
    """

    @property
    def url(self) -> str:
        """What people call it."""
        ...

    async def put(self, name: str, content: bytes | Path, sha256: str) -> None:
        """Store it in place of what had the name. ``sha256`` is its hash, kept beside it, as hex digits."""
        ...

    async def put_new(self, name: str, content: bytes) -> bool:
        """Store it unless the name is taken; whether it was stored. After an unknown outcome look what is
        there.
        """
        ...

    async def get(self, name: str) -> bytes:
        """All of a small blob. Raises BlobMissingError."""
        ...

    async def get_range(self, name: str, begin: int, end: int) -> bytes:
        """Its bytes from ``begin`` up to before ``end``, fewer where it ends. Raises BlobMissingError."""
        ...

    async def stat(self, name: str) -> Stat:
        """Raises BlobMissingError."""
        ...

    async def list(self, folder: str = "") -> Sequence[Blob]:
        """All blobs whose names begin with ``folder`` and a slash, by name."""
        ...

    async def delete(self, name: str) -> None:
        """It is not there any more, or was not."""
        ...


def checked(name: str) -> str:
    """The name, which becomes a path. Raises ValueError."""
    if NAME.fullmatch(name) is None:
        raise ValueError(f"'{name[:80]}' cannot be the name of a blob")
    return name
