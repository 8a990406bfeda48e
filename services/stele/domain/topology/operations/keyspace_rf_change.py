"""Change of a keyspace's replication: its ranges get other replicas, on a ring that stays as it is.

write_both_read_old -> write_both_read_new -> finishing -> (gone)
failure before write_both_read_new: rollback_to_normal -> (gone)

Keyspaces of equal replication share a placement. The one that changes gets a placement of its own when it
opens, named by the request: a copy of the shared one, row by row with the versions. In the end it goes to the
placement that is shared by those of the new replication, or back. The rows there know nothing of the change,
so the keyspace remembers its version (``Keyspace.placed_version``). See docs/decisions/015.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import RequestKind, TransitionState
from stele.domain.requests.facts import Request
from stele.domain.requests.rows import new_request
from stele.domain.ring import transition
from stele.domain.ring.facts import PlacementDropped
from stele.domain.schema.facts import KeyspaceChanged, placement_name
from stele.domain.schema.replication import check_replication, replication_for
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import (
    Operation,
    OwnPlacement,
    State,
    every_member,
    planned_sets,
    receiving_nodes,
)
from stele.domain.topology.operations.commands import KeyspaceRfChange
from stele.domain.topology.operations.keyspaces import free_keyspace, left_placement

replace = msgspec.structs.replace


def change_replication(context: Context, command: KeyspaceRfChange) -> Decision:
    """Queue the change for a keyspace that stands; one with tablets has an operation of its own."""
    image = context.image
    keyspace = free_keyspace(image, command.name)
    if isinstance(keyspace, Rejection):
        return keyspace
    wanted = replication_for(image, command, tablets=keyspace.tablets)
    if isinstance(wanted, Rejection):
        return wanted
    if keyspace.wanted == wanted:
        return Rejection(
            "replication_unchanged",
            f"Keyspace '{command.name}' has replication {wanted.words()} already.",
            "There is nothing to do.",
        )
    kind = RequestKind.TABLET_RF_CHANGE if keyspace.tablets else RequestKind.KEYSPACE_RF_CHANGE
    request = new_request(
        context,
        kind,
        keyspace_id=keyspace.keyspace_id,
        replication={**wanted.copies},
        racks={**wanted.racks},
        force=command.force,
    )
    return (request,)


def check(image: Image, requests: list[Request]) -> Rejection | None:
    """Nodes may have gone since it was asked for."""
    return check_replication(image, requests[0].wanted)


def own_placement(image: Image, request: Request) -> OwnPlacement:
    keyspace = image.schema.by_id[request.keyspace_id]
    return OwnPlacement(
        request.request_id, keyspace.placement, keyspace.replication, request.replication
    )


def on_open(image: Image, opening: Transition, version: int) -> Iterable[AnyFact]:
    """Rows with the versions that they have: whoever was refused before is refused on."""
    keyspace = image.schema.by_id[opening.keyspace_id]
    yield from image.ring.creation(opening.transition_id, image.ring.placements[keyspace.placement])
    yield KeyspaceChanged(replace(keyspace, placement=opening.transition_id))
    yield from left_placement(image, keyspace)


def on_done(image: Image, done: Transition, epoch: int) -> Iterable[AnyFact]:
    request = image.requests.requests[done.transition_id]
    return to_shared_placement(image, done, request.replication)


def on_undone(image: Image, undone: Transition) -> Iterable[AnyFact]:
    keyspace = image.schema.by_id[undone.keyspace_id]
    return to_shared_placement(image, undone, keyspace.replication)


def to_shared_placement(
    image: Image, ended: Transition, replication: dict[str, int]
) -> Iterable[AnyFact]:
    """Its last version is fenced, so the rows of its own placement are those of the shared one.

    That is made now when there is none. It stood still meanwhile: node operations wait.
    """
    keyspace, own = image.schema.by_id[ended.keyspace_id], ended.transition_id
    shared = placement_name(replication)
    if shared not in image.ring.placements:
        yield from image.ring.creation(shared, image.ring.placements[own])
    placed = replace(
        keyspace,
        replication=replication,
        placement=shared,
        placed_version=ended.entered_version,
    )
    yield KeyspaceChanged(placed)
    yield PlacementDropped(own)


_STATE: Final = TransitionState
KEYSPACE_RF_CHANGE: Final = Operation(
    kind=RequestKind.KEYSPACE_RF_CHANGE,
    command=KeyspaceRfChange,
    ask=change_replication,
    priority=4,
    first=_STATE.WRITE_BOTH_READ_OLD,
    states={
        _STATE.WRITE_BOTH_READ_OLD: State(
            delta=transition.write_both_read_old,
            streams=True,
            on_success=_STATE.WRITE_BOTH_READ_NEW,
            on_failure=_STATE.ROLLBACK_TO_NORMAL,
        ),
        _STATE.WRITE_BOTH_READ_NEW: State(
            delta=transition.write_both_read_new, on_success=_STATE.FINISHING
        ),
        _STATE.FINISHING: State(delta=transition.finish),
        _STATE.ROLLBACK_TO_NORMAL: State(delta=transition.rollback, undoing=True),
    },
    needed=every_member,
    receivers=receiving_nodes,
    touched=planned_sets,
    check=check,
    own_placement=own_placement,
    on_open=on_open,
    on_done=on_done,
    on_undone=on_undone,
)
