"""The plan of an operation that moves ranges, and the change of rows that each of its steps makes.

Everything is computed once, in ``prepare``. The steps only look up (reference: cassandra_tcm 5.3):

step                 reads  writes       other  ranges
split_delta          old    old                 cut at the tokens that come
write_both_read_old  old    old + new    new
write_both_read_new  new    old + new    old
finish               new    new                 joined where tokens went
rollback             old    old                 as they were before split_delta

``old`` and ``new`` may be of any sizes: a write needs a quorum of each (``quorum``), and who serves ``new``
is given all that was acknowledged before (``TransitionRow.receiving``).

A step's delta is what differs between the placement given and the rows the step asks for. So a step may
follow any other, repeating it changes nothing, and only rows that change are in a delta; those whose
replicas change carry the step's topology ``version``. Elsewhere on the ring other operations may be under
way: a step neither reads nor writes what its plan does not name.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import repeat

import msgspec
import numpy as np

from stele.domain.column import united
from stele.domain.ring.columns import widened
from stele.domain.ring.numbers import NO_NODES, NodeNumbers, lengths
from stele.domain.ring.placement import Placement
from stele.domain.ring.quorum import blocking
from stele.domain.ring.ranges import (
    Range,
    RangeReplicas,
    packed_shards,
    range_of,
    split_row,
    upper_bound,
)
from stele.domain.ring.strategy import NodeLocation, placement_of
from stele.domain.ring.tokens import MIN_TOKEN

Interval = tuple[int, int]
"""(start, end] of the ring, in tokens, as a range."""

WHOLE_RING: Interval = (MIN_TOKEN, MIN_TOKEN)


class TransitionRow(msgspec.Struct, frozen=True):
    """A range whose replicas change, and from which to which; primary first on both sides.

    ``old_shards`` and ``new_shards`` are their places within these nodes, one for each; empty: all are 0.
    """

    start: int
    end: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    old_shards: tuple[int, ...] = ()
    new_shards: tuple[int, ...] = ()

    def coming(self) -> list[str]:
        """The nodes that gain the range."""
        return [node for node in self.new if node not in self.old]

    def leaving(self) -> list[str]:
        """The nodes that lose it."""
        return [node for node in self.old if node not in self.new]

    def shifting(self) -> list[str]:
        """The nodes that keep it and have it on another shard afterwards."""
        if not (self.old_shards or self.new_shards):
            return []
        old, new = self.places_before(), self.places_after()
        return [node for node in self.new if node in old and old[node] != new[node]]

    def places_before(self) -> dict[str, int]:
        """By node the shard that has it before."""
        return dict(zip(self.old, self.old_shards or repeat(0), strict=False))

    def places_after(self) -> dict[str, int]:
        """By node the shard that has it afterwards."""
        return dict(zip(self.new, self.new_shards or repeat(0), strict=False))

    def receiving(self) -> list[str]:
        """The nodes that must be given what was acknowledged before reads move.

        Those that gain the range, or have it on another shard then; and where fewer replicas are left, all
        of these, since one that stays may lack what a quorum of the larger set acknowledged. Of two replicas
        each has all that was, so there is nothing to stream; but the one that stays must say that it is there
        before the other's copy goes.
        """
        if len(self.new) < len(self.old):
            return [*self.new]
        return self.coming() + self.shifting()


def staying(row: RangeReplicas) -> TransitionRow:
    """Nothing of the row changes."""
    places = row.places(row.reads)
    return TransitionRow(row.start, row.end, row.reads, row.reads, places, places)


def changing(row: RangeReplicas, new: tuple[str, ...], to: Mapping[str, int]) -> TransitionRow:
    """The row's replicas become ``new``; who is named in ``to`` is on that shard then, others stay there."""
    shards = tuple(to[node] if node in to else row.shard_of(node) for node in new)
    places = row.places(row.reads), packed_shards(shards)
    return TransitionRow(row.start, row.end, row.reads, new, *places)


class TransitionPlan(msgspec.Struct, frozen=True):
    """All that the steps of one operation need to know, for one placement; all parts in ring order.

    ``rows`` are the affected ranges. ``split`` are the rows before the operation that the tokens
    ``split_at`` cut; ``merge`` are the rows after it that were cut by the tokens ``merge_at``. ``locks`` is
    what it must have for itself (``locks.locks_of``).
    """

    rows: tuple[TransitionRow, ...]
    split: tuple[RangeReplicas, ...] = ()
    split_at: tuple[int, ...] = ()
    merge: tuple[RangeReplicas, ...] = ()
    merge_at: tuple[int, ...] = ()
    locks: tuple[Range, ...] = ()


Sides = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[int, ...], tuple[int, ...]]
"""Who is to serve a range's reads and to receive its writes, and is on the other side; the shards of those who
receive writes, and where these move within a node.
"""

Wanted = tuple[TransitionRow | RangeReplicas, Sides]
"""A range, and whom it is to have."""


class PlacementDelta(msgspec.Struct, frozen=True):
    """Rows that leave a placement, and rows that come in for them; both empty when nothing changes."""

    removed: tuple[Range, ...] = ()
    added: tuple[RangeReplicas, ...] = ()


class Prepared(msgspec.Struct, frozen=True):
    """A plan, and the placements at rest that it leads from and to."""

    before: Placement
    after: Placement
    plan: TransitionPlan


def prepare_rings(
    old_tokens: Mapping[int, str],
    new_tokens: Mapping[int, str],
    old_locations: Mapping[str, NodeLocation],
    new_locations: Mapping[str, NodeLocation],
    rf: Mapping[str, int],
    nodes: NodeNumbers = NO_NODES,
) -> Prepared:
    """Plan the way from the ring ``old_tokens`` (token -> owner) to the ring ``new_tokens``."""
    before = placement_of(old_tokens, old_locations, rf, nodes)
    after = placement_of(new_tokens, new_locations, rf, before.nodes)
    plan = prepare(before, after, old_tokens.keys(), new_tokens.keys())
    return Prepared(before, after, plan)


def prepare(
    before: Placement, after: Placement, old_tokens: Set[int], new_tokens: Set[int]
) -> TransitionPlan:
    """Plan the way between two placements at rest, given the tokens of their rings.

    What stands in the live placement is no part of it: see ``equals_at_rest``.
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


def equals_at_rest(live: Placement, computed: Placement, spans: Iterable[Interval]) -> bool:
    """True when over these spans ``live`` has the very rows of ``computed``, which is at rest.

    Rows of one placement that the other cuts elsewhere are not the same. Versions do not matter.
    """
    computed = computed.renumbered(live.nodes)
    return all(_same_over(live, computed, span) for span in spans)


def split_delta(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """Cut the ranges that new tokens fall into; owners unchanged (seed 001, step 1 of bootstrap)."""
    return _delta(placement, [(row, _before(row)) for row in _pieces(plan)], version)


def write_both_read_old(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """The new replicas receive writes too. They stand behind the old ones."""
    return _delta(placement, [(row, _moving(row, to_new=False)) for row in _pieces(plan)], version)


def write_both_read_new(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """The new replicas serve the reads; the old ones still receive what late readers look for."""
    return _delta(placement, [(row, _moving(row, to_new=True)) for row in _pieces(plan)], version)


def finish(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """The new replicas alone, in the ranges of the new tokens: what ``placement_of`` them gives."""
    rows: list[Wanted] = [
        (row, (row.new, row.new, (), packed_shards(row.new_shards), ())) for row in _pieces(plan)
    ]
    return _delta(placement, _joined(rows, plan.merge, plan.merge_at), version)


def rollback(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """From any step back to the replicas of before, cut as they were (I11)."""
    rows: list[Wanted] = [(row, _before(row)) for row in _pieces(plan)]
    return _delta(placement, _joined(rows, plan.split, plan.split_at), version)


def received(plan: TransitionPlan, node: str) -> tuple[Range, ...]:
    """Ranges of which the node must be given what was acknowledged before the operation, in ring order."""
    return tuple(Range(row.start, row.end) for row in plan.rows if node in row.receiving())


def stream_sources(
    row: TransitionRow, receiving: str, unavailable: Set[str] = frozenset()
) -> tuple[tuple[str, ...], int]:
    """Whom ``receiving`` must stream this range from, and how many of them it needs.

    Pairing (strict consistent range movement): when as many replicas leave as come, the i-th that comes
    takes over from the i-th that leaves, alone. It then holds what its partner held, so the new set is the
    old one with names changed. Two that stream from the same one, or from one that stays, would count one
    copy twice.

    Who has it on another shard of its own already takes it from there, and nobody else.

    Otherwise, or when the partner is ``unavailable``: as many of the old set as block each quorum of it,
    so that between them they have every acknowledged write, and ``receiving`` then holds them all. That is a
    majority of three, and one of two; who is one of them itself needs one fewer. Dead ones are not asked but
    do not make the set smaller. Fewer sources than needed means that it cannot be done safely. No old
    replicas, no sources: ((), 0).

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
    """True when one who is to serve the range cannot be given all that was acknowledged, with these dead."""
    for receiving in row.receiving():
        sources, needed = stream_sources(row, receiving, dead)
        if len(sources) < needed:
            return True
    return False


def _affected(before: Placement, after: Placement) -> tuple[TransitionRow, ...]:
    """The ranges, cut by the tokens of both, whose replicas differ."""
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


def _same_over(live: Placement, computed: Placement, span: Interval) -> bool:
    found = []
    for placement in (live, computed):
        at, place = placement.table.find(span[0])
        start = placement.table.chunks[at].keys[place]
        rows = placement.table.between(start, upper_bound(span[1]))
        end = placement.end_of(*placement.table.find(int(rows.keys[-1])))
        found.append((rows, end))
    (one, one_end), (two, two_end) = found
    if one_end != two_end or not np.array_equal(one.keys, two.keys):
        return False
    _, _, counts, writes, _, others, *_ = one.values
    _, _, rest_counts, rest_writes, *_ = two.values
    width = max(writes.shape[1], rest_writes.shape[1])
    return (
        np.array_equal(counts, rest_counts)
        and np.array_equal(widened(writes, width), widened(rest_writes, width))
        and not lengths(others).any()
    )


def _rows_at(placement: Placement, tokens: Iterable[int]) -> tuple[RangeReplicas, ...]:
    """The rows that hold these sorted tokens, each once."""
    return tuple(dict.fromkeys(placement.row_for(token) for token in tokens))


def _pieces(plan: TransitionPlan) -> list[TransitionRow]:
    """The plan's rows, and the pieces of split or merged rows whose replicas do not change."""
    found = {row.start: row for row in plan.rows}
    cut = [piece for row in plan.split for piece in split_row(row, plan.split_at)]
    cut += [piece for row in plan.merge for piece in split_row(row, plan.merge_at)]
    for piece in cut:
        found.setdefault(piece.start, staying(piece))
    return [found[start] for start in sorted(found)]


def _joined(
    rows: Iterable[Wanted], whole: Iterable[RangeReplicas], cut_at: Sequence[int]
) -> list[Wanted]:
    """The rows with each of ``whole`` in place of its pieces."""
    inside = {piece.start for row in whole for piece in split_row(row, cut_at)}
    kept = [wanted for wanted in rows if wanted[0].start not in inside]
    joined: list[Wanted] = [
        (row, (row.reads, row.reads, (), row.places(row.reads), ())) for row in whole
    ]
    return sorted((*kept, *joined), key=lambda wanted: wanted[0].start)


def _delta(placement: Placement, wanted: Sequence[Wanted], version: int) -> PlacementDelta:
    """What to change in the placement so that the ranges of ``wanted`` have exactly these replicas.

    A row that is as wanted stays. A range whose replicas stay, and only its bounds move, keeps the
    versions of its changes; the others get ``version``.
    """
    removed: dict[Range, None] = {}
    added: list[RangeReplicas] = []
    for range_, sides in wanted:
        there = placement.overlapping(Range(range_.start, range_.end))
        same = all(_sides_of(row) == sides for row in there)
        if same and [(row.start, row.end) for row in there] == [(range_.start, range_.end)]:
            continue
        newest = max(row.version for row in there)
        kept, before = (newest, newest_before(there, newest)) if same else (version, newest)
        removed.update(dict.fromkeys(range_of(row) for row in there))
        reads, writes, other, *shards = sides
        bounds = range_.start, range_.end
        added.append(RangeReplicas(*bounds, reads, writes, kept, before, other, *shards))
    return PlacementDelta(tuple(removed), tuple(added))


def newest_before(rows: Sequence[RangeReplicas], newest: int) -> int:
    """The newest change of any of these rows before ``newest``."""
    versions = (v for row in rows for v in (row.version, row.version_before) if v < newest)
    return max(versions, default=0)


def _sides_of(row: RangeReplicas) -> Sides:
    return row.reads, row.writes, row.other, row.shards, row.other_shards


def _before(row: TransitionRow) -> Sides:
    return row.old, row.old, (), packed_shards(row.old_shards), ()


def _moving(row: TransitionRow, *, to_new: bool) -> Sides:
    """Both sides receive the writes. A range that only takes other bounds, or another primary, has one side;
    where only shards change, both shards of a node receive them.
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
