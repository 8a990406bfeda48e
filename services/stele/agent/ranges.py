"""Changes of the ranges that a node receives, serves or loses, reported after each epoch.

Tablets are ranges of their table. A split that keeps the replicas is no change.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.model.ring import differences
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import (
    MAX_TOKEN,
    MIN_TOKEN,
    Range,
    RangeReplicas,
    range_of,
    upper_bound,
)
from stele.log.follower import LogFollower


class RangesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one epoch in the data of one keyspace or table, in ring order.

    - ``gained``: writes arrive from now on, and data will be streamed.
    - ``serves``: reads arrive too.
    - ``retired``: reads end.
    - ``lost``: writes end too. A CLEANUP order deletes the remaining data.
    """

    name: str
    data_id: str
    epoch: int
    gained: tuple[Range, ...] = ()
    serves: tuple[Range, ...] = ()
    retired: tuple[Range, ...] = ()
    lost: tuple[Range, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.gained or self.serves or self.retired or self.lost)


OnRanges = Callable[[RangesChanged], None]


def watch_ranges(node_id: str, follower: LogFollower, on_ranges: OnRanges) -> None:
    """Call ``on_ranges`` for the node's ranges, and then for each change of them.

    Calls are made in the event loop.
    """
    image = follower.image
    before = [image]
    for change in changes(node_id, None, image):
        on_ranges(change)

    def look(image: Image, _: Delta) -> None:
        for change in changes(node_id, before[0], image):
            on_ranges(change)
        before[0] = image

    follower.listen(look)


def changes(node_id: str, before: Image | None, after: Image) -> list[RangesChanged]:
    """Return the differences for a node between two images.

    If ``before`` is None, it had no ranges.
    """
    if before is not None and before.ring is after.ring and before.schema is after.schema:
        return []
    old, new = _placements(before), _placements(after)
    found = list[RangesChanged]()
    for data_id in sorted({*old, *new}):
        name, was = old.get(data_id, ("", None))
        name, now = new.get(data_id, (name, None))
        gone, came = differences(was, now)
        reads = _moved(node_id, gone, came, lambda row: row.reads)
        writes = _moved(node_id, gone, came, lambda row: row.writes)
        change = RangesChanged(
            name=name,
            data_id=data_id,
            epoch=after.epoch,
            gained=writes[0],
            serves=reads[0],
            retired=reads[1],
            lost=writes[1],
        )
        if change:
            found.append(change)
    return found


def _placements(image: Image | None) -> dict[str, tuple[str, Placement]]:
    """Return the name and the placement of all data, by data id."""
    if image is None:
        return {}
    return {
        data.data_id: (data.name, image.ring.placements[data.placement])
        for data in image.schema.all_data()
        if data.placement in image.ring.placements
    }


Moved = tuple[tuple[Range, ...], tuple[Range, ...]]


def _moved(
    node_id: str,
    gone: Sequence[RangeReplicas],
    came: Sequence[RangeReplicas],
    of: Callable[[RangeReplicas], tuple[str, ...]],
) -> Moved:
    """Return the ranges that became the node's, and those that are no longer its own."""
    was = [range_of(row) for row in gone if node_id in of(row)]
    now = [range_of(row) for row in came if node_id in of(row)]
    return _without(now, was), _without(was, now)


def _without(these: Iterable[Range], those: Iterable[Range]) -> tuple[Range, ...]:
    """Return the tokens of ``these`` that ``those`` lack, as ranges in ring order."""
    steps = defaultdict[int, list[int]](lambda: [0, 0])
    for side, ranges in enumerate((these, those)):
        for each in ranges:
            steps[each.start][side] += 1
            steps[upper_bound(each.end)][side] -= 1
    found, depth = list[Range](), [0, 0]
    begun: int | None = None
    for token in sorted(steps):
        depth = [before + step for before, step in zip(depth, steps[token], strict=True)]
        is_inside = depth[0] > 0 and not depth[1]
        if begun is None and is_inside:
            begun = token
        elif begun is not None and not is_inside:
            found.append(_range(begun, token))
            begun = None
    return tuple(found)


def _range(start: int, end: int) -> Range:
    return Range(start, MIN_TOKEN if end > MAX_TOKEN else end)
