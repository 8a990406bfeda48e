"""Known bugs of co-located tables: what is done to a tablet and not to all tables that have it."""

from collections.abc import Iterable

import msgspec

from stele.domain.context import Decision, unknown_table
from stele.domain.ddl import tables
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.model.schema import Data, Keyspace, SchemaImage, Table, TableChanged, tablet_map
from stele.domain.names import TABLET_MAP
from stele.domain.ring.ranges import Range
from stele.domain.topology import live_copies
from stele.domain.topology.operations import keyspaces
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, planted


@planted(STORY)
def base_table_alone_moves(patch: Patch) -> None:
    """A tablet that moves is streamed and cleaned up of the table that owns the map, and of no other."""
    plain = SchemaImage.using

    def owner_alone(self: SchemaImage, placement: str) -> list[Data]:
        found = plain(self, placement)
        return found[:1] if placement.startswith(TABLET_MAP) else found

    patch.attribute(SchemaImage, "using", owner_alone)


@planted(STORY)
def colocated_rows_stay_behind(patch: Patch) -> None:
    """A node that gave a tablet away deletes only the rows of the table that owns the tablet map."""
    plain = live_copies.is_to_be_deleted

    def owned(image: Image, order: Order, data_id: str, range_: Range, shard: int = 0) -> bool:
        data = image.schema.of_data(data_id)
        table = None if data is None else image.schema.table_named(data.name)
        of_another = table is not None and bool(table.base_table_id)
        return not of_another and plain(image, order, data_id, range_, shard)

    patch.function(plain, owned)


@planted(STORY, rule="I7")
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


@planted(STORY)
def drop_takes_the_map_of_others(patch: Patch) -> None:
    """With a co-located table the map goes that others have too."""
    plain = keyspaces.dropped_table

    def with_map(image: Image, table: Table) -> Iterable[AnyFact]:
        yield from plain(image, table)
        if table.base_table_id:
            yield from keyspaces._dropped_placement(image, table.placement)

    patch.function(plain, with_map)


@planted(STORY)
def base_is_dropped_under_the_others(patch: Patch) -> None:
    """A table is dropped although others have its tablets."""
    patch.attribute(keyspaces, "check_alone", lambda image, table: None)
