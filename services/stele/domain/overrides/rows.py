"""The rows of a placement put in the place of those that are there: only what differs changes."""

import msgspec

from stele.domain.overrides.draft import Draft
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import RangeReplicas, range_of
from stele.domain.ring.transition import PlacementDelta

replace = msgspec.structs.replace


def place_rows(draft: Draft, name: str, wanted: Placement, version: int) -> bool:
    """Whether anything differs. What comes in is of ``version``, so that no request by an older one counts;
    rows with the same replicas keep theirs.
    """
    before = draft.before.ring.placements.get(name)
    if before is None:
        rows = tuple(_at(row, version) for row in wanted.rows)
        draft.add(*draft.image.ring.creation(name, Placement.of(rows, draft.image.ring.nodes)))
        return True
    there = {range_of(row): row for row in before.rows}
    same = {
        range_of(row)
        for row in wanted.rows
        if range_of(row) in there and _replicas(there[range_of(row)]) == _replicas(row)
    }
    delta = PlacementDelta(
        tuple(each for each in there if each not in same),
        tuple(_at(row, version) for row in wanted.rows if range_of(row) not in same),
    )
    if delta.removed or delta.added:
        draft.add(*draft.image.ring.change(name, delta))
    return bool(delta.removed or delta.added)


def _at(row: RangeReplicas, version: int) -> RangeReplicas:
    return replace(row, version=version, version_before=version)


def _replicas(row: RangeReplicas) -> tuple[object, ...]:
    return row.reads, row.writes, row.other, row.shards, row.other_shards
