"""A placement as bytes for the canvas: columns that a browser reads without parsing, whatever their number.

    4 bytes  b"STM1"
    4 bytes  length of the head, little-endian
    head     JSON, padded with spaces to a multiple of 8 bytes after these 8: {"placement", "epoch", "rows",
             "width", "nodes", "even", "columns": [[name, kind, count], ...]}
    columns  each padded to a multiple of 8 bytes

Columns: ``starts`` (f4, 0 to 1 of the ring; none where rows are equally large), ``replicas`` (i2, ``width``
columns of ``rows`` node numbers behind each other, -1: nobody), ``reads`` (u1, how many of them serve reads),
``state`` (u1, see ``RowState``), ``version`` (i4, the topology version that changed the row), and, against
another epoch, ``differs`` (u1).
"""

from enum import IntEnum
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from stele.domain.column import Ints
from stele.domain.ring.columns import Rows
from stele.domain.ring.numbers import PAD, lengths
from stele.domain.ring.placement import Placement
from stele.domain.ring.replicas import OTHER, READS_COUNT, VERSION, WRITES, reads_of
from stele.domain.schema.facts import TABLET_MAP

MAGIC: Final = b"STM1"
ALIGN: Final = 8
RING: Final = float(1 << 64)
HALF: Final = float(1 << 63)
_KINDS: Final = {"f4": "<f4", "i2": "<i2", "u1": "<u1", "i4": "<i4"}

Bytes = npt.NDArray[np.uint8]


class RowState(IntEnum):
    """Of a range or tablet."""

    AT_REST = 0
    MOVING = 1
    """It is written to replicas that do not serve reads, or waits for acknowledgements of others."""
    NOBODY = 2
    """It has no replica."""


def packed_map(name: str, epoch: int, after: Placement, before: Placement | None = None) -> bytes:
    """The map of a placement; with ``before`` also which rows were not there, as they are, then."""
    rows = after.table.all()
    even = name.startswith(TABLET_MAP)
    columns: list[tuple[str, str, Ints | npt.NDArray[np.generic]]] = []
    if not even:
        columns.append(("starts", "f4", (rows.keys.astype(np.float64) + HALF) / RING))
    columns += [
        ("replicas", "i2", rows.values[WRITES].T),
        ("reads", "u1", _reads(rows)),
        ("state", "u1", states_of(rows)),
        ("version", "i4", rows.values[VERSION]),
    ]
    if before is not None:
        columns.append(("differs", "u1", differing(before, after)))
    head = {
        "placement": name,
        "epoch": epoch,
        "rows": len(rows),
        "width": int(rows.values[WRITES].shape[1]),
        "nodes": after.nodes.names,
        "even": even,
        "columns": [[column, kind, int(np.size(values))] for column, kind, values in columns],
    }
    text = msgspec.json.encode(head)
    text += b" " * (-len(text) % ALIGN)
    parts = [MAGIC, len(text).to_bytes(4, "little"), text]
    for _, kind, values in columns:
        raw = np.ascontiguousarray(values, _KINDS[kind]).tobytes()
        parts += [raw, b"\0" * (-len(raw) % ALIGN)]
    return b"".join(parts)


def states_of(rows: Rows) -> Bytes:
    """``RowState`` of each row."""
    writes = lengths(rows.values[WRITES])
    moving = (_reads(rows) != writes) | (lengths(rows.values[OTHER]) > 0)
    found = np.where(moving, RowState.MOVING, RowState.AT_REST).astype(np.uint8)
    found[writes == 0] = RowState.NOBODY
    return found


def differing(before: Placement, after: Placement) -> Bytes:
    """1 for each row of ``after`` that is not in ``before`` with the same bounds, reads and writes, else 0."""
    old, new = before.renumbered(after.nodes).table.all(), after.table.all()
    at = np.minimum(np.searchsorted(old.keys, new.keys), len(old.keys) - 1)
    same = old.keys[at] == new.keys
    same &= _ends(old)[at] == _ends(new)
    for before_, after_ in (
        (old.values[WRITES], new.values[WRITES]),
        (reads_of(old), reads_of(new)),
    ):
        width = max(before_.shape[1], after_.shape[1])
        same &= (_widened(before_, width)[at] == _widened(after_, width)).all(axis=1)
    found: Bytes = (~same).astype(np.uint8)
    return found


def _reads(rows: Rows) -> Ints:
    """How many serve the reads of each row; those that are listed apart are counted there."""
    counts = rows.values[READS_COUNT]
    if (counts >= 0).all():
        return counts
    found: Ints = lengths(reads_of(rows))
    return found


def _ends(rows: Rows) -> npt.NDArray[np.int64]:
    return np.append(rows.keys[1:], rows.keys[:1])


def _widened(lists: Ints, width: int) -> Ints:
    return np.pad(lists, ((0, 0), (0, width - lists.shape[1])), constant_values=PAD)
