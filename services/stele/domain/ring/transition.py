"""The plan of an operation that moves ranges, and the change of rows that each of its steps makes.

``prepare`` computes everything once; the steps only look it up. The steps are those of CEP-21,
"Bootstrap"; Cassandra's counterpart is ``PlacementTransitionPlan``.

step                 reads  writes       other  ranges
split_delta          old    old                 cut at the tokens that come
write_both_read_old  old    old + new    new
write_both_read_new  new    old + new    old
finish               new    new                 joined where tokens went
rollback             old    old                 as they were before split_delta

``old`` and ``new`` may have any sizes. A write needs a quorum of each (``quorum``). The nodes that
serve ``new`` first receive all writes that were acknowledged before (``TransitionRow.receiving``).

The delta of a step is the difference between the given placement and the rows of the step. A step
may thus follow any other, and repeating it changes nothing. A delta holds only rows that change;
rows whose replicas change carry the ``version`` of the step. A step neither reads nor writes rows
that its plan does not name, because other operations may be open there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import repeat
from typing import Final

import msgspec
import numpy as np

from stele.domain.column import united
from stele.domain.ring.columns import lengths, widened
from stele.domain.ring.placement import Placement
from stele.domain.ring.quorum import blocking
from stele.domain.ring.ranges import (
    MIN_TOKEN,
    Range,
    RangeReplicas,
    packed_shards,
    range_of,
    split_row,
    upper_bound,
)

WHOLE_RING: Final = Range(MIN_TOKEN, MIN_TOKEN)


class TransitionRow(msgspec.Struct, frozen=True):
    """A range whose replicas change, with the old and the new ones; primary first on both sides.

    ``old_shards`` and ``new_shards`` are their shards, one for each replica; empty means that all
    are 0.
    """

    start: int
    end: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    old_shards: tuple[int, ...] = ()
    new_shards: tuple[int, ...] = ()

    def coming(self) -> list[str]:
        """Return the nodes that gain the range."""
        return [node for node in self.new if node not in self.old]

    def leaving(self) -> list[str]:
        """Return the nodes that lose it."""
        return [node for node in self.old if node not in self.new]

    def shifting(self) -> list[str]:
        """Return the nodes that keep it on another shard."""
        if not (self.old_shards or self.new_shards):
            return []
        old, new = self.places_before(), self.places_after()
        return [node for node in self.new if node in old and old[node] != new[node]]

    def places_before(self) -> dict[str, int]:
        """Return the shard of each old replica, by node."""
        return dict(zip(self.old, self.old_shards or repeat(0), strict=False))

    def places_after(self) -> dict[str, int]:
        """Return the shard of each new replica, by node."""
        return dict(zip(self.new, self.new_shards or repeat(0), strict=False))

    def receiving(self) -> list[str]:
        """Return the nodes that must receive all acknowledged writes before reads move.

        These are the nodes that gain the range or have it on another shard then. If fewer replicas
        are left, all of them must, because one that stays may lack a write that a quorum of the
        larger set acknowledged. With two replicas, each has all writes, so there is nothing to
        stream. The one that stays must still report before the other's copy is deleted.
        """
        if len(self.new) < len(self.old):
            return [*self.new]
        return self.coming() + self.shifting()


def staying(row: RangeReplicas) -> TransitionRow:
    """Return a row that does not change."""
    places = row.places(row.reads)
    return TransitionRow(row.start, row.end, row.reads, row.reads, places, places)


def changing(row: RangeReplicas, new: tuple[str, ...], to: Mapping[str, int]) -> TransitionRow:
    """Return the row's change to the replicas ``new``.

    A node named in ``to`` gets that shard. Other nodes keep theirs.
    """
    shards = tuple(to[node] if node in to else row.shard_of(node) for node in new)
    places = row.places(row.reads), packed_shards(shards)
    return TransitionRow(row.start, row.end, row.reads, new, *places)


class TransitionPlan(msgspec.Struct, frozen=True):
    """The data that the steps of one operation need, for one placement; all parts in ring order.

    ``rows`` are the affected ranges. ``split`` are the rows before the operation that the tokens
    ``split_at`` cut. ``merge`` are the rows after it that were cut by the tokens ``merge_at``.
    ``locks`` are the ranges that it must have exclusively (``locks_of``).
    """

    rows: tuple[TransitionRow, ...]
    split: tuple[RangeReplicas, ...] = ()
    split_at: tuple[int, ...] = ()
    merge: tuple[RangeReplicas, ...] = ()
    merge_at: tuple[int, ...] = ()
    locks: tuple[Range, ...] = ()


Sides = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[int, ...], tuple[int, ...]]
"""Reads, writes, other side, shards of the writes, and the shards that these move to
within a node.
"""

Wanted = tuple[TransitionRow | RangeReplicas, Sides]
"""A range, and the replicas that it is to have."""


class PlacementDelta(msgspec.Struct, frozen=True):
    """Rows that leave a placement, and rows that replace them; both empty when nothing changes."""

    removed: tuple[Range, ...] = ()
    added: tuple[RangeReplicas, ...] = ()


def prepare(
    before: Placement, after: Placement, old_tokens: Set[int], new_tokens: Set[int]
) -> TransitionPlan:
    """Plan the way between two placements at rest, given the tokens of their rings.

    The live placement has no influence on the plan: see ``equals_at_rest``.
    """
    split_at = tuple(sorted(new_tokens - old_tokens - {MIN_TOKEN}))
    merge_at = tuple(sorted(old_tokens - new_tokens - {MIN_TOKEN}))
    return TransitionPlan(
        rows=_affected(before, after),
        split=_rows_at(before, split_at),
        split_at=split_at,
        merge=_rows_at(after, merge_at),
        merge_at=merge_at,
    )


def equals_at_rest(live: Placement, computed: Placement) -> bool:
    """Return True when ``live`` has exactly the rows of ``computed``, which is at rest.

    Rows of one placement that the other cuts elsewhere are not equal. Versions do not matter.
    """
    one, two = live.table.all(), computed.renumbered(live.nodes).table.all()
    if not np.array_equal(one.keys, two.keys):
        return False
    _, _, counts, writes, _, others, *_ = one.values
    _, _, rest_counts, rest_writes, *_ = two.values
    width = max(writes.shape[1], rest_writes.shape[1])
    return (
        np.array_equal(counts, rest_counts)
        and np.array_equal(widened(writes, width), widened(rest_writes, width))
        and not lengths(others).any()
    )


def split_delta(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """Cut the ranges that new tokens fall into; owners stay (CEP-21, "Bootstrap", step 1)."""
    return _delta(placement, [(row, _before(row)) for row in _pieces(plan)], version)


def write_both_read_old(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """Let the new replicas receive writes too. They follow the old ones in a row."""
    return _delta(placement, [(row, _moving(row, to_new=False)) for row in _pieces(plan)], version)


def write_both_read_new(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """Let the new replicas serve the reads. The old ones still receive writes for late readers."""
    return _delta(placement, [(row, _moving(row, to_new=True)) for row in _pieces(plan)], version)


def finish(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """Keep only the new replicas, in the ranges of the new tokens: the rows of ``placement_of``."""
    rows: list[Wanted] = [
        (row, (row.new, row.new, (), packed_shards(row.new_shards), ())) for row in _pieces(plan)
    ]
    return _delta(placement, _joined(rows, plan.merge, plan.merge_at), version)


def rollback(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """Return from any step to the replicas before it, in the same ranges (I11)."""
    rows: list[Wanted] = [(row, _before(row)) for row in _pieces(plan)]
    return _delta(placement, _joined(rows, plan.split, plan.split_at), version)


def stream_sources(
    row: TransitionRow, receiving: str, unavailable: Set[str] = frozenset()
) -> tuple[tuple[str, ...], int]:
    """Return the possible sources of this range for ``receiving``, and how many it needs.

    Pairing (strict consistent range movement): if as many replicas leave as come, the i-th that
    comes streams only from the i-th that leaves. It then holds what its partner held, so the new
    set is the old one with names changed. Two nodes that stream from the same replica, or from one
    that stays, would count one copy twice.

    A node that has the range on another of its shards takes it from there only.

    In all other cases, or if the partner is ``unavailable``: as many of the old set as block each
    quorum of it. Between them they have every acknowledged write, and ``receiving`` then holds them
    all. That is a majority of three, and one of two. A node that is one of them needs one fewer.
    Dead replicas are not used but still count in the size of the set. Fewer sources than needed
    mean that the stream is not safe. Without old replicas the result is ((), 0).

    Raises ValueError when ``receiving`` needs nothing of this range.
    """
    if receiving not in row.receiving():
        raise ValueError(f"Node '{receiving}' receives nothing of ({row.start}, {row.end}].")
    if receiving in row.shifting():
        return (() if receiving in unavailable else (receiving,)), 1
    coming, leaving = row.coming(), row.leaving()
    if len(leaving) == len(coming):
        partner = leaving[coming.index(receiving)]
        if partner not in unavailable:
            return (partner,), 1
    needed = blocking(len(row.old)) - (receiving in row.old)
    if not needed:
        return (), 0
    sources = tuple(node for node in row.old if node != receiving and node not in unavailable)
    return sources, needed


def lacks_sources(row: TransitionRow, dead: Set[str]) -> bool:
    """Return True when a new replica cannot receive all acknowledged writes, with these dead."""
    for receiving in row.receiving():
        sources, needed = stream_sources(row, receiving, dead)
        if len(sources) < needed:
            return True
    return False


def _affected(before: Placement, after: Placement) -> tuple[TransitionRow, ...]:
    """Return the ranges, cut by the tokens of both, whose replicas differ."""
    after = after.renumbered(before.nodes)
    old_starts, new_starts = before.table.all().keys, after.table.all().keys
    starts = united(old_starts, new_starts)
    old, new = before.reads(), after.reads()
    width = max(old.shape[1], new.shape[1])
    old = widened(old, width)[np.searchsorted(old_starts, starts, "right") - 1]
    new = widened(new, width)[np.searchsorted(new_starts, starts, "right") - 1]
    changing = np.flatnonzero((old != new).any(axis=1))
    old, new = old[changing], new[changing]
    ends = np.append(starts[1:], MIN_TOKEN)[changing]
    names = max(before.nodes, after.nodes, key=lambda nodes: len(nodes.names))
    columns = starts[changing].tolist(), ends.tolist(), names.decode(old), names.decode(new)
    return tuple(map(TransitionRow, *columns))


def _rows_at(placement: Placement, tokens: Iterable[int]) -> tuple[RangeReplicas, ...]:
    """Return the rows that hold these sorted tokens, each once."""
    return tuple(dict.fromkeys(placement.row_for(token) for token in tokens))


def _pieces(plan: TransitionPlan) -> list[TransitionRow]:
    """Return the plan's rows, and the unchanged pieces of split or merged rows."""
    found = {row.start: row for row in plan.rows}
    cut = [piece for row in plan.split for piece in split_row(row, plan.split_at)]
    cut += [piece for row in plan.merge for piece in split_row(row, plan.merge_at)]
    for piece in cut:
        # Pieces whose replicas change are in the plan already.
        found.setdefault(piece.start, staying(piece))
    return [found[start] for start in sorted(found)]


def _joined(
    rows: Iterable[Wanted], whole: Iterable[RangeReplicas], cut_at: Sequence[int]
) -> list[Wanted]:
    """Return the rows with each of ``whole`` in place of its pieces."""
    inside = {piece.start for row in whole for piece in split_row(row, cut_at)}
    kept = [wanted for wanted in rows if wanted[0].start not in inside]
    joined: list[Wanted] = [
        (row, (row.reads, row.reads, (), row.places(row.reads), ())) for row in whole
    ]
    return sorted((*kept, *joined), key=lambda wanted: wanted[0].start)


def _delta(placement: Placement, wanted: Sequence[Wanted], version: int) -> PlacementDelta:
    """Return the change that gives the ranges of ``wanted`` exactly these replicas.

    A row that already matches stays. A range with the same replicas and other bounds keeps the
    versions of its changes. All others get ``version``.
    """
    removed: dict[Range, None] = {}
    added: list[RangeReplicas] = []
    for range_, sides in wanted:
        there = placement.overlapping(Range(range_.start, range_.end))
        same = all(_sides_of(row) == sides for row in there)
        if same and [(row.start, row.end) for row in there] == [(range_.start, range_.end)]:
            continue
        # If several rows become one, the newest of their changes counts as the change before. A
        # request older than any of these changes is stale (docs/design.md, rule 31).
        newest = max(row.version for row in there)
        kept, before = (newest, newest_before(there, newest)) if same else (version, newest)
        removed.update(dict.fromkeys(range_of(row) for row in there))
        reads, writes, other, *shards = sides
        bounds = range_.start, range_.end
        added.append(RangeReplicas(*bounds, reads, writes, kept, before, other, *shards))
    return PlacementDelta(tuple(removed), tuple(added))


def newest_before(rows: Sequence[RangeReplicas], newest: int) -> int:
    """Return the newest change of any of these rows before ``newest``."""
    versions = (v for row in rows for v in (row.version, row.version_before) if v < newest)
    return max(versions, default=0)


def _sides_of(row: RangeReplicas) -> Sides:
    return row.reads, row.writes, row.other, row.shards, row.other_shards


def _before(row: TransitionRow) -> Sides:
    return row.old, row.old, (), packed_shards(row.old_shards), ()


def _moving(row: TransitionRow, *, to_new: bool) -> Sides:
    """Return the sides while both receive the writes.

    A range that only gets other bounds, or another primary, has one side. If only shards change,
    both shards of a node receive the writes.
    """
    reads, other = (row.new, row.old) if to_new else (row.old, row.new)
    one_side = {*row.old} == {*row.new}
    writes = (*row.old, *row.coming())
    if not (row.old_shards or row.new_shards):
        return reads, writes, () if one_side else other, (), ()
    before, after = row.places_before(), row.places_after()
    first, second = (after, before) if to_new else (before, after)
    shards = tuple(first[node] if node in first else second[node] for node in writes)
    onto = tuple(second[node] if node in second else first[node] for node in writes)
    return (
        reads,
        writes,
        () if one_side else other,
        packed_shards(shards),
        onto if onto != shards else (),
    )


# The locks of an operation on the ring. Operations with disjoint locks may run at once.
#
# Two operations that change different rows may still differ from their serial execution. A token
# that comes or goes next to rows of another operation changes the walk that led to these rows. The
# pieces on both sides of every such token are therefore locked too, and then the operations
# commute. ``tests/models`` searches for counterexamples (docs/design.md, rule 37).


def locks_of(plan: TransitionPlan, before: Placement) -> tuple[Range, ...]:
    """Return the rows that change and both pieces beside each token that comes or goes.

    The result is disjoint ranges in ring order.

    ``before`` is the placement that the plan leads from. A token that comes has its two pieces in
    the row that it cuts. The ring's first and last row are one piece, because the ring is a circle.
    """
    beside = [before.row_for(token) for token in (*plan.split_at, *plan.merge_at)]
    beside += [row for row in map(before.row_from, plan.merge_at) if row is not None]
    beside += _around(beside, before)
    locked = [Range(row.start, row.end) for row in plan.rows]
    return disjoint(locked + [Range(row.start, row.end) for row in beside])


def overlaps(one: Sequence[Range], two: Sequence[Range]) -> bool:
    """Return True when some token lies in both. Each has disjoint ranges in ring order."""
    a = b = 0
    # Both are in ring order, so the range that ends first cannot overlap a later one.
    while a < len(one) and b < len(two):
        ends = upper_bound(one[a].end), upper_bound(two[b].end)
        if max(one[a].start, two[b].start) < min(ends):
            return True
        if ends[0] < ends[1]:
            a += 1
        else:
            b += 1
    return False


def _around(rows: Iterable[RangeReplicas], before: Placement) -> tuple[RangeReplicas, ...]:
    """Return the first and the last row when one of them is among ``rows``."""
    if any(MIN_TOKEN in (row.start, row.end) for row in rows):
        return before.row_for(MIN_TOKEN + 1), before.row_for(MIN_TOKEN)
    return ()


def disjoint(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the same tokens in as few ranges as possible, in ring order."""
    found = list[Range]()
    for range_ in sorted(ranges):
        if found and range_.start <= upper_bound(found[-1].end):
            if upper_bound(range_.end) > upper_bound(found[-1].end):
                found[-1] = Range(found[-1].start, range_.end)
        else:
            found.append(range_)
    return tuple(found)
