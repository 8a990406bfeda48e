"""Maps that can be drawn, by name: placements, and the ring of tokens.

The ring of tokens exists before any keyspace.
"""

from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from stele.domain.column import Ints
from stele.domain.image import Image
from stele.domain.model.membership import MembershipImage
from stele.domain.names import TABLET_MAP
from stele.domain.ring.columns import PAD, Rows, lengths
from stele.domain.ring.placement import OTHER, READS_COUNT, VERSION, WRITES, Placement, reads_of
from stele.domain.ring.ranges import MIN_TOKEN, RangeReplicas

TOKENS: Final = "*tokens"
"""Name of the ring of tokens. No placement has this name."""


def map_of(image: Image, name: str) -> Placement | None:
    """Return the map of this name, or None."""
    if name == TOKENS:
        return _tokens(image.membership)
    found = image.ring.placements.get(name)
    return None if found is None else found.renumbered(image.ring.nodes)


class _Same:
    """A cache key: an image by its identity. An image never changes."""

    __slots__ = ("image",)

    def __init__(self, image: MembershipImage) -> None:
        self.image = image

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.image is self.image

    def __hash__(self) -> int:
        return id(self.image)


def _tokens(membership: MembershipImage) -> Placement | None:
    return _owners(_Same(membership))


@lru_cache(maxsize=8)
def _owners(of: _Same) -> Placement | None:
    """Return each range with the node whose token ends it.

    The last range wraps around to the first token.
    """
    owners = of.image.ring_tokens()
    tokens = sorted(owners)
    if not tokens:
        return None
    ends = [token for token in tokens if token != MIN_TOKEN]
    rows = [
        RangeReplicas(start, end, (owners[end],), (owners[end],))
        for start, end in pairwise((MIN_TOKEN, *ends))
    ]
    first = (owners[tokens[0]],)
    return Placement.of(
        (*rows, RangeReplicas(ends[-1] if ends else MIN_TOKEN, MIN_TOKEN, first, first))
    )


MAGIC: Final = b"STM1"
ALIGN: Final = 8
RING: Final = float(1 << 64)
HALF: Final = float(1 << 63)
_KINDS: Final = {"f4": "<f4", "i2": "<i2", "u1": "<u1", "i4": "<i4"}

Bytes = npt.NDArray[np.uint8]


class RowState(IntEnum):
    """State of a range or tablet."""

    AT_REST = 0
    MOVING = 1
    """Some written replicas do not serve reads, or the row waits for acks of other replicas."""
    NOBODY = 2
    """The row has no replica."""


def packed_map(name: str, epoch: int, after: Placement, before: Placement | None = None) -> bytes:
    """Return the encoded map of a placement.

    With ``before``, the map also marks the rows that differ from it.
    """
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
    """Return the ``RowState`` of each row."""
    writes = lengths(rows.values[WRITES])
    moving = (_reads(rows) != writes) | (lengths(rows.values[OTHER]) > 0)
    found = np.where(moving, RowState.MOVING, RowState.AT_REST).astype(np.uint8)
    found[writes == 0] = RowState.NOBODY
    return found


def differing(before: Placement, after: Placement) -> Bytes:
    """Return 1 for each row of ``after`` that ``before`` lacks, else 0.

    Rows are equal if their bounds, reads and writes are equal.
    """
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
    """Return the number of replicas that serve reads, for each row.

    A negative count in the row means that its readers are listed apart.
    """
    counts = rows.values[READS_COUNT]
    if (counts >= 0).all():
        return counts
    found: Ints = lengths(reads_of(rows))
    return found


def _ends(rows: Rows) -> npt.NDArray[np.int64]:
    return np.append(rows.keys[1:], rows.keys[:1])


def _widened(lists: Ints, width: int) -> Ints:
    return np.pad(lists, ((0, 0), (0, width - lists.shape[1])), constant_values=PAD)
