"""The domain of keyspaces and tables, entered in the registry."""

from collections.abc import Iterable

import msgspec
from immutables import Map

from stele.domain.registry_entry import Domain
from stele.domain.schema.balancing import switch_balancing_off, switch_balancing_on
from stele.domain.schema.decide import create_keyspace
from stele.domain.schema.facts import (
    AlterTable,
    Balancing,
    BalancingSwitched,
    CreateKeyspace,
    CreateTable,
    KeyspaceChanged,
    KeyspaceDropped,
    SchemaFact,
    SchemaImage,
    SwitchBalancingOff,
    SwitchBalancingOn,
    Table,
    TableChanged,
    TableDropped,
)
from stele.domain.schema.tables import alter_table, create_table
from stele.domain.tables import Json, changed_fields, changed_rows, row_json, sorted_values

replace = msgspec.structs.replace


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
    )


def _colocated(image: SchemaImage, table: Table, ids: set[str]) -> Map[str, tuple[str, ...]]:
    """With these ids of tables that are co-located where this one is; those without are left out."""
    base = table.base_table_id
    if not base:
        return image.colocated
    return image.colocated.set(base, tuple(sorted(ids))) if ids else image.colocated.delete(base)


def balancing_switched(image: SchemaImage, fact: BalancingSwitched) -> SchemaImage:
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
    """The switches of keyspaces and tables are in their rows."""
    if image.balancing != Balancing():
        yield BalancingSwitched("", image.balancing)
    yield from (KeyspaceChanged(keyspace) for keyspace in sorted_values(image.by_id))
    yield from (TableChanged(table) for table in sorted_values(image.tables))


def view(image: SchemaImage) -> Json:
    return {
        "balancing": image.balancing,
        "keyspaces": tuple(sorted(image.by_id.values(), key=lambda k: k.name)),
        "tables": tuple(sorted(image.tables.values(), key=image.full_name)),
    }


def diff(before: SchemaImage, after: SchemaImage) -> Json:
    return {
        "balancing": changed_fields(row_json(before.balancing), row_json(after.balancing)),
        "keyspaces": changed_rows("keyspace_id", before.by_id, after.by_id),
        "tables": changed_rows("table_id", before.tables, after.tables),
    }


DOMAIN = Domain(
    name="schema",
    empty=SchemaImage(),
    decide={
        CreateKeyspace: create_keyspace,
        CreateTable: create_table,
        AlterTable: alter_table,
        SwitchBalancingOff: switch_balancing_off,
        SwitchBalancingOn: switch_balancing_on,
    },
    apply={
        KeyspaceChanged: keyspace_changed,
        KeyspaceDropped: keyspace_dropped,
        TableChanged: table_changed,
        TableDropped: table_dropped,
        BalancingSwitched: balancing_switched,
    },
    to_facts=to_facts,
    view=view,
    diff=diff,
)
