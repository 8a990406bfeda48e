"""Changes of tables in a batch: create, alter and drop (Cassandra's ``AlterTableStatement``)."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejected, required
from stele.domain.context import Context
from stele.domain.ddl import tables
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import DropTable
from stele.domain.model.schema import (
    CreateTable,
    IndexCreation,
    IndexRemoval,
    Keyspace,
    Table,
    TableAlteration,
    TableCreation,
    TableRemoval,
    TableSchemaChanged,
    ViewAlteration,
    ViewCreation,
    ViewRemoval,
)
from stele.domain.model.schema_objects import (
    ClusteringOrder,
    Column,
    ColumnKind,
    DroppedColumn,
    FieldsOf,
    Index,
    IndexTarget,
    TableSchema,
    ViewDefinition,
    ViewRestriction,
    can_read,
    expanded,
    parse_type,
)
from stele.domain.rules.schema import (
    accepted_drops,
    check_column_name,
    check_columns,
    check_key_type,
    check_once,
    check_parameters,
    check_table_stands,
    in_order,
    keyspace_of,
    name_is_taken,
    new_columns,
    resolved_type,
    standing_table,
)
from stele.domain.rules.table_parameters import GC_GRACE, changed_parameters, is_literal
from stele.domain.topology.operations import keyspaces as operation

replace = msgspec.structs.replace


def create_table(context: Context, change: TableCreation) -> Iterable[AnyFact]:
    """Create a table with its columns, or an opaque one if the change names none."""
    image = context.image
    known = image.schema.table_named(change.name)
    if known is not None and change.if_not_exists:
        # The name is not free yet while its table is being dropped.
        required(check_table_stands(image, known, accepted_drops(image)))
        return ()
    command = CreateTable(change.name, change.options, change.colocated_with)
    facts = required(tables.create_table(context, command))
    if not change.columns:
        if change.parameters:
            raise Rejected(
                "opaque_table",
                f"Table {change.name} has parameters and no columns.",
                "Give it columns, or leave the parameters out.",
            )
        return facts
    if change.options.cdc:
        required(tables.cdc_is_a_parameter(change.name))
    schema = _first_schema(context, change)
    return *facts, TableSchemaChanged(schema)


def _first_schema(context: Context, change: TableCreation) -> TableSchema:
    columns = new_columns(context.image, keyspace_of(context, change.name), change.columns)
    check_columns(change.name, columns)
    schema = TableSchema(
        table_id=tables.new_table_id(context, change.name),
        version=context.epoch,
        columns=in_order(columns),
        next_column_id=len(columns) + 1,
        parameters=changed_parameters({}, change.parameters),
    )
    check_parameters(change.name, schema)
    return schema


def alter_table(context: Context, change: TableAlteration) -> Iterable[AnyFact]:
    """Drop, rename and add columns, and change parameters."""
    image = context.image
    if change.if_exists and image.schema.table_named(change.name) is None:
        return ()
    table = required(standing_table(image, change.name))
    before = columns_of(image, table)
    if before.view is not None:
        raise Rejected(
            "is_view",
            f"Cannot use ALTER TABLE on the materialized view {change.name}.",
            "Use ALTER MATERIALIZED VIEW.",
        )
    return _altered(context, change, table, before)


def columns_of(image: Image, table: Table) -> TableSchema:
    """Return the columns of a table. Raises Rejected if it is opaque."""
    schema = image.schema.schemas.get(table.table_id)
    if schema is None:
        raise Rejected(
            "opaque_table",
            f"Table {image.schema.full_name(table)} has no columns: it keeps values by key.",
            "Create a table with columns.",
        )
    return schema


def _altered(
    context: Context, change: TableAlteration, table: Table, before: TableSchema
) -> Iterable[AnyFact]:
    image, keyspace = context.image, context.image.schema.by_id[table.keyspace_id]
    _check_types(image, keyspace, change, before)
    after = before
    for name in _listed(change.drop):
        after = _without(context, change, table, after, name)
    for old, new in change.rename.items():
        after = _renamed(image, change.name, table, after, old, new)
    added = [each for each in change.add if not _is_there(change, after, each.name)]
    check_once("column", [each.name for each in added])
    for column in new_columns(image, keyspace, added, after.next_column_id):
        after = _with(change.name, after, column, image.schema.fields_of(keyspace))
    check_columns(change.name, after.columns)
    after = replace(after, parameters=changed_parameters(after.parameters, change.parameters))
    check_parameters(change.name, after)
    if after == before:
        return
    _check_dependents(image, change.name, table, before, after)
    yield TableSchemaChanged(replace(after, version=context.epoch))
    yield from _views_altered(context, table, before, after)


def _check_dependents(
    image: Image, name: str, table: Table, before: TableSchema, after: TableSchema
) -> None:
    """Require what a base of views, or a table with indexes, must keep. Raises Rejected."""
    views = [image.schema.full_name(view) for view in image.schema.views_of(table.table_id)]
    if after.is_counter and not before.is_counter and (views or before.indexes):
        raise Rejected(
            "counter_table",
            f"Table {name} cannot have counters: it has indexes or materialized views.",
            "Use another table, or drop them first.",
        )
    if views and after.parameters.get(GC_GRACE) == "0":
        raise Rejected(
            "bad_parameter",
            f"{GC_GRACE} of {name} cannot be 0: it is also the time to live of undelivered updates of"
            f" the materialized views {', '.join(views)}.",
            "Set it to more than 0, or drop these views first.",
            views=",".join(views),
        )


def _listed(names: tuple[str, ...]) -> tuple[str, ...]:
    check_once("column", [*names])
    return names


def _check_types(
    image: Image, keyspace: Keyspace, change: TableAlteration, before: TableSchema
) -> None:
    for name, text in change.types.items():
        column = before.column(name)
        if column is None:
            raise _no_column(change.name, name)
        wanted = resolved_type(image, keyspace, text).text()
        if wanted != column.type:
            raise Rejected(
                "incompatible_type",
                f"Cannot alter column {name} of {change.name} from {column.type} to {wanted}:"
                " altering column types is not supported.",
                "Add a column of the new type, and copy the values (CASSANDRA-12443).",
                column=name,
            )


def _no_column(table: str, name: str) -> Rejected:
    return Rejected(
        "unknown_column",
        f"Column '{name[:80]}' was not found in table {table}.",
        f"`stele schema show {table}` lists the columns.",
        column=name[:80],
    )


def _without(
    context: Context, change: TableAlteration, table: Table, schema: TableSchema, name: str
) -> TableSchema:
    """Return the schema without a column, which is remembered with its time."""
    image, column = context.image, schema.column(name)
    keyspace = image.schema.by_id[table.keyspace_id]
    if column is None:
        if change.drop_if_exists:
            return schema
        raise _no_column(change.name, name)
    what = f"Cannot drop column {name} of {change.name}"
    if column.in_primary_key:
        raise Rejected(
            "primary_key_column",
            f"{what}: it is a PRIMARY KEY column.",
            "Create another table with another key.",
            column=name,
        )
    _check_no_index(what, schema, column)
    views = [image.schema.full_name(view) for view in image.schema.views_of(table.table_id)]
    if views:
        raise Rejected(
            "has_views",
            f"{what}: the table has the materialized views {', '.join(views)}.",
            "Drop these views first.",
            views=",".join(views),
        )
    dropped = DroppedColumn(
        column_id=column.column_id,
        name=name,
        type=expanded(column.parsed, image.schema.fields_of(keyspace)).text(),
        kind=column.kind,
        dropped_us=context.log_ms * 1000,
        dropped_epoch=context.epoch,
    )
    return replace(
        schema,
        columns=tuple(each for each in schema.columns if each is not column),
        dropped_columns=(*schema.dropped_columns, dropped),
    )


def _check_no_index(what: str, schema: TableSchema, column: Column) -> None:
    indexes = [index.name for index in schema.indexes if index.column_id == column.column_id]
    if indexes:
        raise Rejected(
            "has_indexes",
            f"{what}: it has the secondary indexes {', '.join(indexes)}.",
            "Drop these indexes first.",
            indexes=",".join(indexes),
        )


def _renamed(
    image: Image, name: str, table: Table, schema: TableSchema, old: str, new: str
) -> TableSchema:
    column = schema.column(old)
    if column is None:
        raise _no_column(name, old)
    check_column_name(new)
    if not column.in_primary_key:
        raise Rejected(
            "not_primary_key_column",
            f"Cannot rename column {old} of {name}: it is no PRIMARY KEY column.",
            "Only columns of the primary key can be renamed.",
            column=old,
        )
    _check_no_index(f"Cannot rename column {old} of {name}", schema, column)
    for each, where in (
        (schema, name),
        *(
            (image.schema.schemas[view.table_id], image.schema.full_name(view))
            for view in image.schema.views_of(table.table_id)
        ),
    ):
        if each.column(new) is not None:
            raise Rejected(
                "column_exists",
                f"Cannot rename column {old} of {name} to {new}: {where} has a column of that name.",
                "Choose another name.",
                column=new,
            )
    return _replaced(schema, replace(column, name=new))


def _replaced(schema: TableSchema, column: Column) -> TableSchema:
    """Return the schema with this column instead of the one with its id."""
    return replace(
        schema,
        columns=tuple(
            column if each.column_id == column.column_id else each for each in schema.columns
        ),
    )


def _is_there(change: TableAlteration, schema: TableSchema, name: str) -> bool:
    """Return whether a column to add exists and may. Raises Rejected if it must not."""
    if schema.column(name) is None:
        return False
    if change.add_if_not_exists:
        return True
    raise Rejected(
        "column_exists",
        f"Column {name} of {change.name} exists already.",
        "Use it, or choose another name.",
        column=name,
    )


def _with(name: str, schema: TableSchema, column: Column, fields_of: FieldsOf) -> TableSchema:
    if column.in_primary_key:
        raise Rejected(
            "primary_key_column",
            f"Cannot add column {column.name} to the PRIMARY KEY of {name}.",
            "Create another table with another key.",
            column=column.name,
        )
    for dropped in schema.dropped_columns:
        if dropped.name == column.name:
            _check_added_again(name, dropped, column, fields_of)
    return replace(
        schema, columns=in_order((*schema.columns, column)), next_column_id=column.column_id + 1
    )


def _check_added_again(
    name: str, dropped: DroppedColumn, column: Column, fields_of: FieldsOf
) -> None:
    """Reject a column that stores with older files would take for the dropped one."""
    what = f"Cannot add the column {column.name} to {name} again, which was dropped at epoch"
    what = f"{what} {dropped.dropped_epoch}"
    hint = "Choose another name."
    if dropped.kind is not column.kind:
        raise Rejected(
            "dropped_column",
            f"{what}: its kind was {dropped.kind}, and would be {column.kind}.",
            hint,
            column=column.name,
        )
    if column.parsed.is_counter:
        raise Rejected("dropped_column", f"{what}: it is a counter.", hint, column=column.name)
    # The dropped column has tuples instead of user-defined types.
    new, old = expanded(column.parsed, fields_of), parse_type(dropped.type)
    if not can_read(new, old):
        raise Rejected(
            "dropped_column",
            f"{what}: its type was {dropped.type}, and {column.type} cannot read that.",
            hint,
            column=column.name,
        )


def _views_altered(
    context: Context, table: Table, before: TableSchema, after: TableSchema
) -> Iterable[AnyFact]:
    """Yield the views whose columns have new names, or which have all columns of the base."""
    names = {column.column_id: column.name for column in after.columns}
    old = {column.column_id for column in before.columns}
    regular = [each for each in after.of_kind(ColumnKind.REGULAR) if each.column_id not in old]
    for view in context.image.schema.views_of(table.table_id):
        schema = context.image.schema.schemas[view.table_id]
        assert schema.view is not None
        columns = [replace(each, name=names[each.column_id]) for each in schema.columns]
        added = regular if schema.view.all_columns else []
        changed = replace(schema, columns=in_order((*columns, *added)))
        if changed != schema:
            yield TableSchemaChanged(replace(changed, version=context.epoch))


def drop_table(context: Context, change: TableRemoval) -> Iterable[AnyFact]:
    """Request the drop of a table without views. Its indexes are dropped with it."""
    image = context.image
    table = image.schema.table_named(change.name)
    if table is None and change.if_exists:
        return ()
    schema = image.schema.schemas.get(table.table_id) if table else None
    if schema is not None and schema.view is not None:
        raise Rejected(
            "is_view",
            f"Cannot use DROP TABLE on the materialized view {change.name}.",
            "Use DROP MATERIALIZED VIEW.",
        )
    return required(operation.drop_table(context, DropTable(change.name)))


# Changes of secondary indexes in a batch (Cassandra's ``CreateIndexStatement``).
#
# An index is a part of its table's schema, so it gives the table a new version and is dropped with
# the table.


INDEX_NAME: Final = re.compile(r"\w{1,192}")


def create_index(context: Context, change: IndexCreation) -> Iterable[AnyFact]:
    schema, keyspace = context.image.schema, change.table.partition(".")[0]
    table = required(standing_table(context.image, change.table))
    before = columns_of(context.image, table)
    name = change.name or _default_name(schema.index_tables, keyspace, table.name, change.column)
    if f"{keyspace}.{name}" in schema.index_tables:
        if change.if_not_exists:
            return ()
        required(name_is_taken("index", f"{keyspace}.{name}"))
    if not INDEX_NAME.fullmatch(name):
        raise Rejected(
            "bad_name",
            f"'{name[:80]}' is no name for an index.",
            "Use 1 to 192 letters, digits and '_'.",
        )
    column = _indexed_column(change, before)
    index = Index(
        index_id=context.unique(f"index {keyspace}.{name}"),
        name=name,
        column_id=column.column_id,
        target=_target(change, column),
        using=change.using,
        options=dict(sorted(change.options.items())),
    )
    twin = _twin(before, index)
    if twin is not None:
        if change.if_not_exists:
            return ()
        raise Rejected(
            "index_exists",
            f"Index {name} is a duplicate of the existing index {twin.name}.",
            "Use that one.",
            index=twin.name,
        )
    indexes = (*before.indexes, index)
    return (TableSchemaChanged(replace(before, indexes=indexes, version=context.epoch)),)


def _default_name(taken: Container[str], keyspace: str, table: str, column: str) -> str:
    """Return ``table_column_idx``, with a number behind it if that name is taken."""
    base = re.sub(r"\W", "", f"{table}_{column}_idx")
    name, number = base, 0
    while f"{keyspace}.{name}" in taken:
        number += 1
        name = f"{base}_{number}"
    return name


def _twin(schema: TableSchema, index: Index) -> Index | None:
    """Return the index that differs from a new one in nothing but its name."""
    for each in schema.indexes:
        if replace(each, index_id="", name="") == replace(index, index_id="", name=""):
            return each
    return None


def _indexed_column(change: IndexCreation, schema: TableSchema) -> Column:
    what = f"Cannot create an index on {change.table}"
    if schema.view is not None:
        raise Rejected(
            "is_view",
            f"{what}: secondary indexes are not supported on materialized views.",
            "Create another view.",
        )
    if schema.is_counter:
        raise Rejected(
            "counter_table",
            f"{what}: secondary indexes are not supported on counter tables.",
            "Use another table.",
        )
    column = schema.column(change.column)
    if column is None:
        raise Rejected(
            "unknown_column",
            f"{what}: there is no column '{change.column[:80]}'.",
            f"`stele schema show {change.table}` lists the columns.",
            column=change.column[:80],
        )
    partition_key = [*schema.of_kind(ColumnKind.PARTITION_KEY)]
    if partition_key == [column]:
        raise Rejected(
            "only_partition_key",
            f"{what}: {column.name} is the only partition key column.",
            "Rows are found by it without an index.",
            column=column.name,
        )
    if column.parsed.is_duration:
        raise Rejected(
            "bad_type",
            f"{what}: secondary indexes are not supported on duration columns such as {column.name}.",
            "Use another column.",
        )
    if column.parsed.user and column.parsed.is_multi_cell:
        raise Rejected(
            "bad_type",
            f"{what}: column {column.name} has the non-frozen user type {column.type}.",
            "Freeze the type.",
        )
    return column


def _target(change: IndexCreation, column: Column) -> IndexTarget:
    """Return the indexed part. The default for a collection is its values."""
    type_, target = column.parsed, change.target
    if target is IndexTarget.SIMPLE:
        if type_.is_collection and type_.is_multi_cell:
            return IndexTarget.VALUES
        if not type_.is_collection:
            return target
        raise _bad_target(
            change,
            f"{column.name} is a frozen collection",
            "Frozen collections are indexed by full.",
        )
    if target is IndexTarget.FULL:
        if type_.is_collection and type_.frozen:
            return target
        raise _bad_target(change, f"{column.name} is no frozen collection", "Use another target.")
    if not type_.is_collection:
        raise _bad_target(change, f"{column.name} is no collection", "Leave the target out.")
    if type_.frozen:
        raise _bad_target(
            change,
            f"{column.name} is a frozen collection",
            "Frozen collections are indexed by full.",
        )
    if target in (IndexTarget.KEYS, IndexTarget.ENTRIES) and type_.name != "map":
        raise _bad_target(change, f"{column.name} is no map", "Use values.")
    return target


def _bad_target(change: IndexCreation, why: str, hint: str) -> Rejected:
    return Rejected(
        "bad_index_target",
        f"Cannot create an index of target {change.target} on {change.table}: {why}.",
        hint,
        column=change.column[:80],
    )


def drop_index(context: Context, change: IndexRemoval) -> Iterable[AnyFact]:
    schema = context.image.schema
    table_id = schema.index_tables.get(change.name)
    if table_id is None:
        if change.if_exists:
            return ()
        raise Rejected(
            "unknown_index",
            f"There is no index '{change.name[:130]}'.",
            "`stele schema show` lists the indexes of each table.",
        )
    table = schema.tables[table_id]
    required(standing_table(context.image, schema.full_name(table)))
    before, name = schema.schemas[table_id], change.name.partition(".")[2]
    indexes = tuple(index for index in before.indexes if index.name != name)
    return (TableSchemaChanged(replace(before, indexes=indexes, version=context.epoch)),)


# Changes of materialized views in a batch (Cassandra's ``CreateViewStatement``).
#
# A view is a table with a definition. It has its own data, so it is created and dropped like a
# table.


NOT_NULL: Final = "IS NOT NULL"
OPERATORS: Final = (NOT_NULL, "=", "<", "<=", ">", ">=", "IN")


def create_view(context: Context, change: ViewCreation) -> Iterable[AnyFact]:
    image = context.image
    known = image.schema.table_named(change.name)
    if known is not None and change.if_not_exists:
        required(check_table_stands(image, known, accepted_drops(image)))
        return ()
    table = required(standing_table(image, change.base))
    base = columns_of(image, table)
    _check_base(change, table, base)
    columns = _columns(change, base)
    _check_where(change, base, columns)
    created = required(tables.create_table(context, CreateTable(change.name, change.options)))
    schema = TableSchema(
        table_id=tables.new_table_id(context, change.name),
        version=context.epoch,
        columns=columns,
        next_column_id=base.next_column_id,
        parameters=changed_parameters({}, change.parameters),
        view=ViewDefinition(
            base_table_id=table.table_id,
            all_columns=not change.columns,
            restrictions=tuple(
                ViewRestriction(
                    column_id=_column(change, base, each.column).column_id,
                    operator=each.operator,
                    value=each.value,
                )
                for each in change.where
            ),
        ),
    )
    check_parameters(change.name, schema)
    return *created, TableSchemaChanged(schema)


def _check_base(change: ViewCreation, table: Table, base: TableSchema) -> None:
    what = f"Cannot create materialized view {change.name} of {change.base}"
    if change.base.partition(".")[0] != change.name.partition(".")[0]:
        raise Rejected(
            "other_keyspace",
            f"{what}: a view is in the keyspace of its base table.",
            "Name it in that keyspace.",
        )
    if base.view is not None:
        raise Rejected(
            "is_view",
            f"{what}: {table.name} is a materialized view itself.",
            "Name its base table.",
        )
    if base.is_counter:
        raise Rejected(
            "counter_table",
            f"{what}: materialized views are not supported on counter tables.",
            "Use another table.",
        )
    if base.parameters.get(GC_GRACE) == "0":
        raise Rejected(
            "bad_parameter",
            f"{what}: its {GC_GRACE} is 0, which is also the time to live of undelivered updates.",
            f"Set {GC_GRACE} of {change.base} to more than 0.",
        )


def _column(change: ViewCreation, base: TableSchema, name: str) -> Column:
    found = base.column(name)
    if found is None:
        raise _no_column(change.base, name)
    return found


def _columns(change: ViewCreation, base: TableSchema) -> tuple[Column, ...]:
    """Return the view's columns: its primary key, then the others. Raises Rejected."""
    order = {key.name: key.order for key in change.clustering}
    names = [*change.partition_key, *(key.name for key in change.clustering)]
    check_once("column in the PRIMARY KEY", names)
    if not change.partition_key:
        raise Rejected(
            "no_primary_key",
            f"Materialized view {change.name} has no PRIMARY KEY.",
            "Name the columns of its partition key.",
        )
    keys = [
        msgspec.structs.replace(
            _column(change, base, name),
            kind=ColumnKind.CLUSTERING if name in order else ColumnKind.PARTITION_KEY,
            order=order.get(name, ClusteringOrder.ASC),
        )
        for name in names
    ]
    _check_keys(change, base, names)
    for key in keys:
        check_key_type(key)
    check_once("column", [*change.columns])
    static = {column.name for column in base.of_kind(ColumnKind.STATIC)}
    named = sorted(static & {*change.columns})
    if named:
        raise Rejected(
            "static_column",
            f"Materialized view {change.name} cannot include the static column {named[0]}.",
            "Leave it out.",
            column=named[0],
        )
    for name in change.columns:
        _column(change, base, name)
    selected = change.columns or [column.name for column in base.columns]
    others = [
        msgspec.structs.replace(column, kind=ColumnKind.REGULAR, order=ClusteringOrder.ASC)
        for column in base.columns
        if column.name in selected and column.name not in names and column.name not in static
    ]
    return in_order((*keys, *others))


def _check_keys(change: ViewCreation, base: TableSchema, names: list[str]) -> None:
    missing = [c.name for c in base.columns if c.in_primary_key and c.name not in names]
    if missing:
        raise Rejected(
            "no_primary_key",
            f"Cannot create materialized view {change.name} without the primary key columns"
            f" {', '.join(missing)} of {change.base}.",
            "Add them to the clustering columns.",
        )
    added = [name for name in names if not _column(change, base, name).in_primary_key]
    for name in added:
        if _column(change, base, name).kind is ColumnKind.STATIC:
            raise Rejected(
                "static_column",
                f"Cannot use the static column {name} in the PRIMARY KEY of materialized view"
                f" {change.name}.",
                "Use another column.",
                column=name,
            )
    if len(added) > 1:
        raise Rejected(
            "bad_view_key",
            f"The PRIMARY KEY of materialized view {change.name} has the columns {', '.join(added)},"
            f" which are not in that of {change.base}.",
            "Use at most one such column.",
        )


def _check_where(change: ViewCreation, base: TableSchema, columns: tuple[Column, ...]) -> None:
    """Require IS NOT NULL or a value for each key column. Raises Rejected."""
    for each in change.where:
        column = _column(change, base, each.column)
        if each.operator not in OPERATORS or bool(each.value) is (each.operator == NOT_NULL):
            raise Rejected(
                "bad_view_condition",
                f"Condition '{each.column[:80]} {each.operator[:20]} {each.value[:40]}' is not valid.",
                f"Operators are {', '.join(OPERATORS)}; all but {NOT_NULL} need a value.",
            )
        is_list = each.operator == "IN" and not each.value.lstrip().startswith("(")
        if each.value and (is_list or not is_literal(each.value)):
            raise Rejected(
                "bad_view_condition",
                f"The value '{each.value[:80]}' of the condition on {column.name} is not a CQL literal.",
                "Write one value, such as 1 or 'text'; for IN a list, as in (1, 2).",
                column=column.name,
            )
        if not column.in_primary_key and each.operator != NOT_NULL:
            raise Rejected(
                "bad_view_condition",
                f"Materialized view {change.name} cannot restrict {column.name}, which is not in the"
                f" primary key of {change.base}, by {each.operator}.",
                f"Use {NOT_NULL}.",
                column=column.name,
            )
    restricted = {each.column for each in change.where}
    for column in columns:
        if column.in_primary_key and column.name not in restricted:
            raise Rejected(
                "bad_view_condition",
                f"Primary key column {column.name} of materialized view {change.name} must be"
                f" restricted by {NOT_NULL}.",
                f"Add {column.name} {NOT_NULL} to where.",
                column=column.name,
            )


def _existing(context: Context, name: str) -> tuple[Table, TableSchema]:
    table = required(standing_table(context.image, name))
    schema = context.image.schema.schemas.get(table.table_id)
    if schema is None or schema.view is None:
        raise Rejected(
            "not_a_view", f"{name} is no materialized view.", "Use ALTER TABLE or DROP TABLE."
        )
    return table, schema


def alter_view(context: Context, change: ViewAlteration) -> Iterable[AnyFact]:
    if change.if_exists and context.image.schema.table_named(change.name) is None:
        return ()
    _, before = _existing(context, change.name)
    parameters = changed_parameters(before.parameters, change.parameters)
    after = msgspec.structs.replace(before, parameters=parameters)
    check_parameters(change.name, after)
    if after == before:
        return ()
    return (TableSchemaChanged(msgspec.structs.replace(after, version=context.epoch)),)


def drop_view(context: Context, change: ViewRemoval) -> Iterable[AnyFact]:
    if change.if_exists and context.image.schema.table_named(change.name) is None:
        return ()
    _existing(context, change.name)
    return required(operation.drop_table(context, DropTable(change.name)))
