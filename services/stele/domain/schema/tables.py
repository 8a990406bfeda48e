"""Creating and altering tables. Dropping and truncating one are operations: ``topology/operations``."""

import msgspec
import numpy as np

from stele.domain.balance.allocation import NoRoom, allocate
from stele.domain.base import Rejection
from stele.domain.context import (
    Context,
    Decision,
    bad_name,
    unknown_keyspace,
    unknown_table,
)
from stele.domain.image import Image
from stele.domain.ring.numbers import NodeNumbers
from stele.domain.ring.placement import Placement
from stele.domain.schema.colocated import base_of, check_options
from stele.domain.schema.facts import (
    AlterTable,
    CreateTable,
    Keyspace,
    Table,
    TableChanged,
    TableOptions,
    tablet_map,
)
from stele.domain.schema.names import check_name_is_free
from stele.domain.schema.options import bad_options
from stele.domain.schema.replication import check_replication
from stele.domain.tablets.columns import held_in, tablets_of
from stele.domain.tablets.maps import new_map
from stele.domain.tablets.sizing import Goals, first_count, scopes_of


def create_table(context: Context, command: CreateTable) -> Decision:
    """A new id, whatever the name was used for before; no new version, since nobody routes by it yet."""
    image = context.image
    keyspace_name, _, name = command.name.partition(".")
    keyspace = image.schema.named(keyspace_name)
    if keyspace is None or keyspace.dropped_version:
        return unknown_keyspace(keyspace_name)
    refused = (
        bad_name("table", name, dots=False)
        or check_name_is_free("table", command.name, image.schema.table_named(command.name))
        or bad_options(command.options)
    )
    if refused is not None:
        return refused
    table = Table(
        table_id=context.unique(f"table {command.name}"),
        keyspace_id=keyspace.keyspace_id,
        name=name,
        options=command.options,
    )
    if command.colocated_with:
        return _colocated(image, keyspace, table, command.colocated_with)
    if not keyspace.tablets:
        return (TableChanged(table),)
    first = _first_map(image, keyspace, command.options)
    if isinstance(first, Rejection):
        return first
    placement = tablet_map(table.table_id)
    created = TableChanged(msgspec.structs.replace(table, placement=placement))
    return created, *image.ring.creation(placement, first)


def _colocated(image: Image, keyspace: Keyspace, table: Table, name: str) -> Decision:
    """It has the map of the table of this name, whatever moves there: what is written to it goes to whoever is
    to have it (docs/decisions/024-co-located-tables-share-a-map.md).
    """
    base = base_of(image, keyspace, name)
    if isinstance(base, Rejection):
        return base
    refused = check_options(image, base, None, table.options)
    if refused is not None:
        return refused
    return (TableChanged(msgspec.structs.replace(table, placement=base.placement)),)


def alter_table(context: Context, command: AlterTable) -> Decision:
    schema = context.image.schema
    table = schema.table_named(command.name)
    if table is None:
        return unknown_table(command.name)
    refused = bad_options(command.options) or check_options(
        context.image, schema.map_owner(table), table, command.options
    )
    if refused is not None:
        return refused
    return (TableChanged(msgspec.structs.replace(table, options=command.options)),)


def _first_map(image: Image, keyspace: Keyspace, options: TableOptions) -> Placement | Rejection:
    """Even from the start, replicas counted that are under way and those not that leave."""
    refused = check_replication(image, keyspace.wanted)
    if refused is not None:
        return refused
    there = tablets_of(image)
    state = there.state
    scopes, goals = scopes_of(image, keyspace, held_in(there)), Goals.of(image.features.settings)
    count = first_count(options, keyspace.initial_tablets, scopes, goals).count
    try:
        nodes, shards = allocate(state, count, keyspace.replication, keyspace.racks)
    except NoRoom as why:
        return Rejection(
            "too_few_nodes", f"{why}.", "Add nodes to that dc first, or lower the factor."
        )
    replicas, numbers = nodes.astype(np.int32), NodeNumbers(tuple(there.node_ids))
    return new_map(replicas, numbers, shards.astype(np.int32) if shards.any() else None)
