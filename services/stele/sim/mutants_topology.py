"""Planted bugs of topology operations: gates, fences, sessions, quorums, placements, data."""
# ruff: noqa: SLF001 - bugs are planted in private places too

from collections.abc import Iterable, Set
from typing import Any, Final

import msgspec

from stele.coordinator import rounds, steps
from stele.coordinator.desk import Desk
from stele.coordinator.rounds import Settled, settle
from stele.coordinator.work import WorkState, order_work
from stele.domain import acks, commands, fencing
from stele.domain.acks import AckTable, Barrier, barrier
from stele.domain.context import Context
from stele.domain.facts import AnyFact
from stele.domain.fencing import VersionTracker, newest_fenced
from stele.domain.image import Image
from stele.domain.messages import Ack, Order
from stele.domain.names import RequestKind, TransitionState
from stele.domain.registry import DECISIONS
from stele.domain.ring import strategy, transition
from stele.domain.ring.locks import locks_of
from stele.domain.ring.quorum import quorum_of, read_satisfied, write_satisfied
from stele.domain.ring.ranges import Placement, Range, RangeReplicas
from stele.domain.ring.transition import TransitionPlan, TransitionRow, stream_sources
from stele.domain.sessions import SessionManager
from stele.domain.topology import marks
from stele.domain.topology import steps as moves
from stele.domain.topology.domain import versions_of
from stele.domain.topology.draft import Draft
from stele.domain.topology.facts import Transition, VersionsChanged
from stele.domain.topology.guards import check_term
from stele.domain.topology.operations import drop_keyspace, leave
from stele.domain.topology.operations.table import OPERATIONS
from stele.sim import node_work
from stele.sim.messages import Key, token_of_key
from stele.sim.node import Node
from stele.sim.node_work import OrderWorker
from stele.sim.patching import Patch

replace = msgspec.structs.replace
_STATE = TransitionState


def _state(patch: Patch, kind: RequestKind, state: TransitionState, **changes: Any) -> None:
    table: Any = OPERATIONS[kind].states
    patch.item(table, state, replace(table[state], **changes))


# --- gates


def skip_the_gate(patch: Patch) -> None:
    """Steps do not wait for acknowledgements."""
    patch.function(barrier, lambda *a, **k: Barrier(True, True, ()))


def gate_counts_the_old_replicas_only(patch: Patch) -> None:
    """A quorum of the replicas before is enough, those after are not asked."""

    def old_only(image: Image, nodes: Set[str], version: int) -> bool:
        open_ = image.topology.open()
        rows = [r for t in open_ for plan in t.plans.values() for r in plan.rows]
        return all(len(set(r.old) & nodes) >= quorum_of(len(r.old)) for r in rows if r.old)

    patch.function(acks.covers_quorums, old_only)


def gate_needs_one_answer(patch: Patch) -> None:
    """One node that answered stands for all."""
    patch.function(acks.covers_quorums, lambda image, nodes, version: bool(nodes))


def fence_need_not_be_known(patch: Patch) -> None:
    """The next step begins before a quorum knows that the older version is fenced out."""
    waits = rounds._barrier

    def hasty(desk: Desk, epoch: int) -> Barrier:
        topology = desk.seen.image.topology
        if topology.settled() and epoch == topology.fence_epoch:
            return Barrier(True, True, ())
        return waits(desk, epoch)

    patch.attribute(rounds, "_barrier", hasty)


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
        open_: Set[str],
        state_id_of: acks.StateIdOf,
    ) -> str:
        return blocked(table, node_id, epoch, 0, open_, state_id_of)

    patch.attribute(acks, "_blocked_by", lenient)


def reads_move_before_streaming(patch: Patch) -> None:
    """The coordinator does not wait for the data."""

    patch.function(order_work, lambda *work: WorkState((), ""))


def term_is_not_checked(patch: Patch) -> None:
    """A coordinator that was replaced goes on."""
    patch.function(check_term, lambda image, term: None)


def fence_above_version(patch: Patch) -> None:
    """The fence is put above the version that routes."""

    def above(context: Context, command: commands.AdvanceFence) -> Any:
        versions = versions_of(context.image.topology)
        fence, epoch = versions.version + 1, context.epoch
        return (VersionsChanged(replace(versions, fence_version=fence, fence_epoch=epoch)),)

    patch.item(DECISIONS, commands.AdvanceFence, above)


def dead_nodes_are_waited_for(patch: Patch) -> None:
    """A request that needs a dead node waits for ever."""
    patch.attribute(Desk, "dead", lambda self, nodes, since_s: [])


def fence_is_carried_although_some_were_excluded(patch: Patch) -> None:
    """The next step takes the fence along as soon as a quorum will do."""

    def hasty(desk: Desk) -> Settled:
        topology = desk.seen.image.topology
        if not topology.settled():
            applied = rounds._barrier(desk, topology.since_epoch)
            if rounds._enough(desk, applied):
                return Settled.BY_ALL
        return plain(desk)

    plain = settle
    patch.function(settle, hasty)


def barrier_counts_all_but_the_new_transitions(patch: Patch) -> None:
    """The quorums of those that have just moved are left out."""
    plain = acks.covers_quorums

    def others(image: Image, nodes: Set[str], version: int) -> bool:
        versions = {t.entered_version for t in image.topology.open()} - {version}
        return all(plain(image, nodes, older) for older in versions)

    patch.function(acks.covers_quorums, others)


def work_is_ordered_before_the_fence(patch: Patch) -> None:
    """Nodes are told to stream as soon as a transition has entered its state."""
    plain = steps._is_ready

    def early(desk: Desk, transition: Transition, settled: Settled) -> bool:
        return plain(desk, transition, Settled.BY_ALL)

    patch.attribute(steps, "_is_ready", early)


def work_is_known_without_its_session(patch: Patch) -> None:
    """What a node has done once counts for the next transition too."""
    patch.attribute(Order, "work", lambda self: (self.node_id, self.kind, ""))


# --- ways back


def rollback_after_the_point_of_no_return(patch: Patch) -> None:
    """An operation may be undone when reads have moved already."""
    _state(patch, RequestKind.JOIN, _STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.LEFT_TOKEN_RING)
    _state(
        patch, RequestKind.LEAVE, _STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.ROLLBACK_TO_NORMAL
    )


def rollback_forgets_the_placements(patch: Patch) -> None:
    """The books are closed, the rows stay as they are."""
    _state(patch, RequestKind.JOIN, _STATE.LEFT_TOKEN_RING, delta=None)
    _state(patch, RequestKind.LEAVE, _STATE.ROLLBACK_TO_NORMAL, delta=None)


def rollback_makes_a_third_version(patch: Patch) -> None:
    """A rollback does not wait until the step that it undoes is fenced."""

    plain = marks.mark

    def at_once(context: Context, request: Any, why: str, *, cancelled: bool) -> Any:
        found = plain(context, request, why, cancelled=cancelled)
        if not isinstance(found, tuple):
            return found
        draft, versions = Draft(context), versions_of(context.image.topology)
        draft.add(*found)
        version, epoch = versions.version + 1, context.epoch
        draft.add(VersionsChanged(replace(versions, version=version, since_epoch=epoch)))
        open_ = draft.image.topology.of_request(request.request_id)
        assert open_ is not None
        moves.move(draft, open_)
        return tuple(draft.facts)

    patch.function(marks.mark, at_once)


def undone_group_keeps_its_tokens(patch: Patch) -> None:
    """Who joined together with the one that was cancelled keeps the tokens that it was to have."""
    _state(patch, RequestKind.JOIN, _STATE.LEFT_TOKEN_RING, drops_tokens=False)


# --- placements


def leave_ignores_other_leaves(patch: Patch) -> None:
    """Two nodes that may leave one at a time are let go both."""
    plain = leave._check_enough_remain

    def alone(image: Image, leaving: Any) -> Any:
        empty = replace(image, requests=type(image.requests)())
        return plain(empty, leaving)

    patch.attribute(leave, "_check_enough_remain", alone)


def writes_move_with_the_reads(patch: Patch) -> None:
    """In write_both_read_new the old replicas get no writes, though late readers still ask them."""
    for kind in (RequestKind.JOIN, RequestKind.LEAVE):
        _state(patch, kind, _STATE.WRITE_BOTH_READ_NEW, delta=transition.finish)


def read_new_too_early(patch: Patch) -> None:
    """Reads go to the new replicas while these still stream."""
    for kind in (RequestKind.JOIN, RequestKind.LEAVE):
        _state(patch, kind, _STATE.WRITE_BOTH_READ_OLD, delta=transition.write_both_read_new)


def racks_are_ignored(patch: Patch) -> None:
    """Replicas are taken as they come on the ring."""
    patch.attribute(strategy, "_racks", lambda owners, places: owners * 0)


def locks_are_the_changed_rows_only(patch: Patch) -> None:
    """The pieces beside a token that comes or goes are not locked, and nobody looks at the outcome."""

    def rows_only(plan: TransitionPlan, before: Placement) -> tuple[tuple[int, int], ...]:
        return tuple((row.start, row.end) for row in plan.rows)

    patch.function(locks_of, rows_only)


def row_takes_the_version_of_a_split(patch: Patch) -> None:
    """A range whose bounds alone move counts as changed."""
    plain = transition._delta

    def all_new(placement: Any, wanted: Any, version: int) -> Any:
        delta = plain(placement, wanted, version)
        return replace(delta, added=tuple(replace(row, version=version) for row in delta.added))

    patch.attribute(transition, "_delta", all_new)


def row_keeps_its_version(patch: Patch) -> None:
    """A range that has other replicas still has the version of before."""
    plain = transition._delta

    def as_before(placement: Any, wanted: Any, version: int) -> Any:
        delta = plain(placement, wanted, version)
        rows = [(row, placement.overlapping(Range(row.start, row.end))) for row in delta.added]
        kept = (replace(row, version=max(r.version for r in there)) for row, there in rows)
        return replace(delta, added=tuple(kept))

    patch.attribute(transition, "_delta", as_before)


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
    patch.function(newest_fenced, lambda version, version_before, fence_version: 0)


def former_members_are_served(patch: Patch) -> None:
    """A node that has left, and does not know it, still coordinates requests."""
    patch.attribute(Node, "knows_as_member", lambda self, sender: True)


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
    plain = Context.unique

    def same(self: Context, what: str) -> str:
        return plain(self, what) if what.startswith("keyspace") else "the-session"

    patch.attribute(Context, "unique", same)


def session_is_shared(patch: Patch) -> None:
    """Transitions that move in one epoch get one session."""
    plain = Context.unique

    def shared(self: Context, what: str) -> str:
        return plain(self, what if what.startswith("keyspace") else "session")

    patch.attribute(Context, "unique", shared)


def fence_looks_at_the_last_change_only(patch: Patch) -> None:
    """A row that is changing now forgets that it has changed before, behind the fence."""

    def last_only(version: int, version_before: int, fence_version: int) -> int:
        return version if version <= fence_version else 0

    patch.function(newest_fenced, last_only)


def request_is_promoted_whose_row_changed(patch: Patch) -> None:
    """Every request that runs counts as one of the newest version."""
    patch.attribute(fencing, "_unchanged", lambda image, hold: True)


def drop_frees_the_name_before_the_fence(patch: Patch) -> None:
    """A keyspace is gone as soon as its drop begins."""

    def gone(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
        return drop_keyspace.on_done(image, transition, image.epoch + 1)

    early = replace(
        OPERATIONS[RequestKind.DROP_KEYSPACE],
        on_open=gone,
        on_done=lambda image, transition, epoch: (),
        touched=lambda image, transition: (),
    )
    patch.item(OPERATIONS, RequestKind.DROP_KEYSPACE, early)


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
    patch.attribute(moves, "_mark_cleanup", lambda draft, transition, touched: [])


def cleanup_counts_before_it_is_done(patch: Patch) -> None:
    """A node is called clean without having dropped anything."""

    async def nothing(self: OrderWorker, order: Any) -> str:
        return ""

    patch.attribute(OrderWorker, "_clean_up", nothing)


def cleanup_keeps_primary_ranges_only(patch: Patch) -> None:
    """Cleanup drops what a node holds as the second or third replica."""

    def primary(image: Image, node_id: str, key: Key) -> bool:
        keyspace = image.schema.by_id.get(key[0])
        if keyspace is None:
            return False
        row = image.ring.placements[keyspace.placement].row_for(token_of_key(key))
        return row.reads[0] == node_id

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
    fence_is_carried_although_some_were_excluded,
    barrier_counts_all_but_the_new_transitions,
    work_is_ordered_before_the_fence,
    work_is_known_without_its_session,
    rollback_after_the_point_of_no_return,
    rollback_forgets_the_placements,
    rollback_makes_a_third_version,
    undone_group_keeps_its_tokens,
    leave_ignores_other_leaves,
    writes_move_with_the_reads,
    read_new_too_early,
    racks_are_ignored,
    locks_are_the_changed_rows_only,
    row_takes_the_version_of_a_split,
    row_keeps_its_version,
    write_quorum_over_the_old_set_only,
    write_is_acknowledged_by_one,
    read_is_answered_by_one,
    read_is_not_settled,
    skip_the_fence,
    former_members_are_served,
    fence_is_not_checked_again,
    serve_before_caught_up,
    session_id_is_used_again,
    session_is_shared,
    fence_looks_at_the_last_change_only,
    request_is_promoted_whose_row_changed,
    drop_frees_the_name_before_the_fence,
    closed_session_is_accepted,
    guard_is_not_checked,
    stream_from_one_replica,
    stream_from_a_source_that_is_behind,
    stream_reports_success_first,
    cleanup_is_forgotten,
    cleanup_counts_before_it_is_done,
    cleanup_keeps_primary_ranges_only,
)
