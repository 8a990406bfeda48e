"""What metadata-log answers, as images, and how an image moves on by it: pure functions."""

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec
from immutables import Map

from stele.domain.cluster.facts import ClusterImage
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.membership.facts import Node
from stele.domain.membership.image import MembershipImage
from stele.domain.ring.image import RingImage
from stele.domain.ring.placement import Placement, apply
from stele.domain.ring.ranges import RangeReplicas, range_of
from stele.domain.schema.facts import Keyspace, SchemaImage, Table
from stele.domain.tables import row_json
from stele.domain.topology.heads import Versions
from stele.domain.topology.image import TopologyImage

Json = dict[str, Any]
R = TypeVar("R", bound=msgspec.Struct)
replace = msgspec.structs.replace

ROUTED_BY: Final = frozenset(("topology", "nodes", "keyspaces", "tables", "placements"))
"""Sections of the state that say where a key is. What changes others only moves the epoch on."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The part of ``/v1/state`` that routes."""

    epoch: int
    state_id: str
    cluster: str
    cluster_id: str
    log_id: str
    topology: Versions
    nodes: tuple[Node, ...]
    keyspaces: tuple[Keyspace, ...]
    tables: tuple[Table, ...]
    placements: dict[str, tuple[RangeReplicas, ...]]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An event of ``/v1/changes``: one epoch, and the sections that it touches."""

    epoch: int
    state_id: str
    changes: dict[str, msgspec.Raw]

    @property
    def routes(self) -> bool:
        """Whether it may have moved a key."""
        return not ROUTED_BY.isdisjoint(self.changes)


def image_of(state: State) -> Image:
    """The image as far as routing needs it; the other domains are empty."""
    return replace(
        EMPTY_FOR_FOLLOWERS,
        epoch=state.epoch,
        state_id=bytes.fromhex(state.state_id),
        founding=ClusterImage(
            name=state.cluster, cluster_id=state.cluster_id, log_id=bytes.fromhex(state.log_id)
        ),
        membership=MembershipImage(Map({node.node_id: node for node in state.nodes})),
        schema=_schema(state.keyspaces, state.tables),
        ring=RingImage(
            placements=Map({n: Placement.of(rows) for n, rows in state.placements.items()})
        ),
        topology=_topology(EMPTY_FOR_FOLLOWERS.topology, state.topology),
    )


def moved_on(image: Image, change: Change) -> Image:
    """The image at the epoch of a change that moves no key."""
    return replace(image, epoch=change.epoch, state_id=bytes.fromhex(change.state_id))


def with_diff(image: Image, diff: Json, to: Change) -> Image:
    """The image at the epoch ``to``, which ``diff`` leads to from this one. What this build does not know in it
    is ignored; one of another shape, or that does not fit, raises whatever it meets.
    """
    schema = image.schema
    keyspaces = _rows({**schema.by_id}, diff["keyspaces"], "keyspace_id", Keyspace)
    tables = _rows({**schema.tables}, diff["tables"], "table_id", Table)
    nodes = _rows({**image.membership.nodes}, diff["nodes"], "node_id", Node)
    versions = {n: getattr(image.topology, n) for n in Versions.__struct_fields__}
    versions |= {n: change["after"] for n, change in diff["topology"].items()}
    changed = replace(
        image,
        membership=MembershipImage(Map(nodes)),
        topology=_topology(image.topology, msgspec.convert(versions, Versions)),
    )
    if diff["keyspaces"] != _NOTHING or diff["tables"] != _NOTHING:
        changed = replace(changed, schema=_schema(keyspaces.values(), tables.values()))
    if diff["placements"]:
        changed = replace(changed, ring=_ring(image.ring, diff["placements"]))
    return moved_on(changed, to)


_NOTHING: Final[Json] = {"added": [], "removed": [], "changed": []}


def _ring(ring: RingImage, diff: Json) -> RingImage:
    placements = ring.placements
    for name, rows in diff.items():
        added = msgspec.convert(rows["added"], list[RangeReplicas])
        removed = msgspec.convert(rows["removed"], list[RangeReplicas])
        if not added:
            placements = placements.delete(name)
        elif name in placements:
            gone = [range_of(row) for row in removed]
            placements = placements.set(name, apply(placements[name], gone, added))
        else:
            placements = placements.set(name, Placement.of(added))
    return RingImage(placements=placements)


def _rows(known: dict[str, R], diff: Json, key: str, kind: type[R]) -> dict[str, R]:
    for row in diff["removed"]:
        del known[row[key]]
    for row in diff["added"]:
        known[row[key]] = msgspec.convert(row, kind)
    for row in diff["changed"]:
        fields = {name: change["after"] for name, change in row["fields"].items()}
        known[row[key]] = msgspec.convert({**row_json(known[row[key]]), **fields}, kind)
    return known


def _schema(keyspaces: Iterable[Keyspace], tables: Iterable[Table]) -> SchemaImage:
    by_id = {keyspace.keyspace_id: keyspace for keyspace in keyspaces}
    of_tables = {table.table_id: table for table in tables}
    return SchemaImage(
        by_id=Map(by_id),
        ids=Map({keyspace.name: each for each, keyspace in by_id.items()}),
        tables=Map(of_tables),
        table_ids=Map(
            {f"{by_id[t.keyspace_id].name}.{t.name}": each for each, t in of_tables.items()}
        ),
    )


def _topology(topology: TopologyImage, versions: Versions) -> TopologyImage:
    return replace(topology, **row_json(versions))
