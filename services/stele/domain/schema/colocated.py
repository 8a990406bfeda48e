"""Which tables can be co-located with which: the rules of a group."""

from collections.abc import Sequence

from stele.domain.base import Rejection
from stele.domain.context import unknown_table
from stele.domain.image import Image
from stele.domain.schema.facts import Keyspace, Table, TableOptions
from stele.domain.tablets.groups import combined
from stele.domain.topology.operations.drop_table import drop_of


def base_of(image: Image, keyspace: Keyspace, name: str) -> Table | Rejection:
    """The table of this name, where a new table of the keyspace can have its tablet map."""
    schema, base = image.schema, image.schema.table_named(name)
    if not keyspace.tablets:
        return Rejection(
            "no_tablets",
            f"Keyspace {keyspace.name} has no tablets: all its tables are where its ranges are.",
            "Its tables stand together as they are; leave --colocate-with out.",
        )
    if base is None:
        return unknown_table(name)
    if base.keyspace_id != keyspace.keyspace_id:
        return Rejection(
            "other_keyspace",
            f"Table {name} is not of keyspace {keyspace.name}, whose tables may have other replicas.",
            "Name a table of the same keyspace.",
        )
    if base.base_table_id:
        owner = schema.full_name(schema.map_owner(base))
        return Rejection(
            "base_is_colocated",
            f"Table {name} has no tablet map of its own: it is co-located with {owner}.",
            f"Name {owner}: then all of them stand together.",
            {"base": owner},
        )
    return _check_stays(image, base, name) or base


def _check_stays(image: Image, base: Table, name: str) -> Rejection | None:
    drop = drop_of(image, base)
    if drop is None:
        return None
    return Rejection(
        "table_being_dropped",
        f"Table {name} is being dropped by request {drop.request_id}.",
        f"`stele cancel {drop.request_id}` ends that while it has not begun; or name another table.",
        {"request_id": drop.request_id},
    )


def check_options(
    image: Image, owner: Table, table: Table | None, options: TableOptions
) -> Rejection | None:
    """Whether options of ``table``, None: of a new one co-located with ``owner``, fit those of its group."""
    if table is None or table.base_table_id:
        refused = _check_repairs(image, owner, options)
        if refused is not None:
            return refused
    others = [each for each in image.schema.group_of(owner) if each != table]
    together = combined([options, *(each.options for each in others)])
    least, most = together.min_tablet_count, together.max_tablet_count
    if not others or not most or least <= most:
        return None
    return Rejection(
        "bad_table_options",
        f"With {_named(image, others)}, which has the same tablets, min_tablet_count would be {least} and"
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


def _named(image: Image, tables: Sequence[Table]) -> str:
    return ", ".join(image.schema.full_name(table) for table in tables)
