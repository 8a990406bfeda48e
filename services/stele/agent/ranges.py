"""Which ranges of whose data a node came to receive, to serve, and has no more: told after each epoch.

Tablets are ranges of their table. What was cut in two and has the same replicas as before is no change.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.ring.differences import differences
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import Range, RangeReplicas, range_of, upper_bound
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN
from stele.log.follower import LogFollower


class RangesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Of the data of one keyspace or table, in one epoch; in ring order.

    ``gained``: writes come from now on, and data is about to be streamed. ``serves``: reads come too.
    ``retired``: no more reads. ``lost``: no more writes either; a CLEANUP order deletes what is left.
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
    """Call back for what the node has now, and for each change from now on, in the event loop."""
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
    """What differs for a node between two images; ``before`` None: it had nothing."""
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
    """By data id: whose it is, and where."""
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
    """The ranges that became the node's, and those that were."""
    was = _covered(range_of(row) for row in gone if node_id in of(row))
    now = _covered(range_of(row) for row in came if node_id in of(row))
    return _without(now, was), _without(was, now)


Interval = tuple[int, int]
"""(start, end], with infinity as a number."""


def _covered(ranges: Iterable[Range]) -> list[Interval]:
    """Intervals in order that do not touch."""
    found = list[Interval]()
    for start, end in sorted((each.start, upper_bound(each.end)) for each in ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _without(these: list[Interval], those: list[Interval]) -> tuple[Range, ...]:
    """What is left of the first when the second are taken away; both in order."""
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
