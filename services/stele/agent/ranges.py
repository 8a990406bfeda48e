"""Changes of the ranges that a node receives, serves or loses, reported after each epoch.

Tablets are ranges of their table. A split that keeps the replicas is no change.
"""

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
    was = _covered(range_of(row) for row in gone if node_id in of(row))
    now = _covered(range_of(row) for row in came if node_id in of(row))
    return _without(now, was), _without(was, now)


Interval = tuple[int, int]
"""The tokens (start, end], where the end of the ring is a number above all tokens."""


def _covered(ranges: Iterable[Range]) -> list[Interval]:
    """Return the same tokens as ordered intervals that do not touch."""
    found = list[Interval]()
    for start, end in sorted((each.start, upper_bound(each.end)) for each in ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _without(these: list[Interval], those: list[Interval]) -> tuple[Range, ...]:
    """Return ``these`` without ``those``. Both are ordered."""
    found, at = list[Range](), 0
    for begin, end in these:
        start = begin
        while at < len(those) and those[at][1] <= start:
            at += 1
        place = at
        while place < len(those) and those[place][0] < end:
            if start < those[place][0]:
                found.append(_range(start, those[place][0]))
            start = max(start, those[place][1])
            place += 1
        if start < end:
            found.append(_range(start, end))
    return tuple(found)


def _range(start: int, end: int) -> Range:
    return Range(start, MIN_TOKEN if end > MAX_TOKEN else end)
