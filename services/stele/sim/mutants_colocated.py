"""Known bugs of co-located tables: what is done to a tablet and not to all tables that have it."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from stele.agent import pulling as streaming
from stele.domain.context import Decision, unknown_table
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.ring.ranges import Range
from stele.domain.schema import colocated, switches, tables
from stele.domain.schema.facts import (
    TABLET_MAP,
    Data,
    Keyspace,
    SchemaImage,
    Table,
    TableChanged,
    TableOptions,
    tablet_map,
)
from stele.domain.tablets import groups
from stele.domain.tablets.tablet_stats import TabletStats
from stele.domain.topology import wanted
from stele.domain.topology.operations import drop_table, keyspaces
from stele.sim.patching import Patch


def base_table_alone_moves(patch: Patch) -> None:
    """A tablet that moves is streamed and cleaned up of the table that owns the map, and of no other."""
    plain = SchemaImage.using

    def owner_alone(self: SchemaImage, placement: str) -> list[Data]:
        found = plain(self, placement)
        return found[:1] if placement.startswith(TABLET_MAP) else found

    patch.attribute(SchemaImage, "using", owner_alone)


def colocated_rows_stay_behind(patch: Patch) -> None:
    """Who has given a tablet away deletes the rows of the table that owns the map alone."""
    plain = wanted.left_behind

    def owned(image: Image, order: Order, data_id: str, range_: Range, shard: int = 0) -> bool:
        data = image.schema.of_data(data_id)
        table = None if data is None else image.schema.table_named(data.name)
        of_another = table is not None and bool(table.base_table_id)
        return not of_another and plain(image, order, data_id, range_, shard)

    patch.function(plain, owned)


def colocated_table_has_a_copy_of_the_map(patch: Patch) -> None:
    """A co-located table begins where the other one is, and moves by itself."""

    def copied(image: Image, keyspace: Keyspace, table: Table, name: str) -> Decision:
        base = image.schema.table_named(name)
        if base is None or not base.placement:
            return unknown_table(name)
        placement = tablet_map(table.table_id)
        created = TableChanged(msgspec.structs.replace(table, placement=placement))
        return created, *image.ring.creation(placement, image.ring.placements[base.placement])

    patch.attribute(tables, "_colocated", copied)


def drop_takes_the_map_of_others(patch: Patch) -> None:
    """With a co-located table the map goes that others have too."""
    plain = keyspaces.dropped_table

    def with_map(image: Image, table: Table) -> Iterable[AnyFact]:
        yield from plain(image, table)
        if table.base_table_id:
            yield from keyspaces._dropped_placement(image, table.placement)  # noqa: SLF001

    patch.function(plain, with_map)


def base_is_dropped_under_the_others(patch: Patch) -> None:
    """A table is dropped although others have its tablets."""
    patch.attribute(drop_table, "check_alone", lambda image, table: None)


def dropped_base_is_taken(patch: Patch) -> None:
    """A table is co-located with one whose drop has been asked for, and goes with its map."""
    patch.attribute(colocated, "_check_stays", lambda image, base, name: None)


def requests_name_one_table_of_a_group(patch: Patch) -> None:
    """A request about a co-located table is about that alone, so one of its base knows nothing of it."""
    patch.attribute(SchemaImage, "standing_map_owner", SchemaImage.table_named)


def group_weighs_as_its_base(patch: Patch) -> None:
    """The balancer counts the bytes and rates of the table that owns the map, and not of the others."""

    def first(tables: Sequence[TabletStats]) -> TabletStats:
        return tables[0]

    patch.function(groups.summed, first)


def options_of_the_base_count_alone(patch: Patch) -> None:
    """What a co-located table asks for is not heard."""

    def first(options: Sequence[TableOptions]) -> TableOptions:
        return options[0]

    patch.function(groups.combined, first)


def switch_of_a_colocated_table_is_not_heard(patch: Patch) -> None:
    """Tablets move of which a table is switched off, since another one owns the map."""
    plain = SchemaImage.group_of

    def alone(schema: SchemaImage, table: Table, now_ms: int = 0) -> Iterable[object]:
        names = {schema.full_name(each) for each in plain(schema, table) if each != table}
        return (off for off in off_for(schema, table, now_ms) if off.name not in names)

    off_for = switches.off_for
    patch.function(off_for, alone)


def younger_tables_are_not_streamed(patch: Patch) -> None:
    """A node pulls of a tablet what its owner has, and forgets the others'."""
    plain = streaming._data_ids  # noqa: SLF001 - bugs are planted in private places too
    patch.attribute(streaming, "_data_ids", lambda image, placement: plain(image, placement)[:1])


COLOCATED_MUTANTS: Final = (
    colocated_table_has_a_copy_of_the_map,
    base_table_alone_moves,
    colocated_rows_stay_behind,
    drop_takes_the_map_of_others,
    base_is_dropped_under_the_others,
)
COLOCATED_TEST_MUTANTS: Final = (
    dropped_base_is_taken,
    requests_name_one_table_of_a_group,
    group_weighs_as_its_base,
    options_of_the_base_count_alone,
    switch_of_a_colocated_table_is_not_heard,
    younger_tables_are_not_streamed,
)
