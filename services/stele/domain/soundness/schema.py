"""Keyspaces and tables: names that are one's alone, and places for all that has data."""

from collections import defaultdict
from collections.abc import Iterator

from stele.domain.context import bad_name
from stele.domain.image import Image
from stele.domain.ring.placement import Placement
from stele.domain.schema.facts import Keyspace, Table
from stele.domain.schema.options import bad_options
from stele.domain.soundness.flaw import Flaw
from stele.domain.tablets.ranges import MAX_TABLETS, range_of


def schema_flaws(image: Image) -> Iterator[Flaw]:
    schema = image.schema
    for keyspace_id in sorted(schema.by_id):
        keyspace = schema.by_id[keyspace_id]
        place = f"keyspace {keyspace.name} ({keyspace_id})"
        yield from (Flaw(place, what) for what in _of_keyspace(image, keyspace))
    for table_id in sorted(schema.tables):
        table = schema.tables[table_id]
        place = f"table {schema.full_name(table)} ({table_id})"
        yield from (Flaw(place, what) for what in _of_table(image, table))
    yield from _names(image)
    used = {data.placement for data in schema.all_data()}
    for name in sorted({*image.ring.placements} - used):
        yield Flaw(f"placement {name}", "no keyspace and no table has it")


def _of_keyspace(image: Image, keyspace: Keyspace) -> Iterator[str]:
    refused = bad_name("keyspace", keyspace.name, dots=False)
    if refused is not None:
        yield f"{refused.message} {refused.hint}"
    if any(factor < 1 for factor in keyspace.replication.values()):
        yield f"its replication is {keyspace.replication}; leave out a dc that has no replicas"
    if not keyspace.replication:
        yield "it has no replicas in any dc"
    if not 0 <= keyspace.initial_tablets <= (MAX_TABLETS if keyspace.tablets else 0):
        yield f"initial_tablets is {keyspace.initial_tablets}; it is up to {MAX_TABLETS}, and 0 without tablets"
    for dc, racks in sorted(keyspace.racks.items()):
        copies = keyspace.replication.get(dc, 0)
        if len(racks) != copies:
            yield f"it names {len(racks)} racks in {dc}, where it has {copies} replicas"
    yield from _versions(image, keyspace)
    if keyspace.placed_version > image.topology.version:
        yield f"its placed_version {keyspace.placed_version} is above the topology's"
    if not keyspace.tablets and keyspace.placement not in image.ring.placements:
        yield f"there is no placement {keyspace.placement or '(none)'}"


def _of_table(image: Image, table: Table) -> Iterator[str]:
    refused = bad_name("table", table.name, dots=False)
    if refused is not None:
        yield f"{refused.message} {refused.hint}"
    yield from _versions(image, table)
    refused = bad_options(table.options)
    if refused is not None:
        yield f"{refused.message} {refused.hint}"
    keyspace = image.schema.by_id[table.keyspace_id]
    if keyspace.tablets != bool(table.placement):
        has = "a" if table.placement else "no"
        yield f"it has {has} tablet map, and its keyspace says tablets: {keyspace.tablets}"
    if not table.placement:
        return
    placement = image.ring.placements.get(table.placement)
    if placement is None:
        yield f"there is no placement {table.placement}"
    elif not _is_tablet_map(placement):
        yield f"placement {table.placement} is no tablet map: its rows do not divide the ring evenly"
    base = image.schema.tables.get(table.base_table_id)
    if table.base_table_id and (base is None or base.keyspace_id != table.keyspace_id):
        yield f"there is no table {table.base_table_id} in its keyspace, with which it is co-located"
    elif base is not None and base.base_table_id:
        yield f"it is co-located with {base.name}, which has no tablet map of its own"


def _versions(image: Image, owner: Keyspace | Table) -> Iterator[str]:
    for name in ("dropped_version", "truncated_version"):
        version = getattr(owner, name)
        if version > image.topology.version:
            yield f"its {name} {version} is above the topology's version {image.topology.version}"


def _is_tablet_map(placement: Placement) -> bool:
    count = len(placement)
    if count & (count - 1) or count > MAX_TABLETS:
        return False
    ends = (row.end for row in placement.rows)
    return all(end == range_of(count, tablet).end for tablet, end in enumerate(ends))


def _names(image: Image) -> Iterator[Flaw]:
    ids = defaultdict[str, list[str]](list)
    for keyspace in image.schema.by_id.values():
        ids[f"keyspace {keyspace.name}"].append(keyspace.keyspace_id)
    for table in image.schema.tables.values():
        ids[f"table {image.schema.full_name(table)}"].append(table.table_id)
    for name, found in ids.items():
        if len(found) > 1:
            yield Flaw(name, f"several have this name: {', '.join(sorted(found))}")
