"""Rows of images side by side: which ranges a version changed, from which replicas to which.

Placements are compared for a keyspace's data, never by their own names: a placement that was dropped and made
again under its name is another, and data that was truncated is gone like that of a dropped keyspace.
"""

from collections.abc import Iterable, Set

import msgspec

from stele.domain.image import Image
from stele.domain.model.schema import Data
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import Range, RangeReplicas, contains, range_of
from stele_simulator.quorum_sets import Sides, quorums_meet

__all__ = ["Change", "Range", "Sides", "range_of"]


def holds_back(passed: Set[str], replicas: Set[str]) -> bool:
    """I5: without those who ``passed`` these replicas acknowledge nothing."""
    return len(replicas - passed) < majority(len(replicas))


def majority(count: int) -> int:
    return count // 2 + 1


def sides(row: RangeReplicas) -> Sides:
    return row.reads, row.writes, row.other


def is_as(one: RangeReplicas, two: RangeReplicas) -> bool:
    """Both are read and written at the same places."""
    places = ((row.shards, row.other_shards) for row in (one, two))
    return sides(one) == sides(two) and len({*places}) == 1


class Change(msgspec.Struct, frozen=True):
    """A range of a keyspace's data, by its last token, that has other replicas; ``after`` None: it is gone."""

    data_id: str
    token: int
    before: Sides
    after: Sides | None

    def replica_sets(self) -> list[set[str]]:
        """Readers before, readers after, and all who are written to. Without its readers a dropped row does
        nothing.
        """
        if self.after is None:
            return [set(self.before[0])] if self.before[0] else []
        found = [set(self.before[0]), set(self.after[0]), {*self.before[1], *self.after[1]}]
        return [replicas for replicas in found if replicas]


def data_ids(image: Image) -> list[str]:
    """Return the ids of all keyspaces, including those being dropped, sorted."""
    return sorted(data.data_id for data in image.schema.all_data())


def placement_of(image: Image, data_id: str) -> Placement | None:
    """The placement that serves a keyspace's data; None when it does not exist or is being dropped."""
    keyspace = image.schema.of_data(data_id)
    if keyspace is None or keyspace.dropped_version:
        return None
    return image.ring.placements[keyspace.placement]


def keyspace_of(image: Image, data_id: str) -> Data:
    """Return the keyspace of this data."""
    data = image.schema.of_data(data_id)
    assert data is not None, f"nothing has the data {data_id}"
    return data


def row_of(image: Image, data_id: str, token: int) -> Sides | None:
    placement = placement_of(image, data_id)
    return None if placement is None else sides(placement.row_for(token))


def changes(before: Image, after: Image) -> Iterable[Change]:
    """Every range that has other replicas in ``after``, once for each placement that it belongs to."""
    seen = set[tuple[int, int]]()
    for data_id in data_ids(before):
        one = placement_of(before, data_id)
        if one is None:
            continue
        two = placement_of(after, data_id)
        if (id(one), id(two)) in seen or one is two:
            continue
        seen.add((id(one), id(two)))
        ends = {row.end for row in one.rows} | ({row.end for row in two.rows} if two else set())
        for end in sorted(ends):
            old = sides(one.row_for(end))
            new = sides(two.row_for(end)) if two else None
            if old != new:
                yield Change(data_id, end, old, new)


def shared(before: Image, after: Image) -> dict[str, tuple[Placement, Placement]]:
    """The placements of keyspaces in both images, each pair once, by the id of the data of one of them."""
    found: dict[tuple[int, int], tuple[str, tuple[Placement, Placement]]] = {}
    for data_id in data_ids(before):
        one, two = placement_of(before, data_id), placement_of(after, data_id)
        if one is not None and two is not None:
            found[id(one), id(two)] = data_id, (one, two)
    return dict(found.values())


def goes_back(earlier: Sides | None, change: Change) -> bool:
    """A step back to the row at rest that was there before, from one that was read from the same nodes."""
    after = change.after
    if after is None or after != earlier:
        return False
    return after[0] == after[1] and change.before[0] == after[0]


def will_go_back(image: Image, change: Change) -> bool:
    """A range of a marked transition, whose reads have not moved, or are to turn round while both sides get
    all writes: its old readers have every write.
    """
    if change.after is None:
        return False
    name = keyspace_of(image, change.data_id).placement
    plans = [t.plans[name] for t in image.topology.open() if t.mark and name in t.plans]
    rows = [row for plan in plans for row in plan.rows]
    its = [row for row in rows if contains(Range(row.start, row.end), change.token)]
    if change.before[0] == change.after[0]:
        return bool(its)
    both = {*change.before[1]} == {*change.after[1]}
    return any(both and row.new == change.after[0] for row in its)


def meet(one: Sides, two: Sides) -> bool:
    """Whatever is written by one row, every quorum read by the other meets."""
    return quorums_meet(one, two) and quorums_meet(two, one)
