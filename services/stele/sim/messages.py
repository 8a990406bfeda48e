"""What data nodes say to each other and to their clients; in memory, so plain structs."""

from functools import cache
from typing import Final

import msgspec

from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import Range

ONE_PAGE: Final = 2
"""Entries streamed between two looks at the session."""

Key = tuple[str, str]
"""Id of a keyspace's data, and key: a name used again, or data that was truncated, has another id."""


@cache
def token_of_key(key: Key) -> int:
    return token_of(key[1].encode())


def range_of_key(key: Key) -> Range:
    """The key's token alone."""
    token = token_of_key(key)
    return Range(token - 1, token)


class Cell(msgspec.Struct, frozen=True):
    """A value and its timestamp, which the client gave: the newest wins."""

    timestamp: int
    value: str


class WriteCell(msgspec.Struct, frozen=True):
    """A replica's part of a write, routed by ``version`` at the node ``sender``."""

    key: Key
    token: int
    cell: Cell
    version: int
    epoch: int
    sender: str


class ReadCell(msgspec.Struct, frozen=True):
    key: Key
    token: int
    version: int
    epoch: int
    sender: str


class PullRange(msgspec.Struct, frozen=True):
    """A gaining node asks for (start, end] of a placement, as of ``epoch``, under ``session``."""

    start: int
    end: int
    placement: str
    data_ids: tuple[str, ...]
    """Those that the asking node knows: of later ones it has been a replica from the beginning."""
    session: str
    epoch: int


class KvOp(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request, in virtual seconds; see ``registers.Operation``."""

    began: float
    ended: float
    node: str
    write: bool
    key: str
    value: str | None
    done: bool
    known: bool


class ReadResult(msgspec.Struct, frozen=True):
    """``data_id`` is what the coordinating node took the keyspace's name for."""

    ok: bool
    cell: Cell | None = None
    data_id: str = ""
