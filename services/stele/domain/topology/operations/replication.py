"""Change of a keyspace's replication: of one on the ring, and of one with tablets."""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import KeyspaceRfChange
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.model.ring import PlacementDropped
from stele.domain.model.schema import Keyspace, KeyspaceChanged, placement_name
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, RequestStatus, TransitionState
from stele.domain.ring import transition
from stele.domain.rules.requests import ended, new_request, started
from stele.domain.rules.schema import check_replication, replication_for
from stele.domain.tablets.copies import DeviatingTable, deviating_tables, goal, moves_of
from stele.domain.topology.operations.base import (
    MissingCondition,
    Operation,
    OwnPlacement,
    Served,
    State,
    every_member,
    planned_sets,
    receiving_nodes,
)
from stele.domain.topology.operations.keyspaces import free_keyspace, left_placement

# Change of a keyspace's replication: its ranges get other replicas on an unchanged ring.
#
# write_both_read_old -> write_both_read_new -> finishing -> (gone)
# failure before write_both_read_new: rollback_to_normal -> (gone)
#
# Keyspaces of equal replication share a placement. When the change opens, the keyspace gets a
# separate placement, named by the request. It is a copy of the shared one, row by row with the
# versions. At the end the keyspace uses the shared placement of the new replication, or the old one
# again. The rows there do not record the change, so the keyspace stores its version
# (``Keyspace.placed_version``). See docs/decisions/015-a-write-needs-a-quorum-of-both-sides.md.


replace = msgspec.structs.replace


def change_replication(context: Context, command: KeyspaceRfChange) -> Decision:
    """Queue the change for an existing keyspace; one with tablets uses another operation."""
    image = context.image
    keyspace = required(free_keyspace(image, command.name))
    whole = required(with_dcs_not_named(command, keyspace))
    wanted = required(replication_for(image, whole, tablets=keyspace.tablets))
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


def with_dcs_not_named(
    command: KeyspaceRfChange, keyspace: Keyspace
) -> KeyspaceRfChange | Rejection:
    """Return the command with the replication of all dcs: one that it does not name keeps its
    replicas.
    """
    racks = {dc: each for dc, each in command.racks.items() if each}
    named = command.replication.keys() | racks.keys()
    if not named:
        return Rejection(
            "bad_replication",
            f"Cannot change the replication of keyspace '{command.name}': the command names no dc.",
            "Name a dc and its replicas, for example {'dc1': 3}; 0 removes those of a dc.",
        )
    kept_racks = {dc: each for dc, each in keyspace.racks.items() if dc not in named}
    kept = {dc: rf for dc, rf in keyspace.replication.items() if dc not in named}
    return replace(
        command, replication={**kept, **command.replication}, racks={**kept_racks, **racks}
    )


def check_nodes(image: Image, requests: list[Request]) -> Rejection | None:
    """Refuse it if too few nodes are left since the request."""
    return check_replication(image, requests[0].wanted)


def own_placement(image: Image, request: Request) -> OwnPlacement:
    keyspace = image.schema.by_id[request.keyspace_id]
    return OwnPlacement(
        request.request_id, keyspace.placement, keyspace.replication, request.replication
    )


def begin_change(image: Image, opening: Transition, version: int) -> Iterable[AnyFact]:
    """Copy the rows with their versions, so that requests refused before are still refused."""
    keyspace = image.schema.by_id[opening.keyspace_id]
    # The copy precedes left_placement, which may drop the shared placement.
    yield from image.ring.creation(opening.transition_id, image.ring.placements[keyspace.placement])
    yield KeyspaceChanged(replace(keyspace, placement=opening.transition_id))
    yield from left_placement(image, keyspace)


def end_change(image: Image, done: Transition, epoch: int) -> Iterable[AnyFact]:
    request = image.requests.requests[done.transition_id]
    return to_shared_placement(image, done, request.replication)


def end_undone_change(image: Image, undone: Transition) -> Iterable[AnyFact]:
    keyspace = image.schema.by_id[undone.keyspace_id]
    return to_shared_placement(image, undone, keyspace.replication)


def to_shared_placement(
    image: Image, ended: Transition, replication: dict[str, int]
) -> Iterable[AnyFact]:
    """Return the keyspace to a shared placement, after the fence of its last version.

    The rows of its separate placement then equal those of the shared one. A missing shared
    placement is created now. The ring did not change meanwhile, because node operations wait.
    """
    keyspace, own = image.schema.by_id[ended.keyspace_id], ended.transition_id
    shared = placement_name(replication)
    # Another keyspace of this replication may have created it already.
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
    needed=every_member,
    check=check_nodes,
    own_placement=own_placement,
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
    on_open=begin_change,
    touched=planned_sets,
    receivers=receiving_nodes,
    on_done=end_change,
    on_undone=end_undone_change,
)


# Change of the replication of a keyspace with tablets (ScyllaDB's keyspace_rf_change).
#
# The request is the goal. While it runs, the balancer adds missing replicas to each tablet, then
# removes extra ones. It also moves replicas outside of a rack list to other racks. Each step
# changes one replica, by a separate migration (``balancer.replication``).
#
# It is done when all tables have the wanted replicas, and only then the keyspace changes. A cancel
# reverses the goal: it ends when all tables have their former replicas. Meanwhile each tablet may
# have any number of replicas between the two.


def tablets_missing(image: Image, request: Request) -> MissingCondition | None:
    """Return the tablets without their wanted replicas, or with moves still under way."""
    if request.status is RequestStatus.PENDING:
        return None
    keyspace = image.schema.by_id[request.keyspace_id]
    lacking = [*deviating_tables(image, keyspace)]
    if lacking:
        which = ", ".join(
            f"{each.tablets} of {each.of} tablets of {each.table}" for each in lacking
        )
        return MissingCondition(
            f"{which} to have {goal(image, keyspace).words()}",
            left=sum(each.left() for each in lacking),
            of=_replicas_that_change(image, keyspace, request),
        )
    moving = len([*moves_of(image, keyspace)])
    return MissingCondition(f"{moving} moves of tablets to end") if moving else None


def _replicas_that_change(image: Image, keyspace: Keyspace, request: Request) -> int:
    """Return how many replicas are made, deleted and moved to another rack in total."""
    one, two, placements = keyspace.replication, request.replication, image.ring.placements
    tables = image.schema.tables_of(keyspace)
    tablets = sum(len(placements[t.placement]) for t in tables if not t.base_table_id)
    counted = tablets * sum(abs(two.get(dc, 0) - one.get(dc, 0)) for dc in {*one, *two})
    return counted + request.replicas_to_move


def tablets_foreseen(image: Image, request: Request) -> tuple[str, ...]:
    """Return the balancer's work for it."""
    keyspace = image.schema.by_id[request.keyspace_id]
    return tuple(map(_in_words, deviating_tables(image, keyspace)))


def _in_words(each: DeviatingTable) -> str:
    found = f"{each.table}: {each.more} replicas of {each.of} tablets are to be made, "
    found += f"{each.fewer} to be deleted"
    return f"{found}, {each.to_move} to go to another rack" if each.to_move else found


def tablets_step(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """Start; then end as done, or as cancelled after it was undone."""
    image = context.image
    if request.status is RequestStatus.PENDING:
        keyspace = image.schema.by_id[request.keyspace_id]
        to_move = sum(each.to_move for each in deviating_tables(image, keyspace))
        return (RequestChanged(replace(started(context, request), replicas_to_move=to_move)),)
    # The balancer has restored the former replicas; the keyspace's row never changed.
    if request.cancelled:
        return ended(context, image, request, RequestStatus.CANCELLED, request.error)
    keyspace = image.schema.by_id[request.keyspace_id]
    changed = KeyspaceChanged(
        replace(keyspace, replication=request.replication, racks=request.racks)
    )
    return changed, *ended(context, image, request, RequestStatus.DONE, "")


TABLET_RF_CHANGE: Final = Operation(
    kind=RequestKind.TABLET_RF_CHANGE,
    command=None,
    ask=change_replication,
    priority=4,
    served=Served(missing=tablets_missing, step=tablets_step, goes_back=True),
    foreseen=tablets_foreseen,
)
