"""Checks and facts that operations on keyspaces and tables share."""

from collections.abc import Iterable

import msgspec

from stele.domain.base import Rejection
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.membership import NodeChanged
from stele.domain.model.repairs import RepairsForgotten
from stele.domain.model.requests import Request
from stele.domain.model.ring import PlacementDropped
from stele.domain.model.schema import Keyspace, Table, TableDropped
from stele.domain.model.transitions import TransitionUnplanned
from stele.domain.rules.schema import standing_keyspace, standing_table

replace = msgspec.structs.replace


def free_keyspace(image: Image, name: str) -> Keyspace | Rejection:
    """Return the keyspace of this name if no other request is about it, or has one of its tables
    exclusively.
    """
    keyspace = standing_keyspace(image, name)
    if isinstance(keyspace, Rejection):
        return keyspace
    tables = {table.table_id for table in image.schema.tables_of(keyspace)}
    for other in image.requests.unfinished():
        is_of_table = other.table_id in tables and _has_it(other)
        if other.keyspace_id == keyspace.keyspace_id or is_of_table:
            return _busy(other, f"keyspace '{keyspace.name}'")
    return keyspace


def free_table(image: Image, name: str) -> Table | Rejection:
    """Return the table of this name if no other request has it exclusively."""
    table = standing_table(image, name)
    if isinstance(table, Rejection):
        return table
    for other in image.requests.unfinished():
        mine = other.table_id == table.table_id and _has_it(other)
        if mine or other.keyspace_id == table.keyspace_id:
            return _busy(other, f"table '{name}'")
    return table


def check_alone(image: Image, table: Table) -> Rejection | None:
    """Refuse if another table shares this one's tablet map."""
    others = [each for each in image.schema.group_of(table) if each.base_table_id]
    if table.base_table_id or not others:
        return None
    names = [image.schema.full_name(each) for each in others]
    hint = f"Drop those first: `stele table drop {names[0]}`."
    if all(each.dropped_version for each in others):
        hint = "Wait a moment: they are being dropped. `stele requests` shows how far that is."
    return Rejection(
        "has_colocated_tables",
        f"Table {image.schema.full_name(table)} has the tablets of {', '.join(names)} too.",
        hint,
        {"tables": ",".join(names)},
    )


def _has_it(of_table: Request) -> bool:
    """Return whether it drops, truncates, restores or snapshots the table: it is not about single
    tablets.
    """
    return not of_table.tablet_count and not of_table.repairs


def _busy(other: Request, what: str) -> Rejection:
    return Rejection(
        "request_in_progress",
        f"Request {other.request_id} ({other.kind}) is about {what}.",
        f"Wait until it is done: `stele request follow {other.request_id}`; or cancel it.",
        {"request_id": other.request_id, "kind": other.kind},
    )


def dropped_table(image: Image, table: Table) -> Iterable[AnyFact]:
    """Yield the removal of the table and of the tablet map that it owns."""
    yield TableDropped(table.table_id)
    yield from repairs_forgotten(image, table.table_id)
    if table.placement and not table.base_table_id:
        yield from _dropped_placement(image, table.placement)


def repairs_forgotten(image: Image, table_id: str) -> Iterable[AnyFact]:
    """Yield the removal of the repair times, because the repaired data is gone."""
    if table_id in image.repairs.tables or table_id in image.repairs.restricted:
        yield RepairsForgotten(table_id)


def left_placement(image: Image, keyspace: Keyspace) -> Iterable[AnyFact]:
    """Yield the removal of the keyspace's placement, if no other keyspace uses it."""
    users = (k for k in image.schema.by_id.values() if k.placement == keyspace.placement)
    if all(other.keyspace_id == keyspace.keyspace_id for other in users):
        yield from _dropped_placement(image, keyspace.placement)


def _dropped_placement(image: Image, placement: str) -> Iterable[AnyFact]:
    yield PlacementDropped(placement)
    for other in image.topology.open():
        if placement in other.plans:
            # An open transition must not write rows of a placement that is gone.
            yield TransitionUnplanned(other.transition_id, placement)


def cleaned_everywhere(image: Image, epoch: int) -> Iterable[NodeChanged]:
    """Mark every member for cleanup, because each may hold data to delete."""
    for node in image.membership.taking_part().values():
        yield NodeChanged(replace(node, cleanup_since=epoch))


def has_no_data(name: str) -> Rejection:
    return Rejection(
        "keyspace_with_tablets",
        f"Keyspace '{name}' has tablets: its data is in its tables.",
        f"Name a table, as in '{name}.TABLE'; `stele table list` shows them.",
    )
