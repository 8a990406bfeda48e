"""Known bugs of members: joins, releases, failures and dead nodes."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import msgspec

from stele.agent import admission, member
from stele.agent.agent import Agent
from stele.coordinator import openings, rounds
from stele.coordinator.actions import PASSED
from stele.coordinator.model import StepContext
from stele.coordinator.work import failure_of
from stele.domain.facts import Epoch
from stele.domain.fencing import takes_part
from stele.domain.image import Image
from stele.domain.model.features import FeaturesEnabled
from stele.domain.model.membership import MembershipImage, Node, NodeChanged
from stele.domain.model.services import Service
from stele.domain.model.transitions import Transition
from stele.domain.names import TAKES_PART, NodeState, RequestKind, TransitionState
from stele.domain.registry import (
    FEATURES_ENABLED_BY,
    KNOWN_FEATURES,
    FeaturesOfFacts,
    features_of,
)
from stele.domain.ring import transition
from stele.domain.ring.quorum import blocking, is_covered
from stele.domain.ring.transition import TransitionRow
from stele.domain.rules import features as feature_rules
from stele.domain.rules import ring
from stele.domain.topology import decide, live_copies, planning
from stele.domain.topology import decide as topology_decisions
from stele.domain.topology import steps as moves
from stele.domain.topology.barriers import Barrier
from stele.domain.topology.operations import leave, rebuild
from stele.domain.topology.operations.base import no_receivers, planned_sets
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.steps import Draft
from stele.log import fold
from stele.runtime.announce import ServiceAnnouncer
from stele_simulator.patching import Patch
from stele_simulator.planting import (
    RUN,
    STORY,
    change_operation,
    change_state,
    plan_without_locks,
    planted,
)

# Planted bugs of moves and rebuilds: whose tokens when, who streams, from how many, and what is
# locked.


replace = msgspec.structs.replace
_STATE = TransitionState


@planted(STORY, rule="I11")
def move_takes_its_tokens_before_it_streams(patch: Patch) -> None:
    """The ring has the new tokens while a cancel still has to bring the old ones back."""
    change_state(patch, RequestKind.MOVE, _STATE.WRITE_BOTH_READ_OLD, takes_tokens=True)


@planted(RUN, rule="I5")
def move_streams_to_the_mover_alone(patch: Patch) -> None:
    """Nodes that take over a moving node's ranges stream nothing."""
    change_operation(patch, RequestKind.MOVE, receivers=lambda moving: sorted(moving.nodes()))


@planted(STORY, rule="I11")
def move_turns_round_after_reads_have_moved(patch: Patch) -> None:
    """A move may be undone when the node's new ranges have been written without the old replicas."""
    change_state(
        patch, RequestKind.MOVE, _STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.ROLLBACK_TO_NORMAL
    )


@planted(RUN, rule="I5")
def rebuild_is_done_before_it_has_streamed(patch: Patch) -> None:
    """A rebuild orders no streams."""
    change_operation(patch, RequestKind.REBUILD, receivers=no_receivers)


@planted(STORY)
def rebuild_is_content_with_one_source(patch: Patch) -> None:
    """A write that the node acknowledged with one other may be with a third that is not asked."""
    plain = rebuild.sources

    def one(
        image: Image, open_: Transition, row: TransitionRow, node_id: str, gone: Set[str]
    ) -> Any:
        asked = plain(image, open_, row, node_id, gone)
        return None if asked is None else (asked[0], min(1, asked[1]))

    change_operation(patch, RequestKind.REBUILD, sources=one)


@planted(STORY)
def rebuild_locks_nothing(patch: Patch) -> None:
    """Others move the ranges away while their replicas are read."""
    plan_without_locks(patch, RequestKind.REBUILD)


# Planted bugs of rolling upgrades: compatibility of records, required features, and feature
# support.


@planted(STORY)
def features_wait_for_nobody(patch: Patch) -> None:
    """A feature is enabled while a member is down that may come back with an older build."""
    answered = Barrier(complete=True, satisfied=True, blockers=())
    patch.attribute(StepContext, "barrier_on", lambda self, epoch: answered)


@planted(STORY)
def support_is_checked_when_asked_for_alone(patch: Patch) -> None:
    """A node may withdraw its support for a feature while others are waited for."""
    patch.attribute(decide, "check_supported", lambda image, features: None)


@planted(STORY)
def services_that_lack_it_are_passed_over(patch: Patch) -> None:
    """A feature is enabled as soon as all nodes support it."""
    patch.attribute(feature_rules, "_services_without", lambda image, feature: [])


@planted(STORY)
def older_build_reads_on(patch: Patch) -> None:
    """A reader goes past winners that need a feature which it does not support."""
    plain = fold.decode_winner

    def decoded(offset: int, value: bytes, supported: Set[str] = KNOWN_FEATURES) -> Epoch:
        return plain(offset, value)

    patch.attribute(fold, "decode_winner", decoded)


@planted(STORY)
def required_features_are_not_derived(patch: Patch) -> None:
    """Records say that they need nothing, whatever is in them."""
    plain = features_of

    patch.function(plain, lambda facts: FeaturesOfFacts(plain(facts).used))


@planted(STORY)
def enabling_requires_nothing(patch: Patch) -> None:
    """The record that enables a feature can be read without it: an older build stops at a later one."""
    patch.item(FEATURES_ENABLED_BY, FeaturesEnabled, lambda fact: ())


@planted(STORY)
def older_build_is_heard_at_once(patch: Patch) -> None:
    """A node acknowledges while the log still says that it supports what it does not."""
    patch.attribute(member, "claims_too_much", lambda known, advertised: False)


@planted(STORY)
def late_node_is_believed(patch: Patch) -> None:
    """A node that runs says nothing when its row is what an earlier process of it was."""
    patch.attribute(admission, "row_differs", lambda identity, advertised, known: False)


@planted(STORY)
def late_service_is_believed(patch: Patch) -> None:
    """A service that runs says nothing when its row is what an earlier process of it was."""

    async def nothing(self: ServiceAnnouncer, row: Service, state_id: bytes) -> None:
        pass

    patch.attribute(ServiceAnnouncer, "_correct", nothing)


# Planted bugs of operations in which something fails: the ways back, and that later there is
# none.


@planted(STORY)
def no_way_back_from_the_first_state(patch: Patch) -> None:
    """A node that cannot join or replace is kept waiting instead of being turned away."""
    for kind in (RequestKind.JOIN, RequestKind.REPLACE):
        change_state(patch, kind, _STATE.JOIN_GROUP0, on_failure=None)


@planted(STORY)
def no_way_back_while_it_streams(patch: Patch) -> None:
    """A leave or removal stays incomplete when no node can take over."""
    for kind in (RequestKind.LEAVE, RequestKind.REMOVE):
        change_state(patch, kind, _STATE.WRITE_BOTH_READ_OLD, on_failure=None)


@planted(STORY, rule="I11")
def way_back_from_the_dead(patch: Patch) -> None:
    """A removal or a replacement may be undone when reads have moved already."""
    removing, replacing = RequestKind.REMOVE, RequestKind.REPLACE
    change_state(patch, removing, _STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.ROLLBACK_TO_NORMAL)
    change_state(patch, replacing, _STATE.WRITE_BOTH_READ_NEW, on_failure=_STATE.LEFT_TOKEN_RING)


@planted(STORY, rule="I11")
def way_back_from_the_last_state(patch: Patch) -> None:
    """An operation may be undone when all that is left is to close the books."""
    for kind in (RequestKind.JOIN, RequestKind.REPLACE):
        change_state(patch, kind, _STATE.FINISHING, on_failure=_STATE.LEFT_TOKEN_RING)
    for kind in (RequestKind.LEAVE, RequestKind.REMOVE):
        change_state(patch, kind, _STATE.LEFT_TOKEN_RING, on_failure=_STATE.ROLLBACK_TO_NORMAL)
    for kind in (RequestKind.MOVE, RequestKind.KEYSPACE_RF_CHANGE):
        change_state(patch, kind, _STATE.FINISHING, on_failure=_STATE.ROLLBACK_TO_NORMAL)


@planted(STORY)
def drop_can_be_called_off(patch: Patch) -> None:
    """A drop is taken back, though some route by the version that has no such keyspace."""
    change_state(
        patch, RequestKind.DROP_KEYSPACE, _STATE.DROP_KEYSPACE, on_failure=_STATE.DROP_KEYSPACE
    )


@planted(STORY)
def way_back_waits_for_a_quorum(patch: Patch) -> None:
    """The way back from a missing quorum waits for that quorum."""

    def counted(image: Image, transition: Transition) -> Iterable[frozenset[str]]:
        return planned_sets(image, replace(transition, mark=""))

    for kind, operation in OPERATIONS.items():
        if operation.touched is planned_sets:
            change_operation(patch, kind, touched=counted)


@planted(STORY, rule="I11")
def way_back_forgets_the_dead(patch: Patch) -> None:
    """A removal or a replacement that is undone leaves the rows as they are."""
    for kind, state in (
        (RequestKind.REMOVE, _STATE.ROLLBACK_TO_NORMAL),
        (RequestKind.REPLACE, _STATE.LEFT_TOKEN_RING),
    ):
        change_state(patch, kind, state, delta=None)


@planted(STORY)
def streams_are_never_given_up(patch: Patch) -> None:
    """A stream without progress, or with repeated failures, never fails."""
    patch.function(failure_of, lambda context, work, **_: "")


@planted(STORY, rule="I10")
def who_is_turned_away_may_wait_on(patch: Patch) -> None:
    """A node whose join was rejected before it began is none of those that have left."""
    for kind in (RequestKind.JOIN, RequestKind.REPLACE):
        change_operation(patch, kind, rejected=None)


@planted(RUN, rule="I10")
def undone_join_makes_a_member(patch: Patch) -> None:
    """A node that could not join, or was called off, counts as one that has."""
    for kind in (RequestKind.JOIN, RequestKind.REPLACE):
        change_operation(patch, kind, undone=NodeState.NORMAL)


@planted(STORY, rule="I10")
def undone_leave_stays_half_way(patch: Patch) -> None:
    """A node that could not leave, or whose move or rebuild failed, is not normal again."""
    for kind in (RequestKind.LEAVE, RequestKind.MOVE, RequestKind.REBUILD):
        change_operation(patch, kind, undone=None)


@planted(STORY)
def more_leave_than_the_replication_allows(patch: Patch) -> None:
    """A leave does not check the number of remaining nodes."""
    patch.function(leave.check_enough_remain, lambda image, leaving: None)


@planted(STORY)
def taken_tokens_are_given_again(patch: Patch) -> None:
    """A node may ask for tokens that another one has."""
    patch.function(ring.check_tokens, lambda image, tokens, own=(): None)


@planted(STORY, rule="I5")
def last_state_needs_no_quorum(patch: Patch) -> None:
    """The last state of a transition needs no quorum."""

    def counted(plain: Any) -> Any:
        def touched(image: Image, transition: Transition) -> Iterable[frozenset[str]]:
            state = OPERATIONS[transition.kind].states[transition.state]
            return plain(image, transition) if state.on_success is not None else ()

        return touched

    for kind, operation in OPERATIONS.items():
        change_operation(patch, kind, touched=counted(operation.touched))


# Planted bugs of dead nodes: exclusion, its effects, and replacement.


@planted(STORY)
def excluded_without_listening(patch: Patch) -> None:
    """A node that is declared dead is excluded at once, although it still responds."""
    patch.attribute(openings, "_are_down", lambda context, request, declared: PASSED)


@planted(STORY, rule="I5")
def exclusion_passes_every_barrier(patch: Patch) -> None:
    """After one exclusion, barriers wait for no other node."""

    plain = is_covered

    def covered(replicas: Set[str], nodes: Set[str], excluded: Set[str]) -> bool:
        return bool(excluded) or plain(replicas, nodes, excluded)

    patch.function(is_covered, covered)


@planted(STORY)
def exclusion_need_not_be_known(patch: Patch) -> None:
    """A barrier does not wait until its nodes reject the excluded ones."""
    patch.attribute(MembershipImage, "last_exclusion", lambda self: 0)


@planted(STORY, rule="I6")
def exclusions_are_not_noted(patch: Patch) -> None:
    """A node acknowledges who is excluded before that is on its disk: once it has started again on an older end
    of the log it may take requests of the excluded, though all barriers have counted it.
    """

    def without_exclusions(self: Agent, image: Image) -> bool:
        known = self._directory.identity.acknowledged
        version, fence = image.topology.version, image.topology.fence_version
        return version <= known.version and fence <= known.fence_version

    patch.attribute(Agent, "_has_promises", without_exclusions)


@planted(STORY, rule="I6")
def excluded_nodes_are_served(patch: Patch) -> None:
    """A node that is declared dead, and does not know it, still coordinates requests."""

    def member(image: Image, coordinating: str) -> bool:
        node = image.node(coordinating)
        return node is not None and node.state in TAKES_PART

    patch.function(takes_part, member)


@planted(STORY, rule="I10")
def excluded_nodes_are_waited_for(patch: Patch) -> None:
    """Barriers and requests need those who are declared dead."""
    patch.attribute(Node, "takes_part", lambda self: self.state in TAKES_PART)


@planted(RUN)
def undone_removal_makes_a_member_again(patch: Patch) -> None:
    """The node of a removal that was undone is not excluded any more."""
    plain = moves._end_request

    def forgiving(draft: Draft, ending: Transition, request_id: str, **how: bool) -> None:
        plain(draft, ending, request_id, **how)
        node = draft.image.node(draft.image.requests.requests[request_id].node_id)
        if node is not None and node.excluded:
            draft.add(NodeChanged(replace(node, excluded_since=0)))

    patch.attribute(moves, "_end_request", forgiving)


@planted(STORY)
def streams_need_one_source_fewer(patch: Patch) -> None:
    """The source of a stream may lack an acknowledged write."""
    plain = blocking
    patch.function(blocking, lambda replicas: max(1, plain(replicas) - 1) if replicas else 0)


@planted(STORY)
def what_only_the_dead_have_is_given_up(patch: Patch) -> None:
    """Data loss does not need to be accepted."""
    patch.attribute(planning, "_check_sources", lambda image, planned, requests: None)
    patch.function(live_copies.check_loss, lambda image, request, dead: None)


@planted(STORY)
def replaced_node_keeps_its_tokens(patch: Patch) -> None:
    """The node whose place was taken stays a member, with the tokens that its successor has too."""
    plain = moves._nodes

    def subjects_only(draft: Draft, entering: Transition, state: Any) -> Any:
        own = entering.nodes()
        facts: list[Any] = plain(draft, entering, state)
        return [fact for fact in facts if fact.node.node_id in own]

    patch.attribute(moves, "_nodes", subjects_only)
    change_operation(patch, RequestKind.REPLACE, on_done=lambda image, done, epoch: ())


@planted(STORY, rule="I4")
def removal_drops_the_rows_before_streaming(patch: Patch) -> None:
    """The ranges of a dead node belong to its successors before these have the data."""
    change_state(patch, RequestKind.REMOVE, _STATE.WRITE_BOTH_READ_OLD, delta=transition.finish)


@planted(STORY)
def removals_go_one_by_one(patch: Patch) -> None:
    """Two dead nodes are never removed together, so one of them would take over ranges of the other."""
    change_operation(patch, RequestKind.REMOVE, grouped=False)


@planted(STORY)
def excluded_nodes_count_as_answers(patch: Patch) -> None:
    """An operation waits for a silent node although an excluded one counts as an answer."""
    plain = rounds._others
    patch.attribute(
        rounds, "_others", lambda image, dead: plain(image, dead) | image.membership.excluded()
    )


@planted(STORY, rule="I10")
def requests_together_declare_everybody_dead(patch: Patch) -> None:
    """The check that a node with data remains runs at the request, and not at the commit."""
    for module in (openings, topology_decisions):
        patch.attribute(module, "check_exclusion", lambda image, request, dead: None)


@planted(STORY)
def old_copies_are_deleted_for_excluded_ones(patch: Patch) -> None:
    """Nodes that lost a range delete its rows, although its new replicas are excluded."""
    patch.function(live_copies.tablets_may_lack_writes, lambda image, transition: False)
    patch.function(live_copies.is_short_of_writes, lambda row, excluded: False)


@planted(STORY)
def the_last_copy_is_excluded_without_force(patch: Patch) -> None:
    """A declaration of death is carried out, whatever only the dead nodes have."""
    patch.function(live_copies.check_loss, lambda image, request, dead: None)
