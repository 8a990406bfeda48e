"""Operations that remove the data of keyspaces and tables: drop and truncate.

The checks and facts that other operations on keyspaces and tables share come first.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.membership import NodeChanged
from stele.domain.model.operations import DropKeyspace, DropTable, Truncate
from stele.domain.model.repairs import RepairsForgotten
from stele.domain.model.requests import Request
from stele.domain.model.ring import PlacementDropped
from stele.domain.model.schema import (
    Keyspace,
    KeyspaceChanged,
    KeyspaceDropped,
    Table,
    TableChanged,
    TableDropped,
)
from stele.domain.model.transitions import Transition, TransitionUnplanned
from stele.domain.names import OrderKind, RequestKind, TransitionState
from stele.domain.rules.requests import new_request
from stele.domain.rules.schema import (
    check_no_views,
    dropped_objects,
    standing_keyspace,
    standing_table,
)
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    Operation,
    State,
    every_member,
    replicas_of_data,
)

# Checks and facts that operations on keyspaces and tables share.


replace = msgspec.structs.replace


def free_keyspace(image: Image, name: str) -> Keyspace | Rejection:
    """Return the keyspace of this name if no other request is about it, or has one of its tables
    exclusively.
    """
    keyspace = required(standing_keyspace(image, name))
    tables = {table.table_id for table in image.schema.tables_of(keyspace)}
    for other in image.requests.unfinished():
        is_of_table = other.table_id in tables and _has_it(other)
        if other.keyspace_id == keyspace.keyspace_id or is_of_table:
            return _busy(other, f"keyspace '{keyspace.name}'")
    return keyspace


def free_table(image: Image, name: str) -> Table | Rejection:
    """Return the table of this name if no other request has it exclusively."""
    table = required(standing_table(image, name))
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


# Drop a keyspace: after no version in use serves it, its row is removed and its name is free.
#
# drop_keyspace -> (gone)
#
# Requests that are routed by an older version are fenced out in between. So no write under the old
# id can be acknowledged once a keyspace of the same name exists.


def drop_keyspace(context: Context, command: DropKeyspace) -> Decision:
    """Queue the drop of an existing keyspace."""
    keyspace = required(free_keyspace(context.image, command.name))
    request = new_request(context, RequestKind.DROP_KEYSPACE, keyspace_id=keyspace.keyspace_id)
    return (request,)


def begin_keyspace_drop(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
    keyspace = image.schema.by_id[transition.keyspace_id]
    # The row stays until the fence is known, so the name is not free before (rule 36).
    yield KeyspaceChanged(replace(keyspace, dropped_version=version))


def end_keyspace_drop(image: Image, transition: Transition, epoch: int) -> Iterable[AnyFact]:
    """Remove its tables, its row, and its placement if no other keyspace uses it."""
    keyspace = image.schema.by_id[transition.keyspace_id]
    for table in image.schema.tables_of(keyspace):
        yield from dropped_table(image, table)
    yield from dropped_objects(image.schema, keyspace)
    yield KeyspaceDropped(keyspace.keyspace_id)
    if not keyspace.tablets:
        yield from left_placement(image, keyspace)
    yield from cleaned_everywhere(image, epoch)


DROP_KEYSPACE: Final = Operation(
    kind=RequestKind.DROP_KEYSPACE,
    command=DropKeyspace,
    ask=drop_keyspace,
    priority=0,
    first=TransitionState.DROP_KEYSPACE,
    states={TransitionState.DROP_KEYSPACE: State()},
    on_open=begin_keyspace_drop,
    touched=replicas_of_data,
    on_done=end_keyspace_drop,
)


# Drop a table: after no version in use serves it, its row is removed and its name is free.
#
# drop_table -> (gone)
#
# See ``drop_keyspace``. Migrations of its tablets end without effect. If the table is co-located
# with another one, that table stays with its map and its migrations.


def drop_table(context: Context, command: DropTable) -> Decision:
    """Queue the drop of an existing table without views whose tablet map no other table shares."""
    table = required(free_table(context.image, command.name))
    required(check_alone(context.image, table) or check_no_views(context.image, table))
    return (new_request(context, RequestKind.DROP_TABLE, table_id=table.table_id),)


def begin_table_drop(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
    table = image.schema.tables[transition.table_id]
    # The row stays until the fence is known, so the name is not free before (rule 36).
    yield TableChanged(replace(table, dropped_version=version))


def end_table_drop(image: Image, transition: Transition, epoch: int) -> Iterable[AnyFact]:
    yield from dropped_table(image, image.schema.tables[transition.table_id])
    yield from cleaned_everywhere(image, epoch)


DROP_TABLE: Final = Operation(
    kind=RequestKind.DROP_TABLE,
    command=DropTable,
    ask=drop_table,
    priority=0,
    first=TransitionState.DROP_TABLE,
    states={TransitionState.DROP_TABLE: State()},
    on_open=begin_table_drop,
    touched=replicas_of_data,
    on_done=end_table_drop,
)


# Truncate: data written before is deleted on every replica and never returns.
#
# It applies to a table, or to a keyspace without tablets.
#
# truncate -> (gone)
#
# There is no way back. Entering the state gives the data another id, so writes of older versions no
# longer count (docs/decisions/016-truncated-data-has-another-id.md). It is left after every member
# has deleted the old data, or is excluded.


def truncate(context: Context, command: Truncate) -> Decision:
    """Queue it for the existing table or keyspace of this name."""
    if context.image.schema.table_named(command.name) is not None:
        table = required(free_table(context.image, command.name))
        return (new_request(context, RequestKind.TRUNCATE, table_id=table.table_id),)
    keyspace = required(free_keyspace(context.image, command.name))
    if keyspace.tablets:
        return has_no_data(command.name)
    return (new_request(context, RequestKind.TRUNCATE, keyspace_id=keyspace.keyspace_id),)


def begin_truncation(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
    if transition.table_id:
        table = image.schema.tables[transition.table_id]
        # The version gives the data another id from this epoch on (rule 36).
        yield TableChanged(replace(table, truncated_version=version))
        if len(image.schema.group_of(table)) == 1:  # what others have there stays repaired
            yield from repairs_forgotten(image, table.table_id)
    else:
        keyspace = image.schema.by_id[transition.keyspace_id]
        yield KeyspaceChanged(replace(keyspace, truncated_version=version))


TRUNCATE: Final = Operation(
    kind=RequestKind.TRUNCATE,
    command=Truncate,
    ask=truncate,
    priority=GLOBAL_PRIORITY,
    needed=every_member,
    ends_by_silence=True,
    first=TransitionState.TRUNCATE,
    states={TransitionState.TRUNCATE: State(work_of_members=OrderKind.TRUNCATE)},
    on_open=begin_truncation,
    touched=replicas_of_data,
)
