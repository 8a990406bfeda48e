"""The stored versions of a key, and the rule that selects the winner."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple

HASH_BYTES: Final = 16


class Cell(NamedTuple):
    """A value with its timestamp in microseconds. A deletion is a tombstone with an empty value."""

    timestamp: int
    tombstone: bool
    value: bytes


class Row(NamedTuple):
    """A cell with its place: the id of the keyspace's data, and key and token.

    ``token`` is the token of ``key``.
    """

    keyspace: str
    token: int
    key: bytes
    timestamp: int
    tombstone: bool
    value: bytes


class Stamp(NamedTuple):
    """A fingerprint that distinguishes cells without their values. ``hash`` has 16 bytes."""

    timestamp: int
    tombstone: bool
    hash: bytes


def stamp_of(cell: Cell) -> Stamp:
    return Stamp(
        cell.timestamp, cell.tombstone, blake2b(cell.value, digest_size=HASH_BYTES).digest()
    )


def newest(cells: list[Cell]) -> Cell:
    """Return the winner: the later timestamp, then the tombstone, then the greater value.

    The rule is the same in every replica, and in the store's SQL.
    """
    return max(cells)


# A hybrid logical clock: timestamps in microseconds that are later than all those seen.
#
# A write that begins after another was acknowledged receives a later timestamp, even if the nodes'
# clocks differ. Replicas return the timestamp that a write lost against, and the next attempt is
# later.


class HybridClock:
    """Issues timestamps.

    ``now_us`` returns the machine's clock in microseconds since 1970; it may jump.
    """

    def __init__(self, now_us: Callable[[], int], last_us: int = 0) -> None:
        self.now_us = now_us
        self._last_us = last_us

    def next(self) -> int:
        """Return a timestamp above all that were issued or seen before."""
        self._last_us = max(self.now_us(), self._last_us + 1)
        return self._last_us

    def see(self, timestamp_us: int) -> None:
        """Record a timestamp of another process. Later timestamps are above it."""
        self._last_us = max(self._last_us, timestamp_us)
