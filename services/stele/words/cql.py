"""CQL statements that create the objects of a schema, in an order in which they can be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from stele.domain.model.schema import Keyspace, SchemaImage, Table
from stele.domain.model.schema_objects import (
    Aggregate,
    Column,
    ColumnKind,
    Function,
    Index,
    IndexTarget,
    TableSchema,
    TypeField,
    UserType,
    ViewRestriction,
    quoted,
)
from stele.domain.rules.table_parameters import text_literal
from stele.runtime.answers.metadata_log import SchemaAnswer

INDENT: Final = "    "
_PLAIN_VALUES: Final = frozenset(
    {
        *("bloom_filter_fp_chance", "crc_check_chance", "default_time_to_live"),
        *("gc_grace_seconds", "max_index_interval", "memtable_flush_period_in_ms"),
        "min_index_interval",
    }
)
"""Parameters whose values are numbers, which have no quotes."""


class Statement(NamedTuple):
    """A statement and the full name of the object that it creates. Indexes have that of their
    table.
    """

    name: str
    text: str


def statements(rows: SchemaAnswer) -> Iterator[Statement]:
    """Yield the statements by keyspace: types, tables, views, functions, aggregates.

    Opaque tables and objects that are being dropped have comments.
    """
    schemas = {schema.table_id: schema for schema in rows.table_schemas}
    tables = {table.table_id: table for table in rows.tables}
    functions = {function.function_id: function for function in rows.functions}
    for keyspace in rows.keyspaces:
        of, prefix = keyspace.keyspace_id, f"{quoted(keyspace.name)}."
        yield Statement(keyspace.name, _keyspace(keyspace))
        for user_type in _in_order([t for t in rows.types if t.keyspace_id == of]):
            yield Statement(f"{keyspace.name}.{user_type.name}", _type(prefix, user_type))
        mine = [table for table in rows.tables if table.keyspace_id == of]
        views = [t for t in mine if t.table_id in schemas and schemas[t.table_id].view]
        for table in (*(t for t in mine if t not in views), *views):
            name, schema = f"{keyspace.name}.{table.name}", schemas.get(table.table_id)
            if schema is None:
                yield Statement(name, f"-- Table {name} has no columns: it keeps values by key.")
            elif schema.view is not None:
                base_id = schema.view.base_table_id
                yield Statement(
                    name, _view(prefix, table, schema, tables[base_id], schemas[base_id])
                )
            else:
                yield Statement(name, _table(prefix, table, schema))
                for index in schema.indexes:
                    yield Statement(name, _index(prefix, table, schema, index))
        for function in rows.functions:
            if function.keyspace_id == of:
                yield Statement(f"{keyspace.name}.{function.name}", _function(prefix, function))
        for aggregate in rows.aggregates:
            if aggregate.keyspace_id == of:
                text = _aggregate(prefix, aggregate, functions)
                yield Statement(f"{keyspace.name}.{aggregate.name}", text)


def statement_of(schema: SchemaImage, kind: str, object_id: str) -> Statement | None:
    """Return the CQL of one object with its full name; None if it does not exist.

    ``kind`` is keyspace, table, type, function or aggregate. The CQL of a table includes its
    indexes. The cost does not depend on the size of the schema.
    """
    of_kind: Mapping[str, Mapping[str, Any]] = {
        "keyspace": schema.by_id,
        "table": schema.tables,
        "type": schema.types,
        "function": schema.functions,
        "aggregate": schema.aggregates,
    }
    row = of_kind[kind].get(object_id)
    if row is None:
        return None
    found = [*statements(_with_related(schema, kind, row))]
    if kind != "table":
        return found[-1]
    name = schema.full_name(row)
    return Statement(name, "\n".join(each.text for each in found if each.name == name))


def _with_related(schema: SchemaImage, kind: str, row: Any) -> SchemaAnswer:
    """Return an answer with one object and those that its statement names."""
    tables: tuple[Table, ...] = ()
    functions: tuple[Function, ...] = (row,) if kind == "function" else ()
    if kind == "table":
        own = schema.schemas.get(row.table_id)
        base = None if own is None or own.view is None else own.view.base_table_id
        tables = (row,) if base is None else (schema.tables[base], row)
    if kind == "aggregate":
        named = (row.state_function_id, row.final_function_id)
        functions = tuple(schema.functions[each] for each in dict.fromkeys(named) if each)
    return SchemaAnswer(
        epoch=0,
        state_id="",
        schema_version=schema.version,
        keyspaces=(schema.by_id[row.keyspace_id],),
        tables=tables,
        table_schemas=tuple(
            schema.schemas[each.table_id] for each in tables if each.table_id in schema.schemas
        ),
        types=(row,) if kind == "type" else (),
        functions=functions,
        aggregates=(row,) if kind == "aggregate" else (),
    )


def parameter(name: str, value: str) -> str:
    """Return a parameter of a table as CQL."""
    plain = name in _PLAIN_VALUES or value.startswith("{")
    return f"{name} = {value if plain else text_literal(value)}"


def _map(entries: Mapping[str, str]) -> str:
    inner = ", ".join(
        f"{text_literal(key)}: {text_literal(value)}" for key, value in entries.items()
    )
    return "{" + inner + "}"


def _with(options: Iterable[str]) -> str:
    found = [*options]
    return f" WITH {f'{chr(10)}{INDENT}AND '.join(found)}" if found else ""


def _list(items: Iterable[str]) -> str:
    return f",\n{INDENT}".join(items)


def _keyspace(keyspace: Keyspace) -> str:
    replication = {"class": "NetworkTopologyStrategy"}
    for dc in sorted(keyspace.replication):
        racks = keyspace.racks.get(dc)
        replication[dc] = str(keyspace.replication[dc]) if racks is None else ",".join(racks)
    options = [f"replication = {_map(replication)}"]
    if keyspace.tablets:
        initial = f", 'initial': {keyspace.initial_tablets}" if keyspace.initial_tablets else ""
        options.append(f"tablets = {{'enabled': true{initial}}}")
    return f"CREATE KEYSPACE {quoted(keyspace.name)}{_with(options)};"


def _in_order(types: Sequence[UserType]) -> Iterator[UserType]:
    """Yield the types, each after those that it uses."""
    by_name, done = {each.name: each for each in types}, set[str]()

    def visit(user_type: UserType) -> Iterator[UserType]:
        if user_type.name in done:
            return
        done.add(user_type.name)
        for name in sorted(user_type.user_types()):
            if name in by_name:
                yield from visit(by_name[name])
        yield user_type

    for user_type in types:
        yield from visit(user_type)


def _type(prefix: str, user_type: UserType) -> str:
    fields = _list(_field(field) for field in user_type.fields)
    return f"CREATE TYPE {prefix}{quoted(user_type.name)} (\n{INDENT}{fields}\n);"


def _field(field: TypeField) -> str:
    return f"{quoted(field.name)} {field.type}"


def _primary_key(schema: TableSchema) -> str:
    partition = [quoted(column.name) for column in schema.of_kind(ColumnKind.PARTITION_KEY)]
    clustering = [quoted(column.name) for column in schema.of_kind(ColumnKind.CLUSTERING)]
    first = partition[0] if len(partition) == 1 else f"({', '.join(partition)})"
    return f"PRIMARY KEY ({', '.join([first, *clustering])})"


def _options(schema: TableSchema, table: Table) -> Iterator[str]:
    clustering = [*schema.of_kind(ColumnKind.CLUSTERING)]
    if any(column.order != "asc" for column in clustering):
        order = ", ".join(f"{quoted(column.name)} {column.order.upper()}" for column in clustering)
        yield f"CLUSTERING ORDER BY ({order})"
    yield from (parameter(name, value) for name, value in schema.parameters.items())
    options = {
        name: str(value) for name, value in msgspec.structs.asdict(table.options).items() if value
    }
    if options:
        yield f"tablets = {_map(options)}"


def _table(prefix: str, table: Table, schema: TableSchema) -> str:
    columns = [
        f"{quoted(column.name)} {column.type}{' STATIC' * (column.kind is ColumnKind.STATIC)}"
        for column in schema.columns
    ]
    body = _list([*columns, _primary_key(schema)])
    options = _with(_options(schema, table))
    return f"CREATE TABLE {prefix}{quoted(table.name)} (\n{INDENT}{body}\n){options};"


def _index(prefix: str, table: Table, schema: TableSchema, index: Index) -> str:
    column = quoted(schema.column_by_id(index.column_id).name)
    wrapped = index.target not in (IndexTarget.SIMPLE, IndexTarget.VALUES)
    target = f"{index.target}({column})" if wrapped else column
    on = f"ON {prefix}{quoted(table.name)} ({target})"
    custom = f" USING {text_literal(index.using)}" if index.using else ""
    options = f" WITH OPTIONS = {_map(index.options)}" if index.options else ""
    kind = "CUSTOM INDEX" if index.using else "INDEX"
    return f"CREATE {kind} {quoted(index.name)} {on}{custom}{options};"


def _view(
    prefix: str, table: Table, schema: TableSchema, base: Table, base_schema: TableSchema
) -> str:
    assert schema.view is not None
    names = ", ".join(quoted(column.name) for column in schema.columns)
    condition = _condition(base_schema.column_by_id)
    where = f"\n{INDENT}AND ".join(map(condition, schema.view.restrictions))
    return (
        f"CREATE MATERIALIZED VIEW {prefix}{quoted(table.name)} AS\n"
        f"{INDENT}SELECT {'*' if schema.view.all_columns else names}\n"
        f"{INDENT}FROM {prefix}{quoted(base.name)}\n"
        f"{INDENT}WHERE {where}\n"
        f"{INDENT}{_primary_key(schema)}{_with(_options(schema, table))};"
    )


def _condition(column_by_id: Callable[[int], Column]) -> Callable[[ViewRestriction], str]:
    def condition(restriction: ViewRestriction) -> str:
        name = quoted(column_by_id(restriction.column_id).name)
        value = f" {restriction.value}" if restriction.value else ""
        return f"{name} {restriction.operator}{value}"

    return condition


def _function(prefix: str, function: Function) -> str:
    arguments = ", ".join(map(_field, function.arguments))
    on_null = "CALLED" if function.called_on_null_input else "RETURNS NULL"
    # A $ at the end would join the closing $$.
    dollars = "$$" in function.body or function.body.endswith("$")
    body = text_literal(function.body) if dollars else f"$${function.body}$$"
    return (
        f"CREATE FUNCTION {prefix}{quoted(function.name)} ({arguments})\n"
        f"{INDENT}{on_null} ON NULL INPUT\n"
        f"{INDENT}RETURNS {function.return_type}\n"
        f"{INDENT}LANGUAGE {function.language}\n"
        f"{INDENT}AS {body};"
    )


def _aggregate(prefix: str, aggregate: Aggregate, functions: Mapping[str, Function]) -> str:
    lines = [
        f"CREATE AGGREGATE {prefix}{quoted(aggregate.name)} ({', '.join(aggregate.argument_types)})",
        f"SFUNC {quoted(functions[aggregate.state_function_id].name)}",
        f"STYPE {aggregate.state_type}",
    ]
    if aggregate.final_function_id:
        lines.append(f"FINALFUNC {quoted(functions[aggregate.final_function_id].name)}")
    if aggregate.initial_condition:
        lines.append(f"INITCOND {aggregate.initial_condition}")
    return f"\n{INDENT}".join(lines) + ";"
