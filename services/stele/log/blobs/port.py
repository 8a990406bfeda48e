"""The port of a blob store, and its errors.

A name determines the content of its blob: a second put of the same name has equivalent content.
After an unknown outcome a call can therefore always be repeated.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""Pattern of blob names in any store: words of letters, digits and ``. _ -`` between slashes."""


class Blob(NamedTuple):
    """A blob in a listing."""

    name: str
    size_bytes: int


class Stat(NamedTuple):
    """Size and hash of one blob. ``sha256`` is in hex, and empty if the store does not keep it."""

    size_bytes: int
    sha256: str


class BlobStoreError(Exception):
    """A store failed."""


class BlobMissingError(BlobStoreError):
    """The store has no blob of this name."""

    def __init__(self, name: str, store: str) -> None:
        self.name = name
        super().__init__(f"{name} is not in {store}.")


class StoreUnavailableError(BlobStoreError):
    """The store did not answer in time. A put or delete may have taken effect: repeat it."""


class StoreRefusedError(BlobStoreError):
    """The store refused permanently. The text gives the reason and what to do."""


class BlobStore(Protocol):
    """A store of named blobs. A put is atomic: readers never see a part of a blob.

    Every call ends within a time limit, and raises StoreUnavailableError or StoreRefusedError.
    """

    @property
    def url(self) -> str:
        """Name of the store for people."""
        ...

    async def put(self, name: str, content: bytes | Path, sha256: str) -> None:
        """Store a blob, and replace one of the same name. ``sha256`` is its hash as hex digits."""
        ...

    async def put_new(self, name: str, content: bytes) -> bool:
        """Store a blob unless the name exists; return whether it was stored.

        After an unknown outcome, read the blob to see which one is there.
        """
        ...

    async def get(self, name: str) -> bytes:
        """Return the whole content of a small blob. Raises BlobMissingError."""
        ...

    async def get_range(self, name: str, begin: int, end: int) -> bytes:
        """Return the bytes from ``begin`` to before ``end``, or fewer at the blob's end.

        Raises BlobMissingError.
        """
        ...

    async def stat(self, name: str) -> Stat:
        """Return size and hash of a blob. Raises BlobMissingError."""
        ...

    async def list(self) -> Sequence[Blob]:
        """Return all blobs, ordered by name."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a blob if it exists."""
        ...


def checked(name: str) -> str:
    """Return a valid blob name, which is safe as a path. Raises ValueError for any other."""
    if NAME.fullmatch(name) is None:
        raise ValueError(f"'{name[:80]}' cannot be the name of a blob")
    return name
