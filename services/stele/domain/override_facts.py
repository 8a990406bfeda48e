"""The facts of an override while they are being made, and the image after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context
from stele.domain.facts import AnyFact
from stele.domain.image import Image, without_memory
from stele.domain.model.features import FeaturesEnabled, SettingChanged
from stele.domain.model.membership import Node, NodeChanged, unclaimed
from stele.domain.model.repairs import RepairsForgotten
from stele.domain.model.ring import PlacementDropped
from stele.domain.model.schema import (
    AggregateChanged,
    AggregateDropped,
    Balancing,
    BalancingSwitched,
    FunctionChanged,
    FunctionDropped,
    Keyspace,
    KeyspaceChanged,
    KeyspaceDropped,
    SchemaImage,
    Table,
    TableChanged,
    TableDropped,
    TableSchemaChanged,
    TypeChanged,
    TypeDropped,
)
from stele.domain.model.schema_objects import Aggregate, Function, TableSchema, UserType
from stele.domain.model.settings import KNOWN
from stele.domain.model.table_snapshots import TableRestoreEnded
from stele.domain.model.topology import Versions
from stele.domain.model.transitions import TransitionFinished, VersionsChanged
from stele.domain.names import TABLET_MAP, NodeState, RequestStatus
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import RangeReplicas, range_of
from stele.domain.ring.transition import PlacementDelta
from stele.domain.rules.cdc import abandoned
from stele.domain.rules.requests import ended
from stele.domain.tables import sorted_values

LOST_VERSIONS: Final = 1_000_000
"""More versions than a log can create after its archives' last copy. A version takes at least a
round.
"""


def floor_after(version: int, at_ms: int, lost_epochs: int = 0) -> int:
    """Return the version above which a log begins that continues after ``version``.

    ``at_ms`` is the time in milliseconds since 1970. ``lost_epochs`` is the number of known epochs
    that the log lacks. Another log may also continue from there, sooner or later, without knowing
    of this one. Their versions differ, because a version takes more than a millisecond. They are
    equal only if both continue while the clock is behind their versions.
    """
    known = version + lost_epochs
    return at_ms if at_ms > known else max(known, version + LOST_VERSIONS)


class LoadedFacts:
    """A list of facts and the image after them.

    Later facts depend on earlier ones of the same epoch.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.before = context.image
        # The memory of decided requests can grow on one version only, so a draft has none.
        self.image: Image = without_memory(context.image)
        self.facts: list[AnyFact] = []

    def add(self, *facts: AnyFact) -> None:
        if facts:
            self.image = self.context.fold(self.image, facts)
            self.facts += facts


# The first state of a cluster that begins with a dump, without the old log's own records.


replace = msgspec.structs.replace


def begin(draft: LoadedFacts, target: Image) -> Rejection | None:
    """Add the facts of the first state, and return None.

    Nodes have yet to start, each at the place with its host id. Versions begin above all that the
    old log can have made after the dump, as in a recovery. Data on disks is named by versions.
    """
    epoch = draft.context.epoch
    for node in sorted_values(target.membership.nodes):
        there = node.state is not NodeState.LEFT
        draft.add(
            NodeChanged(
                replace(
                    node,
                    request_id="",
                    # An empty folder with the node's name must not take the place: its replica
                    # would have no rows.
                    host_id=unclaimed(node.host_id or node.node_id) if there else node.host_id,
                    excluded_since=epoch if node.excluded else 0,
                    cleanup_since=epoch if node.cleanup_since else 0,
                )
            )
        )
    schema = target.schema
    draft.add(*(KeyspaceChanged(keyspace) for keyspace in sorted_values(schema.by_id)))
    draft.add(*(TableChanged(table) for table in sorted_values(schema.tables)))
    if schema.balancing.off_since:
        draft.add(BalancingSwitched("", schema.balancing))
    for name in sorted(target.ring.placements):
        draft.add(*draft.image.ring.creation(name, target.ring.placements[name]))
    settings = target.features.settings
    draft.add(*(SettingChanged(name, settings[name]) for name in sorted(settings)))
    if target.features.enabled:
        draft.add(FeaturesEnabled(target.features.enabled))
    # A fresh import has no old log whose versions could come again.
    is_new = target.topology.version == 1
    version = 1 if is_new else floor_after(target.topology.version, draft.context.log_ms)
    draft.add(VersionsChanged(rest_at(version, epoch)))
    return None


def rest_at(version: int, epoch: int) -> Versions:
    """Return versions at rest in this epoch. All nodes that have read it refuse older versions."""
    return Versions(version=version, fence_version=version, since_epoch=epoch, fence_epoch=epoch)


# The replacement of a placement's rows: only rows that differ change.


def place_rows(draft: LoadedFacts, name: str, wanted: Placement, version: int) -> bool:
    """Replace the rows of a placement, and return True if any differs.

    New rows have ``version``, so that no request of an older one counts. Rows with the same
    replicas keep their versions.
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
    # Both versions are the new one, so that every older request on the range is stale.
    return replace(row, version=version, version_before=version)


def _replicas(row: RangeReplicas) -> tuple[object, ...]:
    return row.reads, row.writes, row.other, row.shards, row.other_shards


# Columns, types, functions and aggregates of another state.
#
# They have no data of their own, so they keep their ids. Changed ones get the version of this
# epoch, because nodes know the versions of this log only.


OfKeyspace = TypeVar("OfKeyspace", Aggregate, Function, UserType)
Row = TypeVar("Row", Aggregate, Function, TableSchema, UserType)


class SchemaObjects(msgspec.Struct, frozen=True):
    """The objects of another state by id, with the ids of this log's keyspaces and tables."""

    schemas: dict[str, TableSchema]
    types: dict[str, UserType]
    functions: dict[str, Function]
    aggregates: dict[str, Aggregate]


def wanted_objects(
    before: SchemaImage, target: SchemaImage, ids: Mapping[str, str], epoch: int
) -> SchemaObjects:
    """Return the objects of ``target``; ``ids`` maps its ids of keyspaces and tables to new ones."""
    schemas = (_schema(before, schema, ids) for schema in target.schemas.values())
    return SchemaObjects(
        _versioned(before.schemas, {each.table_id: each for each in schemas}, epoch),
        _versioned(before.types, _moved(target.types, ids), epoch),
        _versioned(before.functions, _moved(target.functions, ids), epoch),
        _versioned(before.aggregates, _moved(target.aggregates, ids), epoch),
    )


def _moved(found: Mapping[str, OfKeyspace], ids: Mapping[str, str]) -> dict[str, OfKeyspace]:
    """Return the objects with the keyspace ids of this log."""
    return {
        id_: replace(each, keyspace_id=ids.get(each.keyspace_id, each.keyspace_id))
        for id_, each in found.items()
    }


def _schema(before: SchemaImage, schema: TableSchema, ids: Mapping[str, str]) -> TableSchema:
    now = before.schemas.get(schema.table_id)
    view = schema.view
    if view is not None:
        base = view.base_table_id
        view = replace(view, base_table_id=ids.get(base, base))
    return replace(
        schema,
        table_id=ids.get(schema.table_id, schema.table_id),
        view=view,
        # Ids of columns that were added since must not be used again: nodes may have their cells.
        next_column_id=max(schema.next_column_id, 0 if now is None else now.next_column_id),
    )


def _versioned(before: Mapping[str, Row], wanted: Mapping[str, Row], epoch: int) -> dict[str, Row]:
    found = dict[str, Row]()
    for id_ in sorted(wanted):
        now, each = before.get(id_), wanted[id_]
        same = now is not None and replace(each, version=now.version) == now
        found[id_] = now if same and now is not None else replace(each, version=epoch)
    return found


def dropped(before: SchemaImage, wanted: SchemaObjects) -> Iterable[AnyFact]:
    """Yield the removal of the other objects. Rows of columns end with their tables."""
    yield from map(AggregateDropped, sorted({*before.aggregates} - {*wanted.aggregates}))
    yield from map(FunctionDropped, sorted({*before.functions} - {*wanted.functions}))
    yield from map(TypeDropped, sorted({*before.types} - {*wanted.types}))


def changed(before: SchemaImage, wanted: SchemaObjects) -> Iterable[AnyFact]:
    """Yield the objects that are new or differ."""
    yield from map(TypeChanged, _differing(before.types, wanted.types))
    yield from map(TableSchemaChanged, _differing(before.schemas, wanted.schemas))
    yield from map(FunctionChanged, _differing(before.functions, wanted.functions))
    yield from map(AggregateChanged, _differing(before.aggregates, wanted.aggregates))


def _differing(before: Mapping[str, Row], wanted: Mapping[str, Row]) -> Iterable[Row]:
    return (each for id_, each in wanted.items() if before.get(id_) != each)


# Keyspaces and tables of another state. Existing ones become as they were there.
#
# Keyspaces and tables that were dropped since come back empty, under new ids.


class Renamed(msgspec.Struct, frozen=True):
    """Keyspaces and tables of another state, by their ids in this log.

    ``ids`` maps old ids to new ones.
    """

    keyspaces: dict[str, Keyspace]
    tables: dict[str, Table]
    balancing: Balancing
    ids: dict[str, str]
    objects: SchemaObjects

    def placement(self, name: str) -> str:
        """Return the name in this log of a placement of the other state."""
        return _placement(name, self.ids)


def renamed(context: Context, target: Image) -> Renamed | Rejection:
    """Return the other state's schema with new ids for all that this log no longer has.

    An old id may still be in use: nodes delete data by it, or have done so.
    """
    before, schema = context.image.schema, target.schema
    ids = {
        **{
            keyspace.keyspace_id: context.unique(f"keyspace {keyspace.name} again")
            for keyspace in schema.by_id.values()
            if keyspace.keyspace_id not in before.by_id
        },
        **{
            table.table_id: context.unique(f"table {schema.full_name(table)} again")
            for table in schema.tables.values()
            if table.table_id not in before.tables
        },
    }
    keyspaces, tables = dict[str, Keyspace](), dict[str, Table]()
    for keyspace in sorted_values(schema.by_id):
        made = _keyspace(before, keyspace, ids)
        keyspaces[made.keyspace_id] = made
    for table in sorted_values(schema.tables):
        remade = _table(before, table, ids)
        tables[remade.table_id] = remade
    objects = wanted_objects(before, schema, ids, context.epoch)
    refused = _check_identities(before, keyspaces, tables, objects)
    return refused or Renamed(keyspaces, tables, schema.balancing, ids, objects)


def _keyspace(before: SchemaImage, keyspace: Keyspace, ids: dict[str, str]) -> Keyspace:
    now = before.by_id.get(keyspace.keyspace_id)
    return replace(
        keyspace,
        keyspace_id=ids.get(keyspace.keyspace_id, keyspace.keyspace_id),
        truncated_version=0 if now is None else now.truncated_version,
        placed_version=0 if now is None else now.placed_version,
        dropped_version=0,
    )


def _table(before: SchemaImage, table: Table, ids: dict[str, str]) -> Table:
    now = before.tables.get(table.table_id)
    return replace(
        table,
        table_id=ids.get(table.table_id, table.table_id),
        keyspace_id=ids.get(table.keyspace_id, table.keyspace_id),
        placement=_placement(table.placement, ids),
        truncated_version=0 if now is None else now.truncated_version,
        dropped_version=0,
    )


def _placement(name: str, ids: dict[str, str]) -> str:
    owner_id = name.removeprefix(TABLET_MAP)
    return f"{TABLET_MAP}{ids[owner_id]}" if owner_id in ids and owner_id != name else name


def _check_identities(
    before: SchemaImage,
    keyspaces: dict[str, Keyspace],
    tables: dict[str, Table],
    objects: SchemaObjects,
) -> Rejection | None:
    """Check that existing keyspaces and tables keep name, kind and map, and stay opaque or not.

    Data on disks is stored by them.
    """
    for keyspace_id in sorted({*keyspaces} & {*before.by_id}):
        old, new = before.by_id[keyspace_id], keyspaces[keyspace_id]
        if (old.name, old.tablets) != (new.name, new.tablets):
            return _other("keyspace", old.name, keyspace_id)
    for table_id in sorted({*tables} & {*before.tables}):
        was, is_ = before.tables[table_id], tables[table_id]
        if (was.name, was.keyspace_id, was.placement) != (is_.name, is_.keyspace_id, is_.placement):
            return _other("table", before.full_name(was), table_id)
        if (table_id in before.schemas) is not (table_id in objects.schemas):
            return _other("table", before.full_name(was), table_id)
    return None


def _other(what: str, name: str, id_: str) -> Rejection:
    return Rejection(
        "another_entity",
        f"{what.capitalize()} {name} ({id_}) would have another name, kind or tablet map.",
        "Give what is new another id, or leave the id out of the file.",
        {"id": id_},
    )


def put_schema(draft: LoadedFacts, wanted: Renamed) -> None:
    """Add the facts of the schema.

    Unwanted tables and keyspaces go first, so that names become free.
    """
    before, version = draft.before.schema, draft.image.topology.version
    draft.add(*dropped(before, wanted.objects))
    for table in sorted_values(before.tables):
        if table.table_id not in wanted.tables:
            draft.add(TableDropped(table.table_id))
            if table.table_id in draft.before.repairs.tables and not table.placement:
                draft.add(RepairsForgotten(table.table_id))
    for keyspace_id in sorted({*before.by_id} - {*wanted.keyspaces}):
        draft.add(KeyspaceDropped(keyspace_id))
    for keyspace_id, keyspace in wanted.keyspaces.items():
        now = before.by_id.get(keyspace_id)
        moved = now is not None and now.placement != keyspace.placement
        made = replace(keyspace, placed_version=version) if moved else keyspace
        if made != now:
            draft.add(KeyspaceChanged(made))
    for table_id, remade in wanted.tables.items():
        if remade != before.tables.get(table_id):
            draft.add(TableChanged(remade))
    draft.add(*changed(before, wanted.objects))
    if before.balancing != wanted.balancing:
        draft.add(BalancingSwitched("", wanted.balancing))


# The facts that replace a state: the parts that are taken over, and those that never go back.
#
# See docs/decisions/031-overrides-only-go-forward.md.


def put_in_place(draft: LoadedFacts, target: Image) -> Rejection | None:
    """Take nodes, keyspaces, tables, placements and settings from ``target``, in a new version.

    Returns None, or a rejection.
    """
    required(_check_nodes(draft.before, target) or _check_features(draft.before, target))
    names = required(renamed(draft.context, target))
    # The version comes first: the rows and keyspaces that follow carry it.
    draft.add(VersionsChanged(rest_at(draft.before.topology.version + 1, draft.context.epoch)))
    _end_what_is_under_way(draft)
    _put_nodes(draft, target)
    put_schema(draft, names)
    _put_placements(draft, target, names)
    _put_settings(draft, target)
    return None


def _check_nodes(before: Image, target: Image) -> Rejection | None:
    for node in sorted_values(target.membership.nodes):
        now = before.node(node.node_id)
        if node.state is NodeState.LEFT:
            continue
        if now is None:
            return Rejection(
                "unknown_node",
                f"The log has never had a node '{node.node_id}'.",
                "A node comes by joining: leave it out, and start it afterwards.",
                {"node": node.node_id},
            )
        if now.state is NodeState.LEFT:
            return Rejection(
                "node_left",
                f"Node '{node.node_id}' has left since, and an id of a node is never used again.",
                "Take a state without it: export one, edit it, and load it.",
                {"node": node.node_id},
            )
    return None


def _check_features(before: Image, target: Image) -> Rejection | None:
    lacking = sorted({*target.features.enabled} - {*before.features.enabled})
    if not lacking:
        return None
    return Rejection(
        "feature_not_enabled",
        f"The state needs {', '.join(lacking)}, which the cluster has not enabled.",
        f"Enable it first: `stele features enable {' '.join(lacking)}`.",
    )


def _end_what_is_under_way(draft: LoadedFacts) -> None:
    """End transitions with their sessions, and all requests except those about the archive.

    The archive stays as it is.
    """
    before, context = draft.before, draft.context
    for each in before.topology.open():
        draft.add(*abandoned(draft.image, each.transition_id))
        draft.add(TransitionFinished(each.transition_id))
    why = f"The state was replaced in epoch {context.epoch}: {context.envelope.reason}"
    for request in before.requests.unfinished():
        # The members of the archive hold files, which an override of the state does not change.
        if not request.reconfigures:
            draft.add(*ended(context, draft.image, request, RequestStatus.FAILED, why))
    draft.add(*(TableRestoreEnded(id_) for id_ in sorted(before.table_snapshots.restores)))
    draft.add(
        *(RepairsForgotten(id_, restricted=True) for id_ in sorted(before.repairs.restricted))
    )


def _put_nodes(draft: LoadedFacts, target: Image) -> None:
    for node in sorted_values(draft.before.membership.nodes):
        wanted = target.node(node.node_id)
        changed = _node(node, wanted)
        if changed != node:
            draft.add(NodeChanged(changed))


def _node(now: Node, wanted: Node | None) -> Node:
    """Return a node with the target's tokens, place and state.

    Its identity, build and exclusion stay. A node that is not in the target has left.
    """
    if now.state is NodeState.LEFT:
        return now
    if wanted is None or wanted.state is NodeState.LEFT:
        return now.gone()
    return replace(
        now,
        dc=wanted.dc,
        rack=wanted.rack,
        num_tokens=wanted.num_tokens,
        tokens=wanted.tokens,
        initial_tokens=wanted.initial_tokens,
        state=wanted.state,
    )


def _put_placements(draft: LoadedFacts, target: Image, names: Renamed) -> None:
    there = draft.before.ring.placements
    placements = {names.placement(n): p for n, p in target.ring.placements.items()}
    version = draft.image.topology.version
    changed = {n for n in sorted(placements) if place_rows(draft, n, placements[n], version)}
    # Repair times describe rows on the replicas that are being replaced.
    for table in draft.before.schema.with_tablets():
        if table.table_id in draft.before.repairs.tables and (
            table.placement in changed or table.placement not in placements
        ):
            draft.add(RepairsForgotten(table.table_id))
    draft.add(*(PlacementDropped(name) for name in sorted({*there} - {*placements})))


def _put_settings(draft: LoadedFacts, target: Image) -> None:
    now, wanted = draft.before.features.settings, target.features.settings
    for name in sorted({*now, *wanted}):
        value = wanted.get(name, "")
        # A setting that is missing in the target is removed by an empty value.
        if now.get(name, "") != value:
            setting = KNOWN.get(name)
            unsafe = bool(value) and setting is not None and setting.is_unsafe(value)
            draft.add(SettingChanged(name, value, unsafe))
