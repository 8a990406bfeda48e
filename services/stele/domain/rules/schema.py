"""Checks of the schema that changes and operations share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from stele.domain.base import Rejected, Rejection, required
from stele.domain.context import Context, bad_name, unknown_keyspace, unknown_table
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.schema import (
    AggregateDropped,
    ColumnDefinition,
    FunctionDropped,
    Keyspace,
    Off,
    Replication,
    SchemaFact,
    SchemaImage,
    Table,
    TypeDropped,
)
from stele.domain.model.schema_objects import (
    Aggregate,
    ClusteringOrder,
    Column,
    ColumnKind,
    CqlType,
    Function,
    TableSchema,
    TypeTextError,
    UserType,
    check_size,
    parse_argument,
    parse_type,
)
from stele.domain.model.settings import ENFORCE_RACK_LIST, ON
from stele.domain.names import BALANCER, JOINING, RequestStatus
from stele.domain.rules.table_parameters import DEFAULT_TTL

# Keyspaces and tables that no accepted drop names, whether it has begun or not.
#
# A command that names a keyspace or table is refused once a drop of it is accepted. The drop
# would also remove whatever the command adds.


Drops = Mapping[str, Request]
"""The requests that drop an object, by the id of the keyspace or table."""


def accepted_drops(image: Image, actor: str = "") -> Drops:
    """Return the drops that count for a command of ``actor``.

    For the balancer only drops that have begun count. The balancer continues with the tablets of a
    table whose drop may still be cancelled. It would otherwise be refused repeatedly until the drop
    begins.
    """
    found = (r for r in image.requests.unfinished_by_id.values() if r.drops)
    return {
        drop.table_id or drop.keyspace_id: drop
        for drop in found
        if actor != BALANCER or drop.status is not RequestStatus.PENDING
    }


def standing_keyspace(image: Image, name: str, drops: Drops | None = None) -> Keyspace | Rejection:
    """Return the keyspace of this name, or the reason for which it cannot be used."""
    keyspace = image.schema.named(name)
    if keyspace is None:
        return unknown_keyspace(name)
    drops = accepted_drops(image) if drops is None else drops
    return check_keyspace_stands(keyspace, drops) or keyspace


def standing_table(image: Image, name: str, drops: Drops | None = None) -> Table | Rejection:
    """Return the table of this name, or the reason for which it cannot be used."""
    table = image.schema.table_named(name)
    if table is None:
        return unknown_table(name)
    drops = accepted_drops(image) if drops is None else drops
    return check_table_stands(image, table, drops) or table


def standing_map_owner(image: Image, name: str, drops: Drops | None = None) -> Table | Rejection:
    """Return the owner of the tablet map of the table of this name, or why it cannot be used."""
    table = standing_table(image, name, drops)
    if isinstance(table, Rejection):
        return table
    return image.schema.standing_map_owner(name) or unknown_table(name)


def check_keyspace_stands(keyspace: Keyspace, drops: Drops) -> Rejection | None:
    drop = drops.get(keyspace.keyspace_id)
    return None if drop is None else _being_dropped("keyspace", keyspace.name, drop)


def check_table_stands(image: Image, table: Table, drops: Drops) -> Rejection | None:
    """Refuse a table that is being dropped, alone or with its keyspace."""
    refused = check_keyspace_stands(image.schema.by_id[table.keyspace_id], drops)
    drop = drops.get(table.table_id)
    if refused is not None or drop is None:
        return refused
    return _being_dropped("table", image.schema.full_name(table), drop)


def _being_dropped(what: str, name: str, drop: Request) -> Rejection:
    request_id = drop.request_id
    hint = f"Wait until that is done: `stele request follow {request_id}`. Then the name is free."
    if drop.status is RequestStatus.PENDING:
        hint = f"The drop has not begun: `stele cancel {request_id}` ends it."
    return Rejection(
        f"{what}_being_dropped",
        f"{what.capitalize()} '{name}' is being dropped by request {request_id}.",
        hint,
        {"request_id": request_id},
    )


# Names of schema objects: those that are taken, and those that are valid.


MAX_COLUMN_NAME_CHARS: Final = 128


def name_is_taken(what: str, name: str) -> Rejection:
    """Return the rejection of a name in use. ``what`` is keyspace, table, type or index."""
    return Rejection(
        f"{what.replace(' ', '_')}_exists",
        f"{what.capitalize()} '{name}' exists already.",
        "Use it, drop it first, or choose another name.",
    )


def keyspace_of(context: Context, name: str) -> Keyspace:
    """Return the keyspace of ``keyspace.object``. Raises Rejected."""
    return required(standing_keyspace(context.image, name.partition(".")[0]))


def checked_name(what: str, name: str) -> str:
    """Return the last part of ``keyspace.object``. Raises Rejected for an invalid one."""
    last = name.partition(".")[2]
    required(bad_name(what, last, dots=False))
    return last


def check_column_name(name: str) -> None:
    """Accept each name that CQL can quote. Raises Rejected."""
    if not (1 <= len(name) <= MAX_COLUMN_NAME_CHARS and name.isprintable()):
        raise Rejected(
            "bad_name",
            f"'{name[:80]}' is no name for a column or field.",
            f"Use 1 to {MAX_COLUMN_NAME_CHARS} printable characters.",
        )


def check_once(what: str, names: list[str]) -> None:
    """Reject names that are given twice. Raises Rejected."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise Rejected(
            "named_twice", f"Duplicate {what} '{twice[0][:80]}'.", "Name it once.", name=twice[0]
        )


def resolved_type(image: Image, keyspace: Keyspace, text: str) -> CqlType:
    """Return the type of a column or field, whose user-defined types exist. Raises Rejected."""
    return _resolved(image.schema, keyspace, text, argument=False)


def resolved_argument(image: Image, keyspace: Keyspace, text: str) -> CqlType:
    """Return the type of a function's argument or result. Raises Rejected."""
    return _resolved(image.schema, keyspace, text, argument=True)


def _resolved(schema: SchemaImage, keyspace: Keyspace, text: str, *, argument: bool) -> CqlType:
    try:
        parse = parse_argument if argument else parse_type
        found = parse(text, keyspace.name)
    except TypeTextError as error:
        raise _bad_type(error) from error
    for name in found.user_types():
        if f"{keyspace.name}.{name}" not in schema.type_ids:
            raise Rejected(
                "unknown_type",
                f"There is no type '{name[:80]}' in keyspace {keyspace.name}.",
                "Create it first; `stele schema show` lists the types.",
                user_type=name,
            )
    check_type_size(schema, keyspace, found)
    return found


def check_type_size(
    schema: SchemaImage, keyspace: Keyspace, type_: CqlType, changed: UserType | None = None
) -> None:
    """Check the size of a type after a user-defined type is ``changed``. Raises Rejected."""
    known = schema.fields_of(keyspace)

    def fields_of(name: str) -> tuple[str, ...]:
        if changed is not None and changed.name == name:
            return tuple(field.type for field in changed.fields)
        return known(name)

    try:
        check_size(type_, fields_of)
    except TypeTextError as error:
        raise _bad_type(error) from error


def _bad_type(error: TypeTextError) -> Rejected:
    message = str(error)
    return Rejected("bad_type", f"{message[0].upper()}{message[1:]}.", "Use another type.")


# Rules for the columns of tables and views (Cassandra's ``CreateTableStatement``).


MAX_COLUMNS: Final = 4096

KINDS: Final = (
    ColumnKind.PARTITION_KEY,
    ColumnKind.CLUSTERING,
    ColumnKind.STATIC,
    ColumnKind.REGULAR,
)
"""Kinds in the order of a table's columns."""


def new_columns(
    image: Image, keyspace: Keyspace, given: Iterable[ColumnDefinition], first_id: int = 1
) -> list[Column]:
    """Return columns with ids from ``first_id`` on. Raises Rejected for a bad one alone."""
    found = list[Column]()
    for column_id, column in enumerate(given, first_id):
        check_column_name(column.name)
        if column.order is not ClusteringOrder.ASC and column.kind is not ColumnKind.CLUSTERING:
            raise Rejected(
                "not_clustering_column",
                f"Column '{column.name}' has a clustering order, which only clustering columns have.",
                "Leave the order out, or give the column the kind clustering.",
            )
        type_ = resolved_type(image, keyspace, column.type)
        _check_fields(image, keyspace, type_)
        found.append(
            Column(
                column_id=column_id,
                name=column.name,
                type=type_.text(),
                kind=column.kind,
                order=column.order,
            )
        )
    return found


def in_order(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns by kind; those of a kind keep their order."""
    return tuple(sorted(columns, key=lambda column: KINDS.index(column.kind)))


def check_columns(name: str, columns: Sequence[Column]) -> None:
    """Check the columns of a table together. Raises Rejected."""
    check_once("column", [column.name for column in columns])
    if len(columns) > MAX_COLUMNS:
        raise Rejected(
            "too_many_columns",
            f"Table {name} would have {len(columns)} columns; the limit is {MAX_COLUMNS}.",
            "Use several tables, or a map.",
        )
    kinds = {column.kind for column in columns}
    if ColumnKind.PARTITION_KEY not in kinds:
        raise Rejected(
            "no_primary_key",
            f"Table {name} has no PRIMARY KEY.",
            "Give at least one column the kind partition_key.",
        )
    if ColumnKind.STATIC in kinds and ColumnKind.CLUSTERING not in kinds:
        raise Rejected(
            "static_without_clustering",
            f"Table {name} has a static column and no clustering column.",
            "Static columns are only useful (and thus allowed) with at least one clustering column.",
        )
    for column in columns:
        check_key_type(column)
    check_counters(name, columns)


def check_key_type(column: Column) -> None:
    """Reject a type that a column of the primary key cannot have. Raises Rejected."""
    type_ = column.parsed
    if not column.in_primary_key:
        return
    if type_.is_multi_cell:
        what = "user-defined type" if type_.user else "collection type"
        raise _bad_key(column, f"non-frozen {what}", f"Use frozen<{column.type}>.")
    if type_.is_counter or type_.is_duration:
        raise _bad_key(
            column, f"{type_.name} type", "Use another type, or make it a regular column."
        )


def _bad_key(column: Column, what: str, hint: str) -> Rejected:
    return Rejected(
        "bad_key_type",
        f"PRIMARY KEY column '{column.name}' cannot have the {what} {column.type}.",
        hint,
        column=column.name,
    )


def check_counters(name: str, columns: Iterable[Column]) -> None:
    """Reject counters beside other columns. Raises Rejected."""
    others = [column for column in columns if not column.in_primary_key]
    counters = [column for column in others if column.parsed.is_counter]
    if counters and len(counters) < len(others):
        plain = next(column for column in others if not column.parsed.is_counter)
        raise Rejected(
            "mixed_counters",
            f"Table {name} would have the counter column {counters[0].name} and the column"
            f" {plain.name}, which is no counter.",
            "Outside of the primary key, all columns of a table are counters or none is.",
        )


def check_parameters(name: str, schema: TableSchema) -> None:
    """Reject parameters that do not fit the table's columns. Raises Rejected."""
    if schema.parameters.get(DEFAULT_TTL, "0") == "0":
        return
    what = "a table with counters" if schema.is_counter else "a materialized view"
    if schema.is_counter or schema.view is not None:
        raise Rejected(
            "bad_parameter",
            f"Cannot set {DEFAULT_TTL} of {name}: it is {what}.",
            "Leave the parameter out. Rows of a view expire with those of its base table.",
            parameter=DEFAULT_TTL,
        )


def _check_fields(image: Image, keyspace: Keyspace, type_: CqlType) -> None:
    """Reject a user-defined type that is not frozen and has a field that is not frozen either."""
    if not (type_.user and type_.is_multi_cell):
        return
    fields = image.schema.type_named(f"{keyspace.name}.{type_.name}")
    assert fields is not None
    for field in fields.fields:
        if parse_type(field.type).is_multi_cell:
            raise Rejected(
                "bad_type",
                f"Type {type_.name} is not frozen, and its field {field.name} has the non-frozen type"
                f" {field.type}.",
                f"Use frozen<{type_.text()}>.",
                user_type=type_.name,
            )


# The objects that use a user-defined type, a function, a table or a keyspace.


OfType = TypeVar("OfType", UserType, Function, Aggregate)


def using_type(rows: Mapping[str, OfType], keyspace_id: str, name: str) -> Iterator[OfType]:
    """Yield the objects of a keyspace that name this user-defined type, in any order."""
    mine = (row for row in rows.values() if row.keyspace_id == keyspace_id)
    return (row for row in mine if name in row.user_types())


def types_affected(schema: SchemaImage, changed: UserType) -> list[UserType]:
    """Return the types that contain a type, directly or inside another one, by name."""
    found, new = dict[str, UserType](), [changed]
    while new:
        users = using_type(schema.types, changed.keyspace_id, new.pop().name)
        fresh = [user for user in users if user.name not in found]
        found.update({user.name: user for user in fresh})
        new += fresh
    return [found[name] for name in sorted(found)]


def tables_using(
    schema: SchemaImage, keyspace_id: str, names: frozenset[str]
) -> Iterator[tuple[Table, TableSchema]]:
    """Yield tables and views with a column of one of these types, by id.

    Tables that are being dropped are included, because nodes that lag still serve them.
    """
    for table_id in sorted(schema.schemas):
        table, columns = schema.tables[table_id], schema.schemas[table_id]
        if table.keyspace_id == keyspace_id and names & columns.user_types():
            yield table, columns


def aggregates_using_function(schema: SchemaImage, function_id: str) -> list[Aggregate]:
    found = (
        aggregate
        for aggregate in schema.aggregates.values()
        if function_id in (aggregate.state_function_id, aggregate.final_function_id)
    )
    return sorted(found, key=lambda a: a.signature)


def check_no_views(image: Image, table: Table) -> Rejection | None:
    """Refuse to drop a table whose materialized views exist, or are still being dropped."""
    views = image.schema.views_of(table.table_id)
    if not views:
        return None
    names = [image.schema.full_name(view) for view in views]
    hint = f"Drop those first: `stele table drop {names[0]}`."
    if all(view.table_id in accepted_drops(image) for view in views):
        hint = "Wait until they are dropped: `stele requests` shows how far that is."
    return Rejection(
        "has_views",
        f"Cannot drop table {image.schema.full_name(table)}: the materialized views"
        f" {', '.join(names)} depend on it.",
        hint,
        {"views": ",".join(names)},
    )


def dropped_objects(schema: SchemaImage, keyspace: Keyspace) -> Iterator[SchemaFact]:
    """Yield the removal of the keyspace's types, functions and aggregates."""
    for dropped, rows in (
        (AggregateDropped, schema.aggregates),
        (FunctionDropped, schema.functions),
        (TypeDropped, schema.types),
    ):
        of_keyspace = (id_ for id_ in sorted(rows) if rows[id_].keyspace_id == keyspace.keyspace_id)
        yield from map(dropped, of_keyspace)


# Replications that a cluster can provide, by numbers and by lists of racks.


class HasReplication(Protocol):
    """A command that requests a replication."""

    @property
    def replication(self) -> Mapping[str, int]: ...
    @property
    def racks(self) -> Mapping[str, tuple[str, ...]]: ...


def replication_for(
    image: Image, command: HasReplication, *, tablets: bool
) -> Replication | Rejection:
    """Return the replication that a command requests, or why the cluster cannot provide it.

    ``tablets`` tells whether the keyspace has tablets.
    """
    found = _said(command.replication, command.racks)
    if isinstance(found, Rejection):
        return found
    return _check_racks(image, found, tablets=tablets) or check_replication(image, found) or found


def _said(
    copies: Mapping[str, int], racks: Mapping[str, tuple[str, ...]]
) -> Replication | Rejection:
    """Return the replication in its normal form.

    Dcs of factor 0 have no replicas, as if they were not named. The number of listed racks is the
    dc's replication factor; their order has no meaning.
    """
    # Sorted, so that another order of the same racks is the same replication.
    lists = {dc: tuple(sorted(each)) for dc, each in racks.items() if each}
    for dc, each in sorted(lists.items()):
        twice = [rack for rack, count in Counter(each).items() if count > 1]
        if twice:
            return Rejection(
                "rack_named_twice",
                f"Rack '{twice[0][:80]}' of '{dc[:80]}' is named twice: each has one replica of a tablet.",
                "Name it once.",
                {"dc": dc, "rack": twice[0]},
            )
        if copies.get(dc, len(each)) != len(each):
            return Rejection(
                "bad_replication",
                f"Replication factor {copies[dc]} in '{dc[:80]}', but {len(each)} racks are named.",
                "Leave the number out: the racks say how many replicas there are.",
                {"dc": dc},
            )
    counts = {dc: rf for dc, rf in copies.items() if rf and dc not in lists}
    return Replication(counts | {dc: len(each) for dc, each in lists.items()}, lists)


def check_replication(image: Image, wanted: Replication) -> Rejection | None:
    """Require enough nodes in each dc for its replication factor, and a node in each listed rack.

    Nodes without tokens and nodes that are about to leave do not count. Without a list, replicas
    use all racks that exist. With fewer racks than replicas, some share a rack (``ring.strategy``).
    """
    if not wanted.copies or any(rf < 1 for rf in wanted.copies.values()):
        return Rejection(
            "bad_replication",
            "A keyspace needs a replication factor of at least 1 in at least one dc.",
            "For example {'dc1': 3}.",
        )
    going = image.requests.going()
    holding = [n for n in image.membership.holding().values() if n.node_id not in going]
    for dc, rf in sorted(wanted.copies.items()):
        here = Counter(node.rack for node in holding if node.dc == dc)
        nodes = here.total()
        unfilled = [rack for rack in wanted.racks.get(dc, ()) if not here[rack]]
        if unfilled:
            return _no_such_rack(dc, unfilled[0], sorted(here))
        if nodes < rf:
            hint = "Add nodes to that dc first, or lower the replication factor."
            if not nodes and any(n.dc == dc for n in image.membership.normal().values()):
                # A dc of zero-token nodes takes no replicas, so its factor must be 0.
                hint = f"Use {dc}=0: it has only zero-token nodes; or add nodes with tokens to it."
            return Rejection(
                "too_few_nodes",
                f"Replication factor {rf} in '{dc}' needs {rf} nodes with tokens that stay; "
                f"there are {nodes}.",
                hint,
                {"dc": dc, "replication_factor": str(rf), "nodes": str(nodes)},
            )
    return None


def _check_racks(image: Image, wanted: Replication, *, tablets: bool) -> Rejection | None:
    """Require that racks are listed only for tablets, and always if the setting enforces lists."""
    if not tablets:
        if not wanted.racks:
            return None
        dc, racks = min(wanted.racks.items())
        return Rejection(
            "racks_need_tablets",
            f"'{dc[:80]}={','.join(racks)[:80]}' names racks, and only keyspaces with tablets list racks: the"
            " others are spread by the nodes' tokens.",
            f"Give the number of replicas, as in {dc[:80]}=3; or make a keyspace with tablets.",
        )
    numbers = sorted(wanted.copies.keys() - wanted.racks.keys())
    if not numbers or ENFORCE_RACK_LIST.of(image.features.settings) != ON:
        return None
    return Rejection(
        "rack_list_required",
        f"Keyspaces with tablets name their racks, says {ENFORCE_RACK_LIST.name}; of '{numbers[0][:80]}' there"
        " is a number.",
        f"Name the racks that have a replica each, as in {numbers[0][:80]}=r1,r2,r3.",
        {"dc": numbers[0]},
    )


def _no_such_rack(dc: str, rack: str, racks: list[str]) -> Rejection:
    there = f"It has {', '.join(racks)}: name one of these, or add" if racks else "Add"
    return Rejection(
        "no_room_in_rack",
        f"Rack '{rack[:80]}' of '{dc[:80]}' has no node with tokens that stays.",
        f"{there} a node to that rack first.",
        {"dc": dc, "rack": rack},
    )


# Balancing switches that are off: of the cluster, a keyspace or a table, the widest first.
#
# Co-located tables share one tablet map, so a switch of one of them stops the moves of all. The
# log has no clock, so for the log a switch is off until a command switches it on. Callers with a
# clock treat an expired switch as on.


def all_off(schema: SchemaImage) -> list[Off]:
    """Return the switches that are off, by name. Objects that are being dropped are left out."""
    keyspaces = [k for k in schema.by_id.values() if k.balancing.off_since]
    tables = [t for t in schema.tables.values() if t.balancing.off_since]
    found = [Off(k.name, k.balancing) for k in keyspaces if not k.dropped_version]
    tables = [t for t in tables if not schema.data_of(t).dropped_version]
    found += [Off(schema.full_name(t), t.balancing) for t in tables]
    cluster = [Off("", schema.balancing)] if schema.balancing.off_since else []
    return [*cluster, *sorted(found)]


def off_for(schema: SchemaImage, table: Table, now_ms: int = 0) -> Iterator[Off]:
    """Yield the switches that stop moves of a table's tablets.

    Those of co-located tables come last.

    Without ``now_ms`` expired switches are included.
    """
    keyspace = schema.by_id[table.keyspace_id]
    # False sorts first, so the table's own switch comes before those of its group.
    group = sorted(schema.group_of(table), key=lambda other: other != table)
    for off in (
        Off("", schema.balancing),
        Off(keyspace.name, keyspace.balancing),
        *(Off(schema.full_name(each), each.balancing) for each in group),
    ):
        if off.balancing.off_since and not off.expired(now_ms):
            yield off


def gives_all_away(image: Image, node_id: str) -> bool:
    """Return True if the node must become empty. Balancing switches do not stop that."""
    node = image.node(node_id)
    if node is None or not node.takes_part() or node_id in image.requests.going():
        return True
    return not (node.tokens or node.state in JOINING)


def check_balancing(
    image: Image, actor: str, table: Table, from_node: str = ""
) -> Rejection | None:
    """Reject a command of the balancer on a table that is off. Other actors may send it.

    A move from the node ``from_node`` is allowed if that node must become empty.
    """
    off = next(off_for(image.schema, table), None)
    if off is None or actor != BALANCER:
        return None
    if from_node and gives_all_away(image, from_node):
        return None
    return Rejection(
        "balancing_off",
        f"{off.words().capitalize()} since epoch {off.balancing.off_since}.",
        f"{off.remedy()} switches it on.",
        {"name": off.name, "off_since": str(off.balancing.off_since)},
    )
