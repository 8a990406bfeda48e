"""Rules of schema objects (S1 to S6), as pure functions of images and commands.

Each check computes its facts again from the rows by id. It uses neither the maps by name nor the
functions that decide changes. The names of types are read from their texts by a regular expression.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from stele.domain.image import Image
from stele.domain.model import schema as c
from stele.domain.model.schema import SchemaImage
from stele.domain.model.schema_objects import SchemaVersion, TableSchema, UserType
from stele_simulator.violation import require

USED: Final = "S1"
NAMES: Final = "S2"
COLUMN_IDS: Final = "S3"
VERSIONS: Final = "S4"
WHOLE: Final = "S5"
BEING_DROPPED: Final = "S6"
_WORD: Final = re.compile(r'"(?:[^"]|"")+"|[A-Za-z_]\w*')
_NOT_USER: Final = {
    *("ascii", "bigint", "blob", "boolean", "counter", "date", "decimal", "double", "duration"),
    *("float", "inet", "int", "smallint", "text", "time", "timestamp", "timeuuid", "tinyint"),
    *("uuid", "varint", "frozen", "list", "map", "set", "tuple", "vector"),
}
"""Native types, and words that take types as arguments."""


def check_schema(before: Image, after: Image) -> None:
    """Check the objects that an epoch leaves. Raises Violation."""
    if after.requests.unfinished_by_id is not before.requests.unfinished_by_id:
        _check_views(after)
    if after.schema is before.schema:
        return
    _check_used(after)
    _check_names(after)
    _check_columns(before, after)
    _check_versions(before, after)
    _check_dropped(before, after)


def types_in(text: str) -> set[str]:
    """Return the names of the user-defined types in a type's text."""
    names = {word.strip('"') for word in _WORD.findall(text) if word not in _NOT_USER}
    return {name.replace('""', '"') for name in names}


def _check_used(after: Image) -> None:
    schema = after.schema
    types = {(each.keyspace_id, each.name) for each in schema.types.values()}
    for what, keyspace_id, texts in _texts(schema):
        missing = sorted(
            name for text in texts for name in types_in(text) if (keyspace_id, name) not in types
        )
        _demand(not missing, USED, after, f"the types of {what} exist", f"{missing} do not")
    for aggregate in schema.aggregates.values():
        used = {aggregate.state_function_id, aggregate.final_function_id} - {""}
        gone = sorted(used - {*schema.functions})
        _demand(not gone, USED, after, f"{aggregate.signature} has its functions", f"not {gone}")
    for table_id, columns in schema.schemas.items():
        _demand(table_id in schema.tables, USED, after, "columns have a table", f"not {table_id}")
        own = {column.column_id for column in columns.columns}
        for index in columns.indexes:
            _demand(
                index.column_id in own, USED, after, f"{index.name} has its column", "it is gone"
            )
        if columns.view is not None:
            base = schema.schemas.get(columns.view.base_table_id)
            kept = {} if base is None else {each.column_id: each.name for each in base.columns}
            seen = {each.column_id: each.name for each in columns.columns}
            _demand(
                seen.items() <= kept.items(),
                USED,
                after,
                f"view {schema.tables[table_id].name} has columns of its base: {kept}",
                f"it has {seen}",
            )


def _texts(schema: SchemaImage) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each object that names types, with the id of its keyspace and the texts of these types."""
    for table_id, columns in schema.schemas.items():
        table = schema.tables.get(table_id)
        if table is not None:
            yield f"table {table.name}", table.keyspace_id, [each.type for each in columns.columns]
    for user_type in schema.types.values():
        fields = [field.type for field in user_type.fields]
        yield f"type {user_type.name}", user_type.keyspace_id, fields
    for function in schema.functions.values():
        arguments = [each.type for each in function.arguments]
        yield f"function {function.name}", function.keyspace_id, [*arguments, function.return_type]


def _check_names(after: Image) -> None:
    schema = after.schema
    names = Counter[tuple[str, str, str]]()
    names.update(("keyspace", "", each.name) for each in schema.by_id.values())
    names.update(("table", each.keyspace_id, each.name) for each in schema.tables.values())
    names.update(("type", each.keyspace_id, each.name) for each in schema.types.values())
    routines = (*schema.functions.values(), *schema.aggregates.values())
    names.update(("routine", each.keyspace_id, each.signature) for each in routines)
    for table_id, columns in schema.schemas.items():
        keyspace_id = schema.tables[table_id].keyspace_id
        names.update(("index", keyspace_id, index.name) for index in columns.indexes)
        names.update(("column", table_id, column.name) for column in columns.columns)
    for user_type in schema.types.values():
        names.update(("field", user_type.type_id, field.name) for field in user_type.fields)
    twice = sorted(name for name, count in names.items() if count > 1)
    _demand(not twice, NAMES, after, "a name has one object", f"{twice} have several")


def _check_columns(before: Image, after: Image) -> None:
    for table_id, now in after.schema.schemas.items():
        ids = [each.column_id for each in now.columns]
        ids += [each.column_id for each in now.dropped_columns]
        _demand(
            len({*ids}) == len(ids),
            COLUMN_IDS,
            after,
            "an id has one column, present or dropped",
            f"{now.columns} and {now.dropped_columns}",
        )
        was = before.schema.schemas.get(table_id)
        if was is not None and was is not now and now.view is None:
            _check_ids(was, now, after)


def _check_ids(was: TableSchema, now: TableSchema, after: Image) -> None:
    old = {column.column_id: column for column in was.columns}
    dropped = {column.column_id for column in was.dropped_columns}
    kept = {column.column_id for column in now.columns}
    kept |= {column.column_id for column in now.dropped_columns}
    forgotten = {*old, *dropped} - kept
    _demand(not forgotten, COLUMN_IDS, after, "dropped columns are kept", f"not {forgotten}")
    for column in now.columns:
        known = old.get(column.column_id)
        _demand(
            known is not None or column.column_id >= was.next_column_id,
            COLUMN_IDS,
            after,
            f"a new column has an id of at least {was.next_column_id}",
            f"{column.name} has {column.column_id}",
        )
        same = known is None or (known.type, known.kind) == (column.type, column.kind)
        _demand(same, COLUMN_IDS, after, f"an id keeps its type: {known}", f"it has {column}")


def _check_versions(before: Image, after: Image) -> None:
    one, two = before.schema, after.schema
    for table_id, now in two.schemas.items():
        was = one.schemas.get(table_id)
        if was is None or _content(one, table_id, was) != _content(two, table_id, now):
            wanted = after.epoch
        else:
            wanted = was.version
        _demand(
            now.version == wanted,
            VERSIONS,
            after,
            f"the columns of {two.tables[table_id].name} have version {wanted}",
            f"they have {now.version}",
        )
    # A cluster whose schema is versioned gives each change of an object a new version.
    is_versioned = one.version != SchemaVersion()
    version = SchemaVersion(after.epoch, after.state_id.hex())
    _demand(
        not is_versioned
        or two.version == version
        or dict(_versioned(one)) == dict(_versioned(two)),
        VERSIONS,
        after,
        f"a changed schema has version {version}",
        f"it has {two.version}",
    )


def _versioned(schema: SchemaImage) -> Iterator[tuple[str, object]]:
    """Yield what gives the schema a version: all except the switches of the balancer."""
    for name in ("schemas", "types", "functions", "aggregates"):
        yield name, getattr(schema, name)
    for name in ("by_id", "tables"):
        rows = getattr(schema, name)
        yield name, {id_: _without_switch(row) for id_, row in rows.items()}


def _without_switch(row: c.Keyspace | c.Table) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__ if name != "balancing"}


def _content(schema: SchemaImage, table_id: str, columns: TableSchema) -> object:
    """Return all that a table's version depends on: the table's schema, and the types that it uses."""
    keyspace_id = schema.tables[table_id].keyspace_id
    types = {each.name: each for each in schema.types.values() if each.keyspace_id == keyspace_id}
    used = dict[str, UserType]()
    waiting = {name for column in columns.columns for name in types_in(column.type)}
    while waiting:
        name = waiting.pop()
        if name in types and name not in used:
            used[name] = types[name]
            waiting |= {each for field in types[name].fields for each in types_in(field.type)}
    fields = {name: user_type.fields for name, user_type in used.items()}
    return _own(columns), fields


def _own(columns: TableSchema) -> tuple[object, ...]:
    """Return a table's schema without its version."""
    return (
        columns.columns,
        columns.dropped_columns,
        columns.next_column_id,
        columns.parameters,
        columns.indexes,
    )


def _check_views(after: Image) -> None:
    """Check that no table is to be dropped whose views stay."""
    dropping = _dropping(after)
    for view_id, columns in after.schema.schemas.items():
        view = after.schema.tables[view_id]
        base_id = "" if columns.view is None else columns.view.base_table_id
        _demand(
            base_id not in dropping or bool({view_id, view.keyspace_id} & dropping),
            BEING_DROPPED,
            after,
            f"the base of view {view.name} stays",
            "its drop was accepted",
        )


def _dropping(image: Image) -> set[str]:
    """Return the ids of tables and keyspaces whose drop was accepted."""
    return {
        r.table_id or r.keyspace_id for r in image.requests.unfinished_by_id.values() if r.drops
    }


def _check_dropped(before: Image, after: Image) -> None:
    dropping = _dropping(before)
    for table_id, now in after.schema.schemas.items():
        table, was = after.schema.tables[table_id], before.schema.schemas.get(table_id)
        base = before.schema.tables.get(now.view.base_table_id) if now.view and not was else None
        for each in (table, base):
            doomed = each is not None and {each.table_id, each.keyspace_id} & dropping
            _demand(
                not doomed or (was is not None and _own(was) == _own(now)),
                BEING_DROPPED,
                after,
                f"{table.name} stays as it is, since a drop was accepted",
                f"it changes from {was} to {now}",
            )


def _demand(holds: bool, rule: str, after: Image, expected: str, found: str) -> None:
    require(holds, rule, expected, f"{found} at epoch {after.epoch}"[:600])


# -- batches


def check_batch(command: c.AlterSchema, after: Image) -> None:
    """S5: every change of a batch has its effect in the epoch. Raises Violation."""
    missing = [what for what, holds in _effects(after, command.changes) if not holds]
    _demand(not missing, WHOLE, after, f"all of {command.changes} is done", f"not {missing}")


def _effects(
    after: Image, changes: tuple[c.AnyChange, ...]
) -> Iterator[tuple[str | set[str], bool]]:
    """Yield what the changes want, and whether it is so. Later changes may undo earlier ones."""
    schema = after.schema
    objects = {each.name for each in schema.by_id.values()}
    objects |= {*map(schema.full_name, schema.tables.values())}
    types = {schema.full_type_name(each): each for each in schema.types.values()}
    removed = {each.name for each in changes if isinstance(each, c.TypeRemoval)}
    for change in changes:
        match change:
            case c.KeyspaceCreation() | c.TableCreation() | c.ViewCreation():
                yield change.name, change.name in objects
            case c.TypeCreation():
                yield change.name, change.name in types or change.name in removed
            case c.TypeRemoval():
                made = (each.name for each in changes if isinstance(each, c.TypeCreation))
                yield f"no {change.name}", change.name not in types or change.name in made
            case c.TypeAlteration() if change.name in types:
                fields = {field.name for field in types[change.name].fields}
                wanted = {*(field.name for field in change.add), *change.rename.values()}
                yield wanted, wanted <= fields
            case _:
                pass
    for name in sorted({each.name for each in changes if isinstance(each, c.TableAlteration)}):
        yield from _columns_altered(after, name, changes)


def _columns_altered(
    after: Image, name: str, changes: tuple[c.AnyChange, ...]
) -> Iterator[tuple[str | set[str], bool]]:
    table = after.schema.table_named(name)
    if table is None:
        return
    mine = [each for each in changes if isinstance(each, c.TableAlteration) and each.name == name]
    there = {column.name for column in after.schema.schemas[table.table_id].columns}
    added = {column.name for each in mine for column in each.add}
    added |= {new for each in mine for new in each.rename.values()}
    gone = {old for each in mine for old in (*each.drop, *each.rename)}
    yield added - gone, added - gone <= there
    yield f"no {gone - added}", not (gone - added) & there
