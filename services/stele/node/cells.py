"""What the store keeps for a key, and which of two versions of it wins."""

from hashlib import blake2b
from typing import Final, NamedTuple

HASH_BYTES: Final = 16


class Cell(NamedTuple):
    """A value with its timestamp (microseconds); a deleted one is a tombstone with an empty value."""

    timestamp: int
    tombstone: bool
    value: bytes


class Row(NamedTuple):
    """A cell where it stands: in the data of a keyspace, by its id. ``token`` is the token of ``key``."""

    keyspace: str
    token: int
    key: bytes
    timestamp: int
    tombstone: bool
    value: bytes


class Stamp(NamedTuple):
    """What tells two cells apart without their values; ``hash`` has 16 bytes."""

    timestamp: int
    tombstone: bool
    hash: bytes


def stamp_of(cell: Cell) -> Stamp:
    return Stamp(
        cell.timestamp, cell.tombstone, blake2b(cell.value, digest_size=HASH_BYTES).digest()
    )


def newest(cells: list[Cell]) -> Cell:
    """Last write wins: by timestamp, then a tombstone, then the greater value. The same everywhere."""
    return max(cells)
