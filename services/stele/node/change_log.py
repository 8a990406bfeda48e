"""Rows of change logs: the changes of a table, in the same store and in the same transaction.

The log of a table is data with an id of its own (``change_log_of``) and the tokens of the changed
keys. Streams, repairs, cleanups and truncations therefore treat it like the table's rows. A row's
key is the time of the change, a hash of what was written, and the changed key. All replicas thus
give a change the same key, and two writes of one time have different ones. Its value differs only
in the image before the change, which each replica takes from its own store. Replicas that compare
their rows keep the newest image.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from stele.agent.stores import parted, partition_of
from stele.domain.model.schema import change_log_of
from stele.node.cells import VALUE, Cell, CellKind, StoredCell, newest, older_part

TIME_BYTES: Final = 8
HASH_BYTES: Final = 8


class Capture(NamedTuple):
    """How a change is logged: with the image before it, or without."""

    preimage: bool


class ChangePage(msgspec.Struct, frozen=True, array_like=True):
    """Keys and values of log rows by key: all up to ``upto_us`` that were asked for."""

    upto_us: int
    rows: list[tuple[bytes, bytes]]


class LoggedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a key: a value, a deletion, or the columns that were written (``kind``).

    ``before`` is the cell that the change replaced. None means that it is not known or not kept.
    """

    time_us: int
    key: bytes
    kind: CellKind
    value: bytes
    before: Cell | None

    def order(self) -> tuple[int, bytes, CellKind, bytes]:
        """Return the sort key by which changes are read. Of one key the last change wins."""
        return self.time_us, self.key, self.kind, self.value


class _Value(msgspec.Struct, frozen=True, array_like=True):
    kind: CellKind
    value: bytes
    before: Cell | None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Value).decode


def log_row(row: StoredCell, before: Cell | None) -> StoredCell:
    """Return the row of the change log for a row that is written to a partition.

    What is newer than the row is no image before the change.
    """
    before = None if before is None else older_part(before, row.timestamp)
    data_id, shard = parted(row.keyspace)
    written = bytes([row.kind]) + row.value
    key = first_key(row.timestamp) + blake2b(written, digest_size=HASH_BYTES).digest() + row.key
    value = _logged(row.kind, row.value, before)
    log = partition_of(change_log_of(data_id), shard)
    return StoredCell(log, row.token, key, row.timestamp, VALUE, value)


def _logged(kind: CellKind, value: bytes, before: Cell | None) -> bytes:
    """Return the value of a change. The time is first, so the greater value has the newer image."""
    image_us = 0 if before is None else before.timestamp
    return first_key(image_us) + _encode(_Value(kind, value, before))


def first_key(time_us: int) -> bytes:
    """Return the bytes with which the keys of this time begin. Keys are ordered by time."""
    return time_us.to_bytes(TIME_BYTES, "big")


def time_of(key: bytes) -> int:
    return int.from_bytes(key[:TIME_BYTES], "big")


def change_of(key: bytes, value: bytes) -> LoggedChange:
    """Decode a row of a change log."""
    found = _decode(value[TIME_BYTES:])
    return LoggedChange(
        time_us=time_of(key),
        key=key[TIME_BYTES + HASH_BYTES :],
        kind=found.kind,
        value=found.value,
        before=found.before,
    )


def _with_both_images(one: bytes, other: bytes) -> bytes:
    """Return the value of a change whose image two replicas took from different rows."""
    ours, theirs = _decode(one[TIME_BYTES:]), _decode(other[TIME_BYTES:])
    if ours.before is None or theirs.before is None:
        return max(one, other)
    return _logged(ours.kind, ours.value, newest([ours.before, theirs.before]))


def merged(pages: list[ChangePage], limit: int) -> tuple[list[LoggedChange], int]:
    """Merge the pages of replicas and ranges.

    Return at least the first ``limit`` changes by time, if there are so many, and the time up to
    which the result is complete. Changes of that time are all included.
    """
    upto_us = min(page.upto_us for page in pages)
    rows = dict[bytes, bytes]()
    for page in pages:
        for key, value in page.rows:
            if time_of(key) <= upto_us:
                known = rows.get(key, value)
                rows[key] = value if value == known else _with_both_images(value, known)
    times = sorted(map(time_of, rows))
    if len(times) > limit:
        upto_us = times[limit - 1]
    found = (change_of(*row) for row in rows.items() if time_of(row[0]) <= upto_us)
    return sorted(found, key=LoggedChange.order), upto_us
