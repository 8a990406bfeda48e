"""Keyspaces and tables of another state: those that are there become as they were, those that went since come
back empty, under ids of their own.
"""

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context
from stele.domain.image import Image
from stele.domain.overrides.draft import Draft
from stele.domain.repairs.facts import RepairsForgotten
from stele.domain.schema.facts import (
    TABLET_MAP,
    Balancing,
    BalancingSwitched,
    Keyspace,
    KeyspaceChanged,
    KeyspaceDropped,
    SchemaImage,
    Table,
    TableChanged,
    TableDropped,
)
from stele.domain.tables import sorted_values

replace = msgspec.structs.replace


class Renamed(msgspec.Struct, frozen=True):
    """The keyspaces and tables of another state by the ids that they are to have here; ``ids`` are the new ids
    of those that get one.
    """

    keyspaces: dict[str, Keyspace]
    tables: dict[str, Table]
    balancing: Balancing
    ids: dict[str, str]

    def placement(self, name: str) -> str:
        """What a placement of the other state is called here."""
        return _placement(name, self.ids)


def renamed(context: Context, target: Image) -> Renamed | Rejection:
    """An id that is not in the log's state may have been another's: nodes delete, and have deleted, by it."""
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
    refused = _check_identities(before, keyspaces, tables)
    return refused or Renamed(keyspaces, tables, schema.balancing, ids)


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
    before: SchemaImage, keyspaces: dict[str, Keyspace], tables: dict[str, Table]
) -> Rejection | None:
    """What is there keeps its name, its kind and its map: data lies by them."""
    for keyspace_id in sorted({*keyspaces} & {*before.by_id}):
        old, new = before.by_id[keyspace_id], keyspaces[keyspace_id]
        if (old.name, old.tablets) != (new.name, new.tablets):
            return _other("keyspace", old.name, keyspace_id)
    for table_id in sorted({*tables} & {*before.tables}):
        was, is_ = before.tables[table_id], tables[table_id]
        if (was.name, was.keyspace_id, was.placement) != (is_.name, is_.keyspace_id, is_.placement):
            return _other("table", before.full_name(was), table_id)
    return None


def _other(what: str, name: str, id_: str) -> Rejection:
    return Rejection(
        "another_entity",
        f"{what.capitalize()} {name} ({id_}) would have another name, kind or tablet map.",
        "Give what is new another id, or leave the id out of the file.",
        {"id": id_},
    )


def put_schema(draft: Draft, wanted: Renamed) -> None:
    """What is not wanted goes first, so that names are free."""
    before, version = draft.before.schema, draft.image.topology.version
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
    if before.balancing != wanted.balancing:
        draft.add(BalancingSwitched("", wanted.balancing))
