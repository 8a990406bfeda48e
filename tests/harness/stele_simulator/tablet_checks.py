"""Check tablet maps along the log: INV-TABL-2 and INV-TABL-3, and the replicas of each tablet (I7)."""

from collections import Counter
from collections.abc import Mapping

from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.schema import Table, tablet_map
from stele.domain.names import BALANCER, TABLET_MAP
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, RangeReplicas
from stele_simulator.violation import require

Span = tuple[int, int]
"""(start, end], where the end of the ring is one above the last token."""


def span(start: int, end: int) -> Span:
    return start, MAX_TOKEN + 1 if end == MIN_TOKEN else end


def spans_meet(one: Span, two: Span) -> bool:
    return max(one[0], two[0]) < min(one[1], two[1])


def rows_at(
    placement: Placement, node_id: str, shard: int, start: int, end: int
) -> list[RangeReplicas]:
    """Return the rows within (start, end] that give a shard of a node writes."""
    asked = span(start, end)
    return [
        row
        for row in placement.rows
        if (node_id, shard) in places(row) and spans_meet(span(row.start, row.end), asked)
    ]


def replications_of(image: Image, table: Table) -> list[Mapping[str, int]]:
    """Return the replication of the table's keyspace, now and after an open request."""
    mine = [r for r in image.requests.unfinished() if r.keyspace_id == table.keyspace_id]
    asked = [request.replication for request in mine if request.replication]
    return [image.schema.by_id[table.keyspace_id].replication, *asked]


def has_copies(image: Image, table: Table, found: Mapping[str, int]) -> bool:
    """Check the number of replicas: in each dc between these bounds, and in total. With a dead node a change
    may have stopped half way. An operator's request may add replicas.
    """
    ways, nodes = replications_of(image, table), image.membership.nodes.values()
    dead = any(node.excluded_since for node in nodes)
    requests = image.requests.requests.values()
    forced = any(tablet_map(r.table_id) == table.placement and _adds(r) for r in requests)
    if dead:
        return sum(found.values()) > 0
    if sum(found.values()) < min(sum(way.values()) for way in ways):
        return False
    for dc in {*found, *(dc for way in ways for dc in way)}:
        counts = [way.get(dc, 0) for way in ways]
        if found.get(dc, 0) < min(counts) or (found.get(dc, 0) > max(counts) and not forced):
            return False
    return True


def check_tablets(before: Image, after: Image) -> None:
    """Check INV-TABL-2 and I7 (docs/design.md) after one epoch.

    A tablet has at most one transition. It is whole, no node has two of its read replicas, and each dc has
    as many as the keyspace asks for.
    """
    _check_plans(after)
    if after.schema is not before.schema:
        _check_groups(after)
    for table in after.schema.tables.values():
        if table.placement:
            _check_one_transition_each(after, table)
            one = before.ring.placements.get(table.placement)
            moved = after.ring.placements.get(table.placement) is not one
            if moved:
                _check_replicas(after, table)
                if one is not None:
                    _check_resize(before, after, table)
            if moved or before.schema is not after.schema:
                _check_racks(after, table)


def _check_plans(image: Image) -> None:
    """Migrations of a dropped table come to nothing."""
    maps = {table.placement for table in image.schema.tables.values()}
    for transition in image.topology.open():
        moving = {name for name in transition.plans if name.startswith(TABLET_MAP)}
        require(
            moving <= maps,
            "INV-TABL-2",
            "tablets move of tables that there are",
            f"at epoch {image.epoch} {transition.transition_id} is about {sorted(moving - maps)}",
        )


def _check_groups(image: Image) -> None:
    """The table whose tablets another one has too is there, has them itself, and is of the same keyspace."""
    tables = image.schema.tables
    for table in tables.values():
        if not table.placement or table.placement == tablet_map(table.table_id):
            continue
        base = tables.get(table.placement.removeprefix(TABLET_MAP))
        require(
            base is not None
            and base.placement == table.placement
            and base.keyspace_id == table.keyspace_id
            and table.placement in image.ring.placements,
            "INV-TABL-3",
            f"{table.name} is co-located with a table that is there, and has a map",
            f"at epoch {image.epoch} it has {table.placement}",
        )


def _check_one_transition_each(image: Image, table: Table) -> None:
    moving = [
        (span(row.start, row.end), transition.transition_id)
        for transition in image.topology.open()
        if table.placement in transition.plans
        for row in transition.plans[table.placement].rows
    ]
    for at, (one, first) in enumerate(moving):
        others = [other for two, other in moving[at + 1 :] if spans_meet(one, two)]
        require(
            not others,
            "INV-TABL-2",
            f"tablet {one} of {table.name} has one transition at a time",
            f"at epoch {image.epoch} it is in {first} and in {others}",
        )


def _check_resize(before: Image, after: Image, table: Table) -> None:
    """A map of another size has each token where it was, and no tablet moves meanwhile."""
    one, two = (image.ring.placements[table.placement] for image in (before, after))
    if len(one) == len(two):
        return
    for end in sorted({row.end for row in (*one.rows, *two.rows)}):
        was, now = one.row_for(end), two.row_for(end)
        require(
            {*was.reads} == {*was.writes} == {*now.reads} == {*now.writes}
            and places(was) == places(now),
            "INV-TABL-2",
            f"a resize of {table.name} has token {end} where it was, {was.reads}, {places(was)}",
            f"epoch {after.epoch} has it on {now.reads} and {now.writes}, {places(now)}",
        )
    moving = [t for t in after.topology.open() if table.placement in t.plans]
    require(
        not moving,
        "INV-TABL-2",
        f"no tablet of {table.name} moves while it is resized",
        f"at epoch {after.epoch} do {[t.transition_id for t in moving]}",
    )


def _check_replicas(image: Image, table: Table) -> None:
    nodes = image.membership.nodes
    ways = replications_of(image, table)
    for row in image.ring.placements[table.placement].rows:
        found = Counter(nodes[name].dc for name in row.reads)
        require(
            has_copies(image, table, found) and len({*row.reads}) == len(row.reads),
            "I7",
            f"({row.start}, {row.end}] of {table.name} is read from {' to '.join(map(str, ways))}, no node"
            " twice",
            f"epoch {image.epoch} has it read from {row.reads}",
        )
        require(
            {*row.reads} <= {*row.writes} and len({*row.writes}) == len(row.writes),
            "I4",
            "who is read from is written to",
            f"({row.start}, {row.end}] of {table.name}: {row.reads} and {row.writes}",
        )
        _check_shards(image, table, row)


def _check_shards(image: Image, table: Table, row: RangeReplicas) -> None:
    """Each replica is on one shard, which its node has, but while it goes from one to another."""
    nodes, found = image.membership.nodes, places(row)
    require(
        all(0 <= shard < nodes[node].shards for node, shard in found),
        "shards exist",
        f"({row.start}, {row.end}] of {table.name} is on shards that its nodes have",
        f"at epoch {image.epoch} it is on {sorted(found)}",
    )
    moving = [
        one
        for transition in image.topology.open()
        if table.placement in transition.plans
        for one in transition.plans[table.placement].rows
        if (one.start, one.end) == (row.start, row.end)
    ]
    require(
        len(found) == len(row.writes) or len(moving) == 1,
        "one shard of a node",
        f"({row.start}, {row.end}] of {table.name} is on one shard of each node, unless it moves",
        f"at epoch {image.epoch} it is on {sorted(found)}",
    )


def places(row: RangeReplicas) -> set[tuple[str, int]]:
    """Nodes and shards that receive writes, read off the columns."""
    shards = row.shards or (0,) * len(row.writes)
    return {*zip(row.writes, shards, strict=True), *zip(row.writes, row.other_shards, strict=False)}


def _check_racks(image: Image, table: Table) -> None:
    """Check racks: where a keyspace lists the racks of a dc, each of them has one replica of each tablet and
    no other rack has any, except during a change. With a dead node a change may have stopped half way.
    """
    keyspace, nodes = image.schema.by_id[table.keyspace_id], image.membership.nodes
    changes = [r for r in image.requests.unfinished() if r.keyspace_id == table.keyspace_id]
    dead = any(node.excluded_since for node in nodes.values())
    if dead or not keyspace.racks or any(request.replication for request in changes):
        return
    for row in image.ring.placements[table.placement].rows:
        for dc, racks in keyspace.racks.items():
            found = sorted(nodes[name].rack for name in row.reads if nodes[name].dc == dc)
            require(
                found == sorted(racks),
                "I7",
                f"({row.start}, {row.end}] of {table.name} has one replica in each of {dc}'s {sorted(racks)}",
                f"epoch {image.epoch} has it read from {row.reads}, in {found}",
            )


def _adds(request: Request) -> bool:
    """A person asked for one replica more."""
    return bool(request.to_node) and not request.from_node and request.actor != BALANCER
