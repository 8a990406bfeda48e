"""The plan of a join, leave, replace or remove, and the change of rows that each of its steps makes.

Everything is computed once, in ``prepare``. The steps only look up (reference: cassandra_tcm 5.3):

step                 reads  writes       ranges
split_delta          old    old          cut at the tokens that come
write_both_read_old  old    old + new
write_both_read_new  new    old + new
finish               new    new          joined where tokens went
rollback             old    old          as they were before split_delta

A step's delta is what differs between the placement given and the rows the step asks for. So a step may
follow any other, repeating it changes nothing, and only rows that change are in a delta.
"""

from collections.abc import Iterable, Sequence, Set

import msgspec

from stele.domain.ring.quorum import MAX_SHRINK, quorum_of
from stele.domain.ring.ranges import (
    Placement,
    PlacementError,
    Range,
    RangeReplicas,
    range_of,
    ranges_of,
    split_row,
    upper_bound,
)
from stele.domain.ring.tokens import MIN_TOKEN


class TransitionRow(msgspec.Struct, frozen=True):
    """A range whose replicas change, and from which to which; primary first on both sides."""

    start: int
    end: int
    old: tuple[str, ...]
    new: tuple[str, ...]


class TransitionPlan(msgspec.Struct, frozen=True):
    """All that the steps of one operation need to know, for one placement; all parts in ring order.

    ``rows`` are the affected ranges. ``split`` are the rows before the operation that the tokens
    ``split_at`` cut; ``merge`` are the rows after it that were cut by the tokens ``merge_at``.
    """

    rows: tuple[TransitionRow, ...]
    split: tuple[RangeReplicas, ...] = ()
    split_at: tuple[int, ...] = ()
    merge: tuple[RangeReplicas, ...] = ()
    merge_at: tuple[int, ...] = ()


Wanted = tuple[TransitionRow | RangeReplicas, tuple[str, ...], tuple[str, ...]]
"""A range, and who is to serve its reads and to receive its writes."""


class PlacementDelta(msgspec.Struct, frozen=True):
    """Rows that leave a placement, and rows that come in for them; both empty when nothing changes."""

    removed: tuple[Range, ...] = ()
    added: tuple[RangeReplicas, ...] = ()


def prepare(before: Placement, after: Placement) -> TransitionPlan:
    """Plan the way from one ring at rest to another; both placements are computed ones (``placement_of``).

    Raises PlacementError when a range would lose more than ``MAX_SHRINK`` replicas.
    """
    old_ends = {row.end for row in before.rows} - {MIN_TOKEN}
    new_ends = {row.end for row in after.rows} - {MIN_TOKEN}
    rows = tuple(_affected(before, after, ranges_of(old_ends | new_ends)))
    split_at, merge_at = tuple(sorted(new_ends - old_ends)), tuple(sorted(old_ends - new_ends))
    return TransitionPlan(
        rows=rows,
        split=_rows_at(before, split_at),
        split_at=split_at,
        merge=_rows_at(after, merge_at),
        merge_at=merge_at,
    )


def locks_of(plan: TransitionPlan) -> tuple[Range, ...]:
    """What the operation must have for itself, as disjoint ranges in ring order.

    These are the ranges that change and both pieces beside every token that comes or goes: a split row is
    the two pieces that its token makes, a merged row the two that its token parted. Operations whose locks
    do not meet give the same placement in any order, side by side or one after another
    (``tests/models/test_locks.py``).
    """
    touched = [(row.start, row.end) for row in plan.rows]
    touched += [(row.start, row.end) for row in (*plan.split, *plan.merge)]
    joined: list[Range] = []
    for start, end in sorted(touched, key=lambda r: (r[0], upper_bound(r[1]))):
        if joined and start <= upper_bound(joined[-1].end):
            if upper_bound(end) > upper_bound(joined[-1].end):
                joined[-1] = Range(joined[-1].start, end)
        else:
            joined.append(Range(start, end))
    return tuple(joined)


def meet(mine: Sequence[Range], theirs: Sequence[Range]) -> bool:
    """True when two sets of ranges in ring order share a token."""
    left, right = 0, 0
    while left < len(mine) and right < len(theirs):
        a, b = mine[left], theirs[right]
        if a.start < upper_bound(b.end) and b.start < upper_bound(a.end):
            return True
        if upper_bound(a.end) <= upper_bound(b.end):
            left += 1
        else:
            right += 1
    return False


def split_delta(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """Cut the ranges that new tokens fall into; owners unchanged (seed 001, step 1 of bootstrap)."""
    return _delta(placement, [(row, row.old, row.old) for row in _pieces(plan)], version)


def write_both_read_old(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """The new replicas receive writes too. They stand behind the old ones."""
    return _delta(placement, [(row, row.old, _union(row)) for row in _pieces(plan)], version)


def write_both_read_new(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """The new replicas serve the reads; the old ones still receive what late readers look for."""
    return _delta(placement, [(row, row.new, _union(row)) for row in _pieces(plan)], version)


def finish(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """The new replicas alone, in the ranges of the new tokens: what ``placement_of`` them gives."""
    rows = [(row, row.new, row.new) for row in _pieces(plan)]
    return _delta(placement, _joined(rows, plan.merge, plan.merge_at), version)


def rollback(placement: Placement, plan: TransitionPlan, version: int) -> PlacementDelta:
    """From any step back to the replicas of before ``split_delta`` (I11)."""
    rows = [(row, row.old, row.old) for row in _pieces(plan)]
    return _delta(placement, _joined(rows, plan.split, plan.split_at), version)


def gained(plan: TransitionPlan, node: str) -> tuple[Range, ...]:
    """Ranges that the node replicates after the operation and did not before, in ring order."""
    return tuple(Range(r.start, r.end) for r in plan.rows if node in r.new and node not in r.old)


def lost(plan: TransitionPlan, node: str) -> tuple[Range, ...]:
    """Ranges that the node replicated before the operation and does not after, in ring order."""
    return tuple(Range(r.start, r.end) for r in plan.rows if node in r.old and node not in r.new)


def stream_sources(
    row: TransitionRow, gaining: str, unavailable: Set[str] = frozenset()
) -> tuple[tuple[str, ...], int]:
    """Whom ``gaining`` must stream this range from, and how many of them it needs.

    Pairing (strict consistent range movement): when at least as many replicas leave as come, the i-th
    that comes takes over from the i-th that leaves, alone. It then holds what its partner held, so the
    new set is the old one with names changed, less at most ``MAX_SHRINK`` members: a quorum of the old
    set is still one that meets every read quorum of the new. Two that stream from the same one, or from
    one that stays, would count one copy twice.

    Otherwise, or when the partner is ``unavailable``: a majority of the old set, which meets the quorum
    of each acknowledged write, so ``gaining`` holds them all. The majority is that of all old replicas;
    dead ones are not asked but do not make it smaller. Fewer sources than needed means that it cannot
    be done safely. No old replicas, no sources: ((), 0).

    Raises ValueError when ``gaining`` does not gain this range.
    """
    coming = [node for node in row.new if node not in row.old]
    leaving = [node for node in row.old if node not in row.new]
    if gaining not in coming:
        raise ValueError(f"Node '{gaining}' does not gain ({row.start}, {row.end}].")
    if len(leaving) >= len(coming):
        partner = leaving[coming.index(gaining)]
        if partner not in unavailable:
            return (partner,), 1
    sources = tuple(node for node in row.old if node not in unavailable)
    return sources, quorum_of(len(row.old)) if row.old else 0


def _affected(
    before: Placement, after: Placement, ranges: Iterable[Range]
) -> Iterable[TransitionRow]:
    for range_ in ranges:
        old, new = before.row_for(range_.end).reads, after.row_for(range_.end).reads
        if len(old) - len(new) > MAX_SHRINK:
            raise PlacementError(
                f"({range_.start}, {range_.end}] would shrink from {old} to {new} at once."
            )
        if old != new:
            yield TransitionRow(range_.start, range_.end, old, new)


def _rows_at(placement: Placement, tokens: Iterable[int]) -> tuple[RangeReplicas, ...]:
    """The rows that hold these sorted tokens, each once."""
    return tuple(dict.fromkeys(placement.row_for(token) for token in tokens))


def _pieces(plan: TransitionPlan) -> list[TransitionRow]:
    """The plan's rows, and the pieces of split or merged rows whose replicas do not change."""
    found = {row.start: row for row in plan.rows}
    cut = [piece for row in plan.split for piece in split_row(row, plan.split_at)]
    cut += [piece for row in plan.merge for piece in split_row(row, plan.merge_at)]
    for piece in cut:
        unchanged = TransitionRow(piece.start, piece.end, piece.reads, piece.reads)
        found.setdefault(piece.start, unchanged)
    return [found[start] for start in sorted(found)]


def _joined(
    rows: Iterable[Wanted], whole: Iterable[RangeReplicas], cut_at: Sequence[int]
) -> list[Wanted]:
    """The rows with each of ``whole`` in place of its pieces."""
    inside = {piece.start for row in whole for piece in split_row(row, cut_at)}
    kept = [wanted for wanted in rows if wanted[0].start not in inside]
    joined = [(row, row.reads, row.reads) for row in whole]
    return sorted((*kept, *joined), key=lambda wanted: wanted[0].start)


def _delta(placement: Placement, wanted: Sequence[Wanted], version: int) -> PlacementDelta:
    """What to change in the placement so that the ranges of ``wanted`` have exactly these replicas.

    A row that is as wanted stays. A range whose replicas stay, and only its bounds move, keeps the versions
    that gave it them; the others get ``version``, and the newest that they had becomes ``version_before``.
    """
    removed: dict[Range, None] = {}
    added: list[RangeReplicas] = []
    for range_, reads, writes in wanted:
        there = placement.overlapping(Range(range_.start, range_.end))
        same = all((row.reads, row.writes) == (reads, writes) for row in there)
        if same and [(row.start, row.end) for row in there] == [(range_.start, range_.end)]:
            continue
        had = max((row.version, row.version_before) for row in there)
        versions = had if same else (version, had[0])
        removed.update(dict.fromkeys(range_of(row) for row in there))
        added.append(RangeReplicas(range_.start, range_.end, reads, writes, *versions))
    return PlacementDelta(tuple(removed), tuple(added))


def _union(row: TransitionRow) -> tuple[str, ...]:
    return (*row.old, *(node for node in row.new if node not in row.old))
