"""Planted bugs of topology operations: gates, fences, sessions, quorums, placements, data."""
# ruff: noqa: SLF001 - bugs are planted in private places too

from collections.abc import Set
from typing import Any, Final

import msgspec

from stele.coordinator import steps
from stele.coordinator.work import Work, work
from stele.domain import acks, commands, decide, facts, stages
from stele.domain.acks import AckTable, Barrier, barrier
from stele.domain.decide import entry, operation, requests, undo
from stele.domain.decide.context import Context
from stele.domain.fencing import VersionTracker, check_fence
from stele.domain.image import Image
from stele.domain.messages import Ack
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring import strategy, transition
from stele.domain.ring.quorum import quorum_of, read_satisfied, write_satisfied
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.transition import TransitionRow, stream_sources
from stele.domain.sessions import SessionManager
from stele.sim import node_work
from stele.sim.messages import Key, token_of_key
from stele.sim.node import Node
from stele.sim.node_work import OrderWorker
from stele.sim.patching import Patch

replace = msgspec.structs.replace
_STATE = TransitionState


def _stage(patch: Patch, kind: RequestKind, state: TransitionState, **changes: Any) -> None:
    table = stages.STAGES[kind]
    patch.item(table, state, replace(table[state], **changes))


# --- gates


def skip_the_gate(patch: Patch) -> None:
    """Steps do not wait for acknowledgements."""
    patch.function(barrier, lambda *a, **k: Barrier(True, True, ()))


def gate_counts_the_old_replicas_only(patch: Patch) -> None:
    """A quorum of the replicas before is enough, those after are not asked."""

    def old_only(image: Image, nodes: Set[str]) -> bool:
        found = image.topology.operation
        rows = [] if found is None else [r for plan in found.plans.values() for r in plan.rows]
        return all(len(set(r.old) & nodes) >= quorum_of(len(r.old)) for r in rows if r.old)

    patch.function(acks.covers_quorums, old_only)


def gate_needs_one_answer(patch: Patch) -> None:
    """One node that answered stands for all."""
    patch.function(acks.covers_quorums, lambda image, nodes: bool(nodes))


def fence_need_not_be_known(patch: Patch) -> None:
    """The next step begins before a quorum knows that the older version is fenced out."""
    waits = steps._barrier

    def hasty(memory: Any, seen: Any, limits: Any, epoch: int) -> Barrier:
        if epoch == seen.image.topology.topology.fence_epoch:
            return Barrier(True, True, ())
        return waits(memory, seen, limits, epoch)

    patch.attribute(steps, "_barrier", hasty)


def node_acknowledges_before_applying(patch: Patch) -> None:
    """Nodes acknowledge what is in the log, not what they have applied."""
    take = AckTable.with_ack

    def eager(self: AckTable, ack: Ack, now_s: float) -> AckTable:
        boast = 1_000_000
        return take(self, replace(ack, epoch=boast, oldest_version_in_use=boast), now_s)

    patch.attribute(AckTable, "with_ack", eager)


def requests_do_not_hold_their_version(patch: Patch) -> None:
    """Barriers do not wait for requests that are routed by the version before."""
    patch.attribute(VersionTracker, "oldest_in_use", lambda self, current: current)


def drained_is_not_asked(patch: Patch) -> None:
    """A node that has applied the epoch passes, whatever it still works on."""
    blocked = acks._blocked_by

    def lenient(
        table: AckTable,
        node_id: str,
        epoch: int,
        version: int,
        session: str,
        state_id_of: acks.StateIdOf,
    ) -> str:
        return blocked(table, node_id, epoch, 0, session, state_id_of)

    patch.attribute(acks, "_blocked_by", lenient)


def reads_move_before_streaming(patch: Patch) -> None:
    """The coordinator does not wait for the data."""

    def nothing_to_do(memory: Any, *rest: Any) -> Work:
        return Work(memory, (), (), "")

    patch.function(work, nothing_to_do)


def term_is_not_checked(patch: Patch) -> None:
    """A coordinator that was replaced goes on."""
    patch.attribute(operation, "_check_term", lambda image, term: None)


def fence_above_version(patch: Patch) -> None:
    """The fence is put above the version that routes."""

    def above(context: Context, command: commands.AdvanceFence) -> Any:
        topology = context.image.topology.topology
        fence, epoch = topology.version + 1, context.epoch
        return (facts.TopologyChanged(replace(topology, fence_version=fence, fence_epoch=epoch)),)

    patch.item(decide._DECIDE, commands.AdvanceFence, above)


def dead_nodes_are_waited_for(patch: Patch) -> None:
    """A request that needs a dead node waits for ever."""
    patch.attribute(steps, "_gone", lambda memory, seen, limits: [])


# --- ways back


def rollback_after_the_point_of_no_return(patch: Patch) -> None:
    """An operation may be undone when reads have moved already."""
    _stage(patch, RequestKind.JOIN, _STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.LEFT_TOKEN_RING)
    _stage(
        patch, RequestKind.LEAVE, _STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.ROLLBACK_TO_NORMAL
    )


def rollback_forgets_the_placements(patch: Patch) -> None:
    """The books are closed, the rows stay as they are."""
    _stage(patch, RequestKind.JOIN, _STATE.LEFT_TOKEN_RING, delta=None)
    _stage(patch, RequestKind.LEAVE, _STATE.ROLLBACK_TO_NORMAL, delta=None)


def rollback_makes_a_third_version(patch: Patch) -> None:
    """A rollback does not wait until the step that it undoes is fenced."""

    def at_once(context: Context, request: Any, why: str, *, cancelled: bool) -> Any:
        fenced = replace(
            context.image.topology.topology,
            fence_version=context.image.topology.topology.version,
        )
        image = replace(context.image, topology=replace(context.image.topology, topology=fenced))
        found = plain(context._replace(image=image), request, why, cancelled=cancelled)
        if not isinstance(found, tuple):
            return found
        fence = context.image.topology.topology.fence_version
        return tuple(
            facts.TopologyChanged(replace(fact.topology, fence_version=fence))
            if isinstance(fact, facts.TopologyChanged)
            else fact
            for fact in found
        )

    plain = undo.roll_back
    patch.attribute(undo, "roll_back", at_once)


# --- placements


def leave_ignores_other_leaves(patch: Patch) -> None:
    """Two nodes that may leave one at a time are let go both."""
    plain = requests._check_enough_remain

    def alone(image: Image, leaving: Any) -> Any:
        empty = replace(image, requests=type(image.requests)())
        return plain(empty, leaving)

    patch.attribute(requests, "_check_enough_remain", alone)


def writes_move_with_the_reads(patch: Patch) -> None:
    """In write_both_read_new the old replicas get no writes, though late readers still ask them."""
    for kind in (RequestKind.JOIN, RequestKind.LEAVE):
        _stage(patch, kind, _STATE.WRITE_BOTH_READ_NEW, delta=transition.finish)


def read_new_too_early(patch: Patch) -> None:
    """Reads go to the new replicas while these still stream."""
    for kind in (RequestKind.JOIN, RequestKind.LEAVE):
        _stage(patch, kind, _STATE.WRITE_BOTH_READ_OLD, delta=transition.write_both_read_new)


def racks_are_ignored(patch: Patch) -> None:
    """Replicas are taken as they come on the ring."""
    patch.attribute(strategy, "_racks", lambda owners, places: owners * 0)


# --- quorums


def write_quorum_over_the_old_set_only(patch: Patch) -> None:
    """A write is acknowledged by a quorum of those who are read from now."""

    def reads_only(answered: Set[str], row: RangeReplicas) -> bool:
        return len(answered & set(row.reads)) >= quorum_of(len(row.reads))

    patch.function(write_satisfied, reads_only)


def write_is_acknowledged_by_one(patch: Patch) -> None:
    """One replica is enough for a quorum write."""
    patch.function(write_satisfied, lambda answered, row: bool(answered & set(row.writes)))


def read_is_answered_by_one(patch: Patch) -> None:
    """One replica is enough for a quorum read."""
    patch.function(read_satisfied, lambda answered, row: bool(answered & set(row.reads)))


def read_is_not_settled(patch: Patch) -> None:
    """A read returns what it found without making sure that later reads find it too."""

    async def settled(self: Node, *args: Any) -> bool:
        return True

    patch.attribute(Node, "_settle", settled)


# --- fences and sessions


def skip_the_fence(patch: Patch) -> None:
    """Replicas serve every version."""
    patch.function(check_fence, lambda topology, version: None)


def fence_is_not_checked_again(patch: Patch) -> None:
    """A write that began before the fence counts after it."""
    patch.attribute(Node, "_passes_again", lambda self, version: True)


def serve_before_caught_up(patch: Patch) -> None:
    """A node that restarts serves by its snapshot, before it knows the fences it has acknowledged."""
    start = Node.start

    def at_once(self: Node) -> None:
        start(self)
        self.serving = True

    patch.attribute(Node, "start", at_once)


def session_id_is_used_again(patch: Patch) -> None:
    """Every operation streams under the same session."""
    patch.attribute(Context, "new_session", lambda self: "the-session")


def closed_session_is_accepted(patch: Patch) -> None:
    """Work of an operation goes on after its step is over."""
    patch.attribute(SessionManager, "is_open", lambda self, session: bool(session))


def guard_is_not_checked(patch: Patch) -> None:
    """Streaming enters its session and never looks again."""
    patch.attribute(OrderWorker, "check_guard", lambda self, guard: None)


# --- data


def stream_from_one_replica(patch: Patch) -> None:
    """Any old replica will do as the source, though it may have missed writes."""

    def first(row: TransitionRow, gaining: str, failed: Set[str] = frozenset()) -> Any:
        sources = tuple(node for node in row.old if node not in failed)
        return sources, 1 if row.old else 0

    patch.function(stream_sources, first)


def stream_from_a_source_that_is_behind(patch: Patch) -> None:
    """The source gives what it has before it knows the fence, and accepts older writes after."""

    async def ready(self: OrderWorker, pull: Any) -> bool:
        return True

    patch.attribute(OrderWorker, "source_ready", ready)


def stream_reports_success_first(patch: Patch) -> None:
    """A node reports its streaming as done when it starts it."""

    async def nothing(self: OrderWorker, order: Any) -> str:
        return ""

    patch.attribute(OrderWorker, "_stream", nothing)


def cleanup_is_forgotten(patch: Patch) -> None:
    """Nobody is told to drop what it does not own any more."""
    patch.attribute(entry, "_mark_cleanup", lambda image, operation, touched: [])


def cleanup_counts_before_it_is_done(patch: Patch) -> None:
    """A node is called clean without having dropped anything."""

    async def nothing(self: OrderWorker, order: Any) -> str:
        return ""

    patch.attribute(OrderWorker, "_clean_up", nothing)


def cleanup_keeps_primary_ranges_only(patch: Patch) -> None:
    """Cleanup drops what a node holds as the second or third replica."""

    def primary(image: Image, node_id: str, key: Key) -> bool:
        placement = image.placement_of(key[0])
        return placement is not None and placement.row_for(token_of_key(key)).reads[0] == node_id

    patch.attribute(node_work, "owns", primary)


TOPOLOGY_MUTANTS: Final = (
    skip_the_gate,
    gate_counts_the_old_replicas_only,
    gate_needs_one_answer,
    fence_need_not_be_known,
    node_acknowledges_before_applying,
    requests_do_not_hold_their_version,
    drained_is_not_asked,
    reads_move_before_streaming,
    term_is_not_checked,
    fence_above_version,
    dead_nodes_are_waited_for,
    rollback_after_the_point_of_no_return,
    rollback_forgets_the_placements,
    rollback_makes_a_third_version,
    leave_ignores_other_leaves,
    writes_move_with_the_reads,
    read_new_too_early,
    racks_are_ignored,
    write_quorum_over_the_old_set_only,
    write_is_acknowledged_by_one,
    read_is_answered_by_one,
    read_is_not_settled,
    skip_the_fence,
    fence_is_not_checked_again,
    serve_before_caught_up,
    session_id_is_used_again,
    closed_session_is_accepted,
    guard_is_not_checked,
    stream_from_one_replica,
    stream_from_a_source_that_is_behind,
    stream_reports_success_first,
    cleanup_is_forgotten,
    cleanup_counts_before_it_is_done,
    cleanup_keeps_primary_ranges_only,
)
