"""What an operation locks of the ring, so that operations with disjoint locks may run at once.

Two that change different rows may still differ from their serial execution: a token that comes or goes
next to where another operation changes rows changes the walk that led there. With the pieces on both
sides of every such token locked too they commute; ``tests/models`` searches for what would not.
"""

from collections.abc import Iterable, Sequence

from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import RangeReplicas, upper_bound
from stele.domain.ring.tokens import MIN_TOKEN
from stele.domain.ring.transition import Interval, TransitionPlan


def locks_of(plan: TransitionPlan, before: Placement) -> tuple[Interval, ...]:
    """The rows that change and both pieces beside each token that comes or goes, as disjoint intervals.

    ``before`` is the placement that the plan leads from. A token that comes has its two pieces in the
    row that it cuts. The ring's first and last row are one piece, as the ring goes around.
    """
    beside = [before.row_for(token) for token in (*plan.split_at, *plan.merge_at)]
    beside += [row for row in map(before.row_from, plan.merge_at) if row is not None]
    beside += _around(beside, before)
    changing = [(row.start, row.end) for row in plan.rows]
    return disjoint([*changing, *((row.start, row.end) for row in beside)])


def overlaps(locks_a: Sequence[Interval], locks_b: Sequence[Interval]) -> bool:
    """True when some token lies in both; each has its intervals disjoint and in ring order."""
    a = b = 0
    while a < len(locks_a) and b < len(locks_b):
        (start_a, end_a), (start_b, end_b) = locks_a[a], locks_b[b]
        if max(start_a, start_b) < min(upper_bound(end_a), upper_bound(end_b)):
            return True
        if upper_bound(end_a) < upper_bound(end_b):
            a += 1
        else:
            b += 1
    return False


def _around(rows: Iterable[RangeReplicas], before: Placement) -> tuple[RangeReplicas, ...]:
    """The first and the last row when one of them is among ``rows``."""
    if any(MIN_TOKEN in (row.start, row.end) for row in rows):
        return before.row_for(MIN_TOKEN + 1), before.row_for(MIN_TOKEN)
    return ()


def disjoint(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The same tokens in as few intervals as can be, in ring order."""
    found = list[Interval]()
    for start, end in sorted(intervals):
        if found and start <= upper_bound(found[-1][1]):
            if upper_bound(end) > upper_bound(found[-1][1]):
                found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return tuple(found)
