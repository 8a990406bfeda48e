"""Keyspaces and tables that no accepted drop names, whether it has begun or not.

A command that names a keyspace or table is refused once a drop of it is accepted. The drop would
also remove whatever the command adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from stele.domain.base import Rejection
from stele.domain.context import Context, bad_name, unknown_keyspace, unknown_table
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import BALANCER, RequestStatus
from stele.domain.requests.model import Request
from stele.domain.schema.model import (
    AggregateDropped,
    ColumnDefinition,
    FunctionDropped,
    Keyspace,
    SchemaImage,
    Table,
    TypeDropped,
)
from stele.domain.schema.objects import (
    Aggregate,
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
from stele.domain.schema.parameters import DEFAULT_TTL, RejectedChange, required

Drops = Mapping[str, Request]
"""The requests that drop an object, by the id of the keyspace or table."""


def accepted_drops(image: Image, actor: str = "") -> Drops:
    """Return the drops that count for a command of ``actor``.

    For the balancer only drops that have begun count. The balancer continues with the tablets of a
    table whose drop may still be cancelled. It would otherwise be refused repeatedly until the drop
    begins.
    """
    found = (r for r in image.requests.open.values() if r.drops)
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
    """Return the keyspace of ``keyspace.object``. Raises RejectedChange."""
    return required(standing_keyspace(context.image, name.partition(".")[0]))


def checked_name(what: str, name: str) -> str:
    """Return the last part of ``keyspace.object``. Raises RejectedChange for an invalid one."""
    last = name.partition(".")[2]
    required(bad_name(what, last, dots=False))
    return last


def check_column_name(name: str) -> None:
    """Accept each name that CQL can quote. Raises RejectedChange."""
    if not (1 <= len(name) <= MAX_COLUMN_NAME_CHARS and name.isprintable()):
        raise RejectedChange(
            "bad_name",
            f"'{name[:80]}' is no name for a column or field.",
            f"Use 1 to {MAX_COLUMN_NAME_CHARS} printable characters.",
        )


def check_once(what: str, names: list[str]) -> None:
    """Reject names that are given twice. Raises RejectedChange."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise RejectedChange(
            "named_twice", f"Duplicate {what} '{twice[0][:80]}'.", "Name it once.", name=twice[0]
        )


def resolved_type(image: Image, keyspace: Keyspace, text: str) -> CqlType:
    """Return the type of a column or field, whose user-defined types exist. Raises RejectedChange."""
    return _resolved(image.schema, keyspace, text, argument=False)


def resolved_argument(image: Image, keyspace: Keyspace, text: str) -> CqlType:
    """Return the type of a function's argument or result. Raises RejectedChange."""
    return _resolved(image.schema, keyspace, text, argument=True)


def _resolved(schema: SchemaImage, keyspace: Keyspace, text: str, *, argument: bool) -> CqlType:
    try:
        parse = parse_argument if argument else parse_type
        found = parse(text, keyspace.name)
    except TypeTextError as error:
        raise _bad_type(error) from error
    for name in found.user_types():
        if f"{keyspace.name}.{name}" not in schema.type_ids:
            raise RejectedChange(
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
    """Check the size of a type after a user-defined type is ``changed``. Raises RejectedChange."""
    known = schema.fields_of(keyspace)

    def fields_of(name: str) -> tuple[str, ...]:
        if changed is not None and changed.name == name:
            return tuple(field.type for field in changed.fields)
        return known(name)

    try:
        check_size(type_, fields_of)
    except TypeTextError as error:
        raise _bad_type(error) from error


def _bad_type(error: TypeTextError) -> RejectedChange:
    message = str(error)
    return RejectedChange("bad_type", f"{message[0].upper()}{message[1:]}.", "Use another type.")


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
    """Return columns with ids from ``first_id`` on. Raises RejectedChange for a bad one alone."""
    found = list[Column]()
    for column_id, column in enumerate(given, first_id):
        check_column_name(column.name)
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
    """Check the columns of a table together. Raises RejectedChange."""
    check_once("column", [column.name for column in columns])
    if len(columns) > MAX_COLUMNS:
        raise RejectedChange(
            "too_many_columns",
            f"Table {name} would have {len(columns)} columns; the limit is {MAX_COLUMNS}.",
            "Use several tables, or a map.",
        )
    kinds = {column.kind for column in columns}
    if ColumnKind.PARTITION_KEY not in kinds:
        raise RejectedChange(
            "no_primary_key",
            f"Table {name} has no PRIMARY KEY.",
            "Give at least one column the kind partition_key.",
        )
    if ColumnKind.STATIC in kinds and ColumnKind.CLUSTERING not in kinds:
        raise RejectedChange(
            "static_without_clustering",
            f"Table {name} has a static column and no clustering column.",
            "Static columns are only useful (and thus allowed) with at least one clustering column.",
        )
    for column in columns:
        check_key_type(column)
    check_counters(name, columns)


def check_key_type(column: Column) -> None:
    """Reject a type that a column of the primary key cannot have. Raises RejectedChange."""
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


def _bad_key(column: Column, what: str, hint: str) -> RejectedChange:
    return RejectedChange(
        "bad_key_type",
        f"PRIMARY KEY column '{column.name}' cannot have the {what} {column.type}.",
        hint,
        column=column.name,
    )


def check_counters(name: str, columns: Iterable[Column]) -> None:
    """Reject counters beside other columns. Raises RejectedChange."""
    others = [column for column in columns if not column.in_primary_key]
    counters = [column for column in others if column.parsed.is_counter]
    if counters and len(counters) < len(others):
        plain = next(column for column in others if not column.parsed.is_counter)
        raise RejectedChange(
            "mixed_counters",
            f"Table {name} would have the counter column {counters[0].name} and the column"
            f" {plain.name}, which is no counter.",
            "Outside of the primary key, all columns of a table are counters or none is.",
        )


def check_parameters(name: str, schema: TableSchema) -> None:
    """Reject parameters that do not fit the table's columns. Raises RejectedChange."""
    if schema.parameters.get(DEFAULT_TTL, "0") == "0":
        return
    what = "a table with counters" if schema.is_counter else "a materialized view"
    if schema.is_counter or schema.view is not None:
        raise RejectedChange(
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
            raise RejectedChange(
                "bad_type",
                f"Type {type_.name} is not frozen, and its field {field.name} has the non-frozen type"
                f" {field.type}.",
                f"Use frozen<{type_.text()}>.",
                user_type=type_.name,
            )


# The objects that use a user-defined type, a function, a table or a keyspace.


def types_using(schema: SchemaImage, keyspace_id: str, name: str) -> list[UserType]:
    """Return the types with a field of this type, by name."""
    found = (t for t in schema.types.values() if t.keyspace_id == keyspace_id)
    return sorted((t for t in found if name in t.user_types()), key=lambda t: t.name)


def types_affected(schema: SchemaImage, changed: UserType) -> list[UserType]:
    """Return the types that contain a type, directly or inside another one, by name."""
    found, new = dict[str, UserType](), [changed]
    while new:
        users = types_using(schema, changed.keyspace_id, new.pop().name)
        fresh = [user for user in users if user.name not in found]
        found.update({user.name: user for user in fresh})
        new += fresh
    return [found[name] for name in sorted(found)]


def tables_using(
    schema: SchemaImage, keyspace_id: str, names: frozenset[str]
) -> Iterator[tuple[Table, TableSchema]]:
    """Yield tables and views with a column of one of these types, by id.

    Those that are being dropped are included: nodes that lag still serve them.
    """
    for table_id in sorted(schema.schemas):
        table, columns = schema.tables[table_id], schema.schemas[table_id]
        if table.keyspace_id == keyspace_id and names & columns.user_types():
            yield table, columns


def functions_using(schema: SchemaImage, keyspace_id: str, name: str) -> list[Function]:
    found = (f for f in schema.functions.values() if f.keyspace_id == keyspace_id)
    return sorted((f for f in found if name in f.user_types()), key=lambda f: f.signature)


def aggregates_using_type(schema: SchemaImage, keyspace_id: str, name: str) -> list[Aggregate]:
    found = (a for a in schema.aggregates.values() if a.keyspace_id == keyspace_id)
    return sorted((a for a in found if name in a.user_types()), key=lambda a: a.signature)


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


def dropped_objects(image: Image, keyspace: Keyspace) -> Iterable[AnyFact]:
    """Yield the removal of the keyspace's types, functions and aggregates."""
    schema, of = image.schema, keyspace.keyspace_id
    for aggregate_id in sorted(schema.aggregates):
        if schema.aggregates[aggregate_id].keyspace_id == of:
            yield AggregateDropped(aggregate_id)
    for function_id in sorted(schema.functions):
        if schema.functions[function_id].keyspace_id == of:
            yield FunctionDropped(function_id)
    for type_id in sorted(schema.types):
        if schema.types[type_id].keyspace_id == of:
            yield TypeDropped(type_id)
