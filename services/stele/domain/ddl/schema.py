"""The schema in the registry: its folds and views, and its balancing switches."""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import lru_cache
from typing import Any, Final, NamedTuple, get_args

import msgspec
from immutables import Map

from stele.domain.base import Fact, Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.ddl.alter import alter_schema
from stele.domain.ddl.keyspaces import create_keyspace
from stele.domain.ddl.tables import alter_table, create_table
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.schema import (
    AggregateChanged,
    AggregateDropped,
    AlterSchema,
    AlterTable,
    Balancing,
    BalancingSwitched,
    CreateKeyspace,
    CreateTable,
    FunctionChanged,
    FunctionDropped,
    KeyspaceChanged,
    KeyspaceDropped,
    Off,
    SchemaFact,
    SchemaImage,
    SchemaVersioned,
    SwitchBalancingOff,
    SwitchBalancingOn,
    Table,
    TableChanged,
    TableDropped,
    TableSchemaChanged,
    TypeChanged,
    TypeDropped,
)
from stele.domain.model.schema_objects import (
    Aggregate,
    Column,
    Function,
    SchemaVersion,
    TableSchema,
)
from stele.domain.names import BALANCER, RequestStatus
from stele.domain.registry_entry import Domain
from stele.domain.rules.schema import (
    Drops,
    accepted_drops,
    gives_all_away,
    off_for,
    standing_keyspace,
    standing_table,
)
from stele.domain.tables import Json, sorted_values
from stele.domain.tablets.copies import is_required
from stele.domain.topology.requests import end_untouched

replace = msgspec.structs.replace

# Decisions that switch balancing off and on, for the cluster, a keyspace or a table.
#
# The log is one sequence, so no request begins by an older view. The epoch that switches off
# cancels the balancer's requests that have not begun. Its later requests are refused
# (``rules.schema.check_balancing``).


MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999. Clocks do not show later times."""


class Scope(NamedTuple):
    """The object of a switch: its id, empty for the cluster, and the tables that it covers.

    ``wider`` are the switches around it that are off, and those of tables that are co-located with
    it.
    """

    of: str
    balancing: Balancing
    tables: frozenset[str]
    wider: tuple[Off, ...] = ()


def switch_balancing_off(context: Context, command: SwitchBalancingOff) -> Decision:
    """Switch balancing off. If it is off already, the new times replace the old ones."""
    scope = required(_scope(context, command.name))
    required(_check_times(command))
    switched = Balancing(
        off_since=context.epoch,
        until_ms=command.until_ms,
        abort_at_ms=command.abort_at_ms,
        actor=context.envelope.actor,
        reason=context.envelope.reason,
    )
    why = f"{Off(command.name, switched).words()} since epoch {context.epoch}"
    # The same epoch cancels these requests, so no move begins after the command has returned.
    waiting = _not_begun(context.image, scope.tables)
    ended = end_untouched(context, waiting, RequestStatus.CANCELLED, why)
    return BalancingSwitched(scope.of, switched), *ended


def switch_balancing_on(context: Context, command: SwitchBalancingOn) -> Decision:
    """Switch balancing on. Without effect if it is on already."""
    scope = required(_scope(context, command.name))
    off_since = scope.balancing.off_since
    # The balancer ends an expired switch by its epoch. A later switch must not end with it.
    if command.off_since not in (0, off_since):
        return Rejection(
            "switched_meanwhile",
            f"The switch of epoch {command.off_since} is not in force any more.",
            "`stele balance status` shows which ones are.",
            {"off_since": str(off_since)},
        )
    if off_since:
        return (BalancingSwitched(scope.of, Balancing()),)
    # Success would be misleading here, because the wider switch still holds these tablets.
    if scope.wider:
        off = scope.wider[0]
        return Rejection(
            "balancing_off",
            f"Balancing of {command.name} is not off by itself: {off.words()}.",
            f"{off.remedy()} switches that on.",
            {"name": off.name, "off_since": str(off.balancing.off_since)},
        )
    return ()


def _scope(context: Context, name: str) -> Scope | Rejection:
    image, schema = context.image, context.image.schema
    if not name:
        return Scope("", schema.balancing, frozenset(t.table_id for t in schema.with_tablets()))
    drops = accepted_drops(image, context.envelope.actor)
    if "." in name:
        return _table_scope(image, name, drops)
    keyspace = required(standing_keyspace(image, name, drops))
    if not keyspace.tablets:
        return _not_balanced(f"Keyspace {name}")
    tables = frozenset(table.table_id for table in schema.tables_of(keyspace))
    wider = (Off("", schema.balancing),) if schema.balancing.off_since else ()
    return Scope(keyspace.keyspace_id, keyspace.balancing, tables, wider)


def _table_scope(image: Image, name: str, drops: Drops) -> Scope | Rejection:
    schema = image.schema
    table = required(standing_table(image, name, drops))
    if not table.placement:
        return _not_balanced(f"Table {name}")
    wider = tuple(off for off in off_for(schema, table) if off.name != name)
    owner = schema.map_owner(table)  # requests on its tablets name the owner
    return Scope(table.table_id, table.balancing, frozenset({owner.table_id}), wider)


def _not_balanced(what: str) -> Rejection:
    return Rejection(
        "no_tablets",
        f"{what} has no tablets: it is spread over the ring, and never balanced.",
        "`stele table list` shows which tables have some.",
    )


def _check_times(command: SwitchBalancingOff) -> Rejection | None:
    until_ms, abort_at_ms = command.until_ms, command.abort_at_ms
    if not (0 <= until_ms <= MAX_MS and 0 <= abort_at_ms <= MAX_MS):
        return Rejection(
            "bad_time",
            "until_ms and abort_at_ms are milliseconds since 1970.",
            "Or 0: it has no limit, and what is under way finishes.",
        )
    # An expired switch cancels nothing, so this cancellation would never happen.
    if 0 < until_ms <= abort_at_ms:
        return Rejection(
            "bad_time",
            "Balancing would be on again before what is under way is cancelled.",
            "Switch it off for longer, or cancel earlier.",
        )
    return None


def _not_begun(image: Image, tables: frozenset[str]) -> list[Request]:
    """Return the balancer's pending requests that a switch cancels.

    These are not moves that empty nodes, moves for a change of replication, repairs or restores.
    """
    pending, tables_of = image.requests.pending(), image.schema.tables
    own = [r for r in pending if r.actor == BALANCER and r.table_id in tables]
    own = [r for r in own if not r.stays_in_place]
    nodes = {request.from_node for request in own} - {""}
    emptied = {node_id for node_id in nodes if gives_all_away(image, node_id)}
    return [
        request
        for request in own
        if request.from_node not in emptied
        and not is_required(image, tables_of[request.table_id], request)
    ]


SCHEMA_OBJECTS: Final = "schema_objects"
"""The feature that a reader needs for columns, types, functions, aggregates and versions."""

CHANGES_SCHEMA: Final = frozenset(get_args(SchemaFact)) - {BalancingSwitched, SchemaVersioned}
"""Facts that give the schema a new version."""


def stamped(
    schema: SchemaImage, epoch: Epoch, facts: Iterable[Fact], enabled: Set[str]
) -> SchemaImage:
    """Return the schema after ``epoch`` with its version, if one of its facts changed the schema.

    ``facts`` are all facts of the epoch, ``enabled`` the features that are enabled after it. The
    state id is not known when a command is decided, so no fact can carry it.
    """
    # Older builds do not keep versions. They would compute another hash.
    if SCHEMA_OBJECTS not in enabled or not any(type(fact) in CHANGES_SCHEMA for fact in facts):
        return schema
    return msgspec.structs.replace(schema, version=SchemaVersion(epoch.epoch, epoch.state_id.hex()))


# The domain of keyspaces and tables for the registry.


def keyspace_changed(image: SchemaImage, fact: KeyspaceChanged) -> SchemaImage:
    keyspace = fact.keyspace
    return replace(
        image,
        by_id=image.by_id.set(keyspace.keyspace_id, keyspace),
        ids=image.ids.set(keyspace.name, keyspace.keyspace_id),
    )


def keyspace_dropped(image: SchemaImage, fact: KeyspaceDropped) -> SchemaImage:
    name = image.by_id[fact.keyspace_id].name
    return replace(image, by_id=image.by_id.delete(fact.keyspace_id), ids=image.ids.delete(name))


def table_changed(image: SchemaImage, fact: TableChanged) -> SchemaImage:
    table = fact.table
    known = image.colocated.get(table.base_table_id, ())
    return replace(
        image,
        tables=image.tables.set(table.table_id, table),
        table_ids=image.table_ids.set(image.full_name(table), table.table_id),
        colocated=_colocated(image, table, {*known, table.table_id}),
    )


def table_dropped(image: SchemaImage, fact: TableDropped) -> SchemaImage:
    table = image.tables[fact.table_id]
    known = image.colocated.get(table.base_table_id, ())
    return replace(
        image,
        tables=image.tables.delete(fact.table_id),
        table_ids=image.table_ids.delete(image.full_name(table)),
        colocated=_colocated(image, table, {*known} - {table.table_id}),
        **_indexed(image, table, image.schemas.get(table.table_id), None),
    )


def table_schema_changed(image: SchemaImage, fact: TableSchemaChanged) -> SchemaImage:
    table, before = image.tables[fact.schema.table_id], image.schemas.get(fact.schema.table_id)
    columns = tuple(map(_shared, fact.schema.columns))
    after = replace(fact.schema, table_id=table.table_id, columns=columns)
    return replace(image, **_indexed(image, table, before, after))


@lru_cache(maxsize=4096)
def _shared(column: Column) -> Column:
    """Return one object for equal columns: most of many tables have columns such as ``id``."""
    return column


def _indexed(
    image: SchemaImage, table: Table, before: TableSchema | None, after: TableSchema | None
) -> dict[str, Map[str, Any]]:
    """Return the changed maps when a table's schema changes; None is no schema."""
    changed: dict[str, Map[str, Any]] = {}
    if after is not None:
        changed["schemas"] = image.schemas.set(table.table_id, after)
    elif before is not None:
        changed["schemas"] = image.schemas.delete(table.table_id)
    keyspace = image.by_id[table.keyspace_id].name
    old, new = (
        {f"{keyspace}.{index.name}" for index in (each.indexes if each else ())}
        for each in (before, after)
    )
    if old != new:
        tables = image.index_tables
        for name in old - new:
            tables = tables.delete(name)
        for name in new - old:
            tables = tables.set(name, table.table_id)
        changed["index_tables"] = tables
    view = next((each.view for each in (after, before) if each and each.view), None)
    if view is not None and (before is None) is not (after is None):
        base = view.base_table_id
        ids = {*image.views.get(base, ())} ^ {table.table_id}
        views = image.views
        changed["views"] = views.set(base, tuple(sorted(ids))) if ids else views.delete(base)
    return changed


def type_changed(image: SchemaImage, fact: TypeChanged) -> SchemaImage:
    changed = fact.user_type
    return replace(
        image,
        types=image.types.set(changed.type_id, changed),
        type_ids=image.type_ids.set(image.full_type_name(changed), changed.type_id),
    )


def type_dropped(image: SchemaImage, fact: TypeDropped) -> SchemaImage:
    name = image.full_type_name(image.types[fact.type_id])
    return replace(
        image, types=image.types.delete(fact.type_id), type_ids=image.type_ids.delete(name)
    )


def function_changed(image: SchemaImage, fact: FunctionChanged) -> SchemaImage:
    function = fact.function
    return replace(
        image,
        functions=image.functions.set(function.function_id, function),
        routine_ids=_with_routine(image, function, function.function_id),
    )


def function_dropped(image: SchemaImage, fact: FunctionDropped) -> SchemaImage:
    name = image.routine_name(image.functions[fact.function_id])
    return replace(
        image,
        functions=image.functions.delete(fact.function_id),
        routine_ids=image.routine_ids.delete(name),
    )


def aggregate_changed(image: SchemaImage, fact: AggregateChanged) -> SchemaImage:
    aggregate = fact.aggregate
    return replace(
        image,
        aggregates=image.aggregates.set(aggregate.aggregate_id, aggregate),
        routine_ids=_with_routine(image, aggregate, aggregate.aggregate_id),
    )


def aggregate_dropped(image: SchemaImage, fact: AggregateDropped) -> SchemaImage:
    name = image.routine_name(image.aggregates[fact.aggregate_id])
    return replace(
        image,
        aggregates=image.aggregates.delete(fact.aggregate_id),
        routine_ids=image.routine_ids.delete(name),
    )


def _with_routine(image: SchemaImage, routine: Function | Aggregate, id_: str) -> Map[str, str]:
    return image.routine_ids.set(image.routine_name(routine), id_)


def schema_versioned(image: SchemaImage, fact: SchemaVersioned) -> SchemaImage:
    return replace(image, version=fact.version)


def _colocated(image: SchemaImage, table: Table, ids: set[str]) -> Map[str, tuple[str, ...]]:
    """Return the index with these ids under the table's base.

    A base without co-located tables has no entry.
    """
    base = table.base_table_id
    if not base:
        return image.colocated
    # An image is equal to its rebuilt snapshot only if empty entries are left out and ids are
    # sorted.
    return image.colocated.set(base, tuple(sorted(ids))) if ids else image.colocated.delete(base)


def balancing_switched(image: SchemaImage, fact: BalancingSwitched) -> SchemaImage:
    # An empty id is the cluster's switch. Ids of keyspaces and tables never coincide.
    if not fact.of:
        return replace(image, balancing=fact.balancing)
    keyspace = image.by_id.get(fact.of)
    if keyspace is not None:
        return replace(
            image, by_id=image.by_id.set(fact.of, replace(keyspace, balancing=fact.balancing))
        )
    table = replace(image.tables[fact.of], balancing=fact.balancing)
    return replace(image, tables=image.tables.set(fact.of, table))


def to_facts(image: SchemaImage) -> Iterable[SchemaFact]:
    """Yield all facts of the schema. The switches of keyspaces and tables are in their rows."""
    if image.balancing != Balancing():
        yield BalancingSwitched("", image.balancing)
    # Keyspaces come before tables, because a table's full name needs its keyspace.
    yield from (KeyspaceChanged(keyspace) for keyspace in sorted_values(image.by_id))
    yield from (TableChanged(table) for table in sorted_values(image.tables))
    yield from map(TypeChanged, sorted_values(image.types))
    yield from map(TableSchemaChanged, sorted_values(image.schemas))
    yield from map(FunctionChanged, sorted_values(image.functions))
    yield from map(AggregateChanged, sorted_values(image.aggregates))
    if image.version != SchemaVersion():
        yield SchemaVersioned(image.version)


def rows(image: SchemaImage) -> Json:
    return {
        "balancing": image.balancing,
        "keyspaces": image.by_id,
        "tables": image.tables,
        "schema_version": image.version,
        "table_schemas": image.schemas,
        "types": image.types,
        "functions": image.functions,
        "aggregates": image.aggregates,
    }


def view(image: SchemaImage) -> Json:
    """Return the objects of the schema in the order of their names."""
    return {
        **rows(image),
        "keyspaces": tuple(sorted(image.by_id.values(), key=lambda k: k.name)),
        "tables": tuple(sorted(image.tables.values(), key=image.full_name)),
        "table_schemas": tuple(sorted_values(image.schemas)),
        "types": tuple(sorted(image.types.values(), key=image.full_type_name)),
        "functions": tuple(sorted(image.functions.values(), key=image.routine_name)),
        "aggregates": tuple(sorted(image.aggregates.values(), key=image.routine_name)),
    }


DOMAIN = Domain(
    name="schema",
    empty=SchemaImage(),
    decide={
        CreateKeyspace: create_keyspace,
        CreateTable: create_table,
        AlterTable: alter_table,
        AlterSchema: alter_schema,
        SwitchBalancingOff: switch_balancing_off,
        SwitchBalancingOn: switch_balancing_on,
    },
    apply={
        KeyspaceChanged: keyspace_changed,
        KeyspaceDropped: keyspace_dropped,
        TableChanged: table_changed,
        TableDropped: table_dropped,
        BalancingSwitched: balancing_switched,
        TableSchemaChanged: table_schema_changed,
        TypeChanged: type_changed,
        TypeDropped: type_dropped,
        FunctionChanged: function_changed,
        FunctionDropped: function_dropped,
        AggregateChanged: aggregate_changed,
        AggregateDropped: aggregate_dropped,
        SchemaVersioned: schema_versioned,
    },
    features=dict.fromkeys(
        (
            *(TableSchemaChanged, TypeChanged, TypeDropped, FunctionChanged, FunctionDropped),
            *(AggregateChanged, AggregateDropped, SchemaVersioned),
        ),
        SCHEMA_OBJECTS,
    ),
    to_facts=to_facts,
    rows=rows,
    view=view,
)
