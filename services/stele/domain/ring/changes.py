"""Large changes of a placement in pieces that fit each other."""

from collections.abc import Iterator

import numpy as np

from stele.domain.ring.columns import Rows, joined
from stele.domain.ring.placement import Change, Placement, check_removed
from stele.domain.ring.spans import Ranges
from stele.domain.ring.tokens import MAX_TOKEN


def pieces_of(placement: Placement, change: Change, at_most: int) -> Iterator[Change]:
    """The change in pieces that add, and that remove, at most so many rows each; at least 2.

    Each fits what the ones before it left. Where a piece ends within a row that goes, the rest of that
    row stays for the next one; where it ends within a row that comes, what has come is made whole by
    the next one. A first placement is a change of ``EMPTY_RING``.
    """
    if at_most < 2:
        raise ValueError(f"Pieces need room for 2 rows, not {at_most}.")
    check_removed(placement, change.removed)
    left = change
    while len(left.rows) > at_most or len(left.removed) > at_most:
        last = min(
            *left.added.lasts()[at_most - 2 : at_most - 1].tolist(),
            *left.removed.lasts()[at_most - 1 : at_most].tolist(),
            MAX_TOKEN,
        )
        piece, left = _parted(placement, left, last)
        yield piece
    if len(left.rows) or len(left.removed):
        yield left


def _parted(placement: Placement, change: Change, last: int) -> tuple[Change, Change]:
    """What the change does to rows that begin up to ``last``, and what is left to do then.

    Where such a row goes on behind ``last``, on the other side one ends there.
    """
    removed, rows, ends = change.removed, change.rows, change.ends
    gone = int(np.searchsorted(removed.starts, last, "right"))
    come = int(np.searchsorted(rows.keys, last, "right"))
    going, coming, coming_ends = removed.cut(0, gone), rows.cut(0, come), ends[:come]
    staying, begun = removed.cut(gone, len(removed)), come
    if int(going.lasts()[-1]) > last:
        rest = _rest(placement, int(going.starts[-1]), last + 1)
        coming, coming_ends = joined((coming, rest)), np.append(coming_ends, going.ends[-1])
        staying = _behind(last + 1, int(going.ends[-1]), staying)
    elif int(change.added.lasts()[come - 1]) > last:
        begun -= 1
        coming_ends = np.append(coming_ends[:-1], last + 1)
        staying = _behind(int(rows.keys[begun]), last + 1, staying)
    piece = Change(going, coming, coming_ends, change.nodes)
    return piece, Change(staying, rows.cut(begun, len(rows)), ends[begun:], change.nodes)


def _rest(placement: Placement, token: int, start: int) -> Rows:
    """The row that holds what is behind ``token``, from ``start`` on."""
    at, place = placement.table.find(token)
    row = placement.table.chunks[at].rows.cut(place, place + 1)
    return Rows(np.array([start], np.int64), row.values)


def _behind(start: int, end: int, ranges: Ranges) -> Ranges:
    """The ranges behind one more."""
    return Ranges(np.insert(ranges.starts, 0, start), np.insert(ranges.ends, 0, end))
