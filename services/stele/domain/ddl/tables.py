"""The creation and change of tables, their options, and the tables that share a map."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from stele.domain.balancer.first_places import first_places
from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, bad_name
from stele.domain.image import Image
from stele.domain.model.schema import (
    AlterTable,
    CreateTable,
    Keyspace,
    Table,
    TableChanged,
    TableOptions,
    tablet_map,
)
from stele.domain.model.settings import (
    AUTO_REPAIR,
    AUTO_REPAIR_THRESHOLD_S,
    MOST_THRESHOLD_S,
    OFF,
    ON,
)
from stele.domain.planner.allocation import NoRoom, allocate
from stele.domain.ring.columns import NodeNumbers
from stele.domain.ring.placement import Placement
from stele.domain.rules.schema import (
    accepted_drops,
    check_replication,
    check_table_stands,
    name_is_taken,
    standing_keyspace,
    standing_table,
)
from stele.domain.rules.table_parameters import cdc_option
from stele.domain.tablets.maps import MAX_TABLETS, combined, new_map
from stele.domain.tablets.sizing import Goals, first_count, scopes_of

# Options of tables.


NOT_SET: Final = msgspec.structs.asdict(TableOptions())
"""Each option with its value while it is not set."""


def changed_options(before: TableOptions, command: AlterTable) -> TableOptions | Rejection:
    """Return the options of a table after ``command``, or the rejection of an ambiguous command."""
    given = msgspec.structs.asdict(command.options)
    named = {name: value for name, value in given.items() if value != NOT_SET[name]}
    every = ", ".join(NOT_SET)
    unknown = [name for name in command.reset if name not in NOT_SET]
    if unknown:
        return Rejection(
            "bad_table_options",
            f"Cannot reset '{unknown[0][:40]}': tables have no such option.",
            f"Options are {every}.",
        )
    twice = [name for name in command.reset if name in named]
    if twice:
        return Rejection(
            "bad_table_options",
            f"Cannot both set and reset {twice[0]}.",
            "Name it once.",
        )
    if not named and not command.reset:
        return Rejection(
            "no_option_named",
            f"Cannot alter table {command.name}: the command names no option.",
            f"Name an option to set or to reset: {every}.",
        )
    # Options that are not named keep their values, so two commands on different options do not
    # conflict.
    return msgspec.structs.replace(before, **{n: NOT_SET[n] for n in command.reset}, **named)


def check_take_effect(keyspace: Keyspace, name: str, options: TableOptions) -> Rejection | None:
    """Refuse options for a table without tablets. All except ``cdc`` concern tablets."""
    if keyspace.tablets or msgspec.structs.replace(options, cdc="") == TableOptions():
        return None
    return Rejection(
        "no_tablets",
        f"Options of table {name} would have no effect: keyspace {keyspace.name} has no tablets.",
        "Leave the options out, or create the table in a keyspace with tablets.",
    )


def with_canonical_cdc(options: TableOptions) -> TableOptions:
    """Return the options, which ``bad_options`` accepts, with ``cdc`` as the log keeps it."""
    cdc = cdc_option(options.cdc)
    assert isinstance(cdc, str)
    return msgspec.structs.replace(options, cdc=cdc)


def bad_options(options: TableOptions) -> Rejection | None:
    least, most = options.min_tablet_count, options.max_tablet_count
    numbers = (
        least,
        most,
        options.min_per_shard_tablet_count,
        options.expected_data_size_in_gb,
    )
    if min(numbers) < 0 or max(numbers) > MAX_TABLETS:
        return Rejection(
            "bad_table_options",
            f"Options of a table are from 0 to {MAX_TABLETS}; more tablets it cannot have.",
            "0 says nothing.",
        )
    if options.auto_repair_enabled not in ("", ON, OFF):
        return Rejection(
            "bad_table_options",
            f"auto_repair_enabled is '{options.auto_repair_enabled[:40]}'.",
            f"Say {ON} or {OFF}; or nothing, and it is as {AUTO_REPAIR.name} says.",
        )
    if not 0 <= options.auto_repair_threshold <= MOST_THRESHOLD_S:
        return Rejection(
            "bad_table_options",
            f"auto_repair_threshold is from 0 to {MOST_THRESHOLD_S} seconds.",
            f"0 says nothing: then it is as {AUTO_REPAIR_THRESHOLD_S.name} says.",
        )
    cdc = cdc_option(options.cdc)
    if isinstance(cdc, Rejection):
        return cdc
    if most and least > most:
        return Rejection(
            "bad_table_options",
            f"min_tablet_count {least} is above max_tablet_count {most}.",
            "Raise the one, or lower the other.",
        )
    return None


# Rules of groups: the tables that can be co-located with one another.


def base_of(image: Image, keyspace: Keyspace, name: str) -> Table | Rejection:
    """Return the table of this name if a new table of the keyspace can share its tablet map."""
    schema = image.schema
    if not keyspace.tablets:
        return Rejection(
            "no_tablets",
            f"Keyspace {keyspace.name} has no tablets: all its tables are where its ranges are.",
            "Its tables stand together as they are; leave --colocate-with out.",
        )
    base = required(standing_table(image, name))
    if base.keyspace_id != keyspace.keyspace_id:
        return Rejection(
            "other_keyspace",
            f"Table {name} is not of keyspace {keyspace.name}, whose tables may have other replicas.",
            "Name a table of the same keyspace.",
        )
    # A group has one level, so that each map has one owner.
    if base.base_table_id:
        owner = schema.full_name(schema.map_owner(base))
        return Rejection(
            "base_is_colocated",
            f"Table {name} has no tablet map: it is co-located with {owner}.",
            f"Name {owner}: then all of them stand together.",
            {"base": owner},
        )
    return base


def check_options(
    image: Image, owner: Table, table: Table | None, options: TableOptions
) -> Rejection | None:
    """Check that options fit those of the table's group.

    A ``table`` of None is a new one of ``owner``.
    """
    # A repair covers all tables of the map, so only the owner has options of repair.
    if table is None or table.base_table_id:
        required(_check_repairs(image, owner, options))
    others = [each for each in image.schema.group_of(owner) if each != table]
    together = combined([options, *(each.options for each in others)])
    least, most = together.min_tablet_count, together.max_tablet_count
    if not others or not most or least <= most:
        return None
    names = ", ".join(image.schema.full_name(each) for each in others)
    return Rejection(
        "bad_table_options",
        f"With {names}, which has the same tablets, min_tablet_count would be {least} and"
        f" max_tablet_count {most}.",
        "Raise the one, or lower the other: the largest of the one counts, and the least of the other.",
    )


def _check_repairs(image: Image, owner: Table, options: TableOptions) -> Rejection | None:
    if not (options.auto_repair_enabled or options.auto_repair_threshold):
        return None
    name = image.schema.full_name(owner)
    return Rejection(
        "bad_table_options",
        f"A table that is co-located with {name} is repaired with it.",
        f"Give auto_repair_enabled and auto_repair_threshold to {name}.",
        {"base": name},
    )


# Creation and changes of tables.
#
# Dropping and truncating are operations (``topology/operations``).


def create_table(context: Context, command: CreateTable) -> Decision:
    """Create a table with a new id, even if the name was used before.

    It creates no new version, because no client routes by the table yet.
    """
    image = context.image
    keyspace_name, _, name = command.name.partition(".")
    keyspace = required(standing_keyspace(image, keyspace_name))
    required(
        bad_name("table", name, dots=False)
        or _check_name(image, command.name)
        or bad_options(command.options)
        or check_take_effect(keyspace, command.name, command.options)
    )
    table = Table(
        table_id=new_table_id(context, command.name),
        keyspace_id=keyspace.keyspace_id,
        name=name,
        options=with_canonical_cdc(command.options),
    )
    if command.colocated_with:
        return _colocated(image, keyspace, table, command.colocated_with)
    if not keyspace.tablets:
        return (TableChanged(table),)
    first = required(_first_map(image, keyspace, command.options))
    placement = tablet_map(table.table_id)
    created = TableChanged(msgspec.structs.replace(table, placement=placement))
    return created, *image.ring.creation(placement, first)


def new_table_id(context: Context, name: str) -> str:
    """Return the id of a table that this epoch creates under this name."""
    return context.unique(f"table {name}")


def _check_name(image: Image, name: str) -> Rejection | None:
    """Require that no table has this name."""
    known = image.schema.table_named(name)
    if known is None:
        return None
    return check_table_stands(image, known, accepted_drops(image)) or name_is_taken("table", name)


def _colocated(image: Image, keyspace: Keyspace, table: Table, name: str) -> Decision:
    """Create a table that shares the map of the table of this name, whatever moves there.

    Its writes go to the replicas that are to have them
    (docs/decisions/024-co-located-tables-share-a-map.md).
    """
    base = required(base_of(image, keyspace, name))
    required(check_options(image, base, None, table.options))
    return (TableChanged(msgspec.structs.replace(table, placement=base.placement)),)


def alter_table(context: Context, command: AlterTable) -> Decision:
    """Change the options that the command names; all others keep their values."""
    schema = context.image.schema
    table = required(standing_table(context.image, command.name))
    keyspace = schema.by_id[table.keyspace_id]
    required(check_take_effect(keyspace, command.name, command.options))
    if command.options.cdc and table.table_id in schema.schemas:
        return cdc_is_a_parameter(command.name)
    options = required(changed_options(table.options, command))
    # The options of a group are combined, so they are checked together with those of the
    # other tables.
    required(
        bad_options(options)
        or check_options(context.image, schema.map_owner(table), table, options)
    )
    return (TableChanged(msgspec.structs.replace(table, options=with_canonical_cdc(options))),)


def cdc_is_a_parameter(name: str) -> Rejection:
    return Rejection(
        "bad_table_options",
        f"Table {name} has columns, so cdc is one of its parameters and no option.",
        f"Use `ALTER TABLE {name} WITH cdc = {{'enabled': 'true'}}` with `stele schema apply`.",
    )


def _first_map(image: Image, keyspace: Keyspace, options: TableOptions) -> Placement | Rejection:
    """Return an even map. Moves under way count at their target; leaving nodes get no replica."""
    # Nodes may have left since the keyspace was created.
    required(check_replication(image, keyspace.wanted))
    there = first_places(image)
    scopes, goals = scopes_of(image, keyspace, there.held), Goals.of(image.features.settings)
    count = first_count(options, keyspace.initial_tablets, scopes, goals).count
    try:
        nodes, shards = allocate(
            there.state, count, keyspace.replication, keyspace.racks, there.surplus
        )
    except NoRoom as why:
        return Rejection(
            "too_few_nodes", f"{why}.", "Add nodes to that dc first, or lower the factor."
        )
    replicas, numbers = nodes.astype(np.int32), NodeNumbers(there.node_ids)
    return new_map(replicas, numbers, shards.astype(np.int32) if shards.any() else None)
