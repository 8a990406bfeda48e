"""Planted bugs of rounds: gates, fences, versions of rows, sessions, orders."""

from collections.abc import Iterable, Set
from typing import Any

import msgspec

from stele.agent import judging
from stele.agent.gate import Gate
from stele.coordinator import rounds
from stele.coordinator.actions import Check
from stele.coordinator.model import StepContext
from stele.coordinator.rounds import Settled, Settlement, check_barriers
from stele.coordinator.transitions import is_ready
from stele.coordinator.work import WorkState, order_work
from stele.domain import commands, fencing
from stele.domain.context import Context
from stele.domain.facts import AnyFact
from stele.domain.fencing import SessionGuard, SessionManager, VersionTracker, newest_fenced
from stele.domain.image import Image
from stele.domain.messages import Ack, Order
from stele.domain.model.transitions import Transition, VersionsChanged
from stele.domain.names import RequestKind
from stele.domain.registry import DECISIONS
from stele.domain.ring.quorum import blocks
from stele.domain.rules.requests import check_term
from stele.domain.topology import barriers
from stele.domain.topology.barriers import AckTable, Barrier, barrier
from stele.domain.topology.decide import versions_of
from stele.domain.topology.operations import keyspaces
from stele.node.replica import LocalReplica
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY, change_operation, planted

replace = msgspec.structs.replace


# --- gates


@planted(RUN, rule="I5")
def skip_the_gate(patch: Patch) -> None:
    """Steps do not wait for acknowledgements."""
    patch.function(barrier, lambda *a, **k: Barrier(True, True, ()))


@planted(RUN, rule="I5")
def gate_counts_the_old_replicas_only(patch: Patch) -> None:
    """It is enough that the replicas before are held back, those after are not asked."""

    def old_only(image: Image, nodes: Set[str], version: int) -> frozenset[str]:
        open_ = image.topology.open()
        rows = [r for t in open_ for plan in t.plans.values() for r in plan.rows]
        lacking = (r.old for r in rows if r.old and not blocks(nodes, {*r.old}))
        return frozenset[str]().union(*lacking) - nodes

    patch.function(barriers.missing_of, old_only)


@planted(RUN, rule="I5")
def gate_needs_one_answer(patch: Patch) -> None:
    """One node that answered stands for all."""

    def one(image: Image, nodes: Set[str], version: int) -> frozenset[str]:
        return frozenset() if nodes else frozenset(image.membership.nodes)

    patch.function(barriers.missing_of, one)


@planted(RUN, rule="I5")
def fence_need_not_be_known(patch: Patch) -> None:
    """The next step begins before a quorum knows that the older version is fenced out."""
    waits = rounds._barrier

    def hasty(context: StepContext, epoch: int) -> Barrier:
        topology = context.image.topology
        if topology.settled() and epoch == topology.fence_epoch:
            return Barrier(True, True, ())
        return waits(context, epoch)

    patch.attribute(rounds, "_barrier", hasty)


@planted(RUN, rule="I6")
def node_acknowledges_before_applying(patch: Patch) -> None:
    """Nodes acknowledge what is in the log, not what they have applied."""
    take = AckTable.with_ack

    def eager(self: AckTable, ack: Ack, now_s: float) -> AckTable:
        boast = 1_000_000
        return take(self, replace(ack, epoch=boast, oldest_version_in_use=boast), now_s)

    patch.attribute(AckTable, "with_ack", eager)


@planted(RUN, rule="I6")
def requests_do_not_hold_their_version(patch: Patch) -> None:
    """Barriers do not wait for requests that are routed by the version before."""
    patch.attribute(VersionTracker, "oldest_in_use", lambda self, current: current)


@planted(RUN, rule="I3")
def drained_is_not_asked(patch: Patch) -> None:
    """A node that has applied the epoch passes, whatever it still works on."""
    blocked = barriers._blocked_by

    def lenient(table: AckTable, node_id: str, version: int, open_: Set[str]) -> str:
        return blocked(table, node_id, 0, open_)

    patch.attribute(barriers, "_blocked_by", lenient)


@planted(RUN, rule="I5")
def reads_move_before_streaming(patch: Patch) -> None:
    """The coordinator does not wait for the data."""
    patch.function(order_work, lambda *work, **options: WorkState((), ""))


@planted(STORY)
def term_is_not_checked(patch: Patch) -> None:
    """A replaced coordinator continues."""
    patch.function(check_term, lambda image, term: None)


@planted(RUN)
def fence_above_version(patch: Patch) -> None:
    """The fence is put above the version that routes."""

    def above(context: Context, command: commands.AdvanceFence) -> Any:
        versions = versions_of(context.image.topology)
        fence, epoch = versions.version + 1, context.epoch
        return (VersionsChanged(replace(versions, fence_version=fence, fence_epoch=epoch)),)

    patch.item(DECISIONS, commands.AdvanceFence, above)


@planted(STORY)
def dead_nodes_are_waited_for(patch: Patch) -> None:
    """A request that needs a dead node waits for ever."""
    patch.attribute(StepContext, "dead", lambda self, nodes, since_s: [])


@planted(RUN, rule="I5")
def fence_is_carried_although_some_were_excluded(patch: Patch) -> None:
    """The next step takes the fence along as soon as a quorum will do."""

    def hasty(context: StepContext) -> Settlement:
        topology = context.image.topology
        if not topology.settled():
            applied = rounds._barrier(context, topology.since_epoch)
            if rounds._has_passed(context, applied):
                return Settlement(Settled.BY_ALL, context.memory.left_out)
        return plain(context)

    plain = check_barriers
    patch.function(check_barriers, hasty)


@planted(RUN, rule="I5")
def barrier_counts_all_but_the_new_transitions(patch: Patch) -> None:
    """The quorums of those that have just moved are left out."""
    plain = barriers.missing_of

    def others(image: Image, nodes: Set[str], version: int) -> frozenset[str]:
        versions = {t.entered_version for t in image.topology.open()} - {version}
        return frozenset[str]().union(*(plain(image, nodes, older) for older in versions))

    patch.function(barriers.missing_of, others)


@planted(RUN, rule="I6")
def work_is_ordered_before_the_fence(patch: Patch) -> None:
    """Streams are ordered as soon as a transition enters its state."""
    plain = is_ready

    def early(context: StepContext, transition: Transition, settled: Settled) -> Check:
        return plain(context, transition, Settled.BY_ALL)

    patch.function(plain, early)


@planted(RUN, rule="I5")
def work_is_known_without_its_session(patch: Patch) -> None:
    """Finished work also counts for the next transition."""
    patch.attribute(Order, "work", lambda self: (self.node_id, self.kind, ""))


# --- fences and sessions


@planted(STORY, rule="I3")
def skip_the_fence(patch: Patch) -> None:
    """Replicas serve every version."""
    patch.function(newest_fenced, lambda version, version_before, fence_version: 0)


@planted(STORY, rule="I6")
def former_members_are_served(patch: Patch) -> None:
    """A node that has left, and does not know it, still coordinates requests."""
    patch.attribute(judging, "takes_part", lambda image, coordinating: True)


@planted(STORY, rule="I6")
def fence_is_not_checked_again(patch: Patch) -> None:
    """A write that began before the fence counts after it."""
    patch.attribute(LocalReplica, "_fenced", lambda self, op: None)


@planted(RUN, rule="I6")
def serve_before_caught_up(patch: Patch) -> None:
    """A node that restarts serves by its snapshot, before it knows the fences it has acknowledged."""
    patch.attribute(Gate, "is_open", property(lambda self: self.failure is None))


@planted(RUN, rule="I6")
def session_id_is_used_again(patch: Patch) -> None:
    """Every operation streams under the same session."""
    plain = Context.unique

    def same(self: Context, what: str) -> str:
        return plain(self, what) if what.startswith("keyspace") else "the-session"

    patch.attribute(Context, "unique", same)


@planted(STORY, rule="I6")
def fence_looks_at_the_last_change_only(patch: Patch) -> None:
    """A row that is changing now forgets that it has changed before, behind the fence."""

    def last_only(version: int, version_before: int, fence_version: int) -> int:
        return version if version <= fence_version else 0

    patch.function(newest_fenced, last_only)


@planted(RUN, rule="I6")
def request_is_promoted_whose_row_changed(patch: Patch) -> None:
    """Every request that runs counts as one of the newest version."""
    patch.attribute(fencing, "_unchanged", lambda image, hold: True)


@planted(STORY)
def drop_frees_the_name_before_the_fence(patch: Patch) -> None:
    """A keyspace is gone as soon as its drop begins."""

    def gone(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
        return keyspaces.end_keyspace_drop(image, transition, image.epoch + 1)

    change_operation(
        patch,
        RequestKind.DROP_KEYSPACE,
        on_open=gone,
        on_done=lambda image, transition, epoch: (),
        touched=lambda image, transition: (),
    )


@planted(STORY, rule="I6")
def closed_session_is_accepted(patch: Patch) -> None:
    """Work of an operation continues after its step has ended."""
    patch.attribute(SessionManager, "is_open", lambda self, session: bool(session))


@planted(STORY, rule="I6")
def guard_is_not_checked(patch: Patch) -> None:
    """Streaming enters its session and never looks again."""
    patch.attribute(SessionGuard, "check", lambda self: None)
    patch.attribute(SessionGuard, "is_open", property(lambda self: True))
