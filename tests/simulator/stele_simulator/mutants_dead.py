"""Planted bugs of dead nodes: exclusion, its effects, and replacement."""

from collections.abc import Set
from typing import Any

import msgspec

from stele.agent.agent import Agent
from stele.coordinator import openings, rounds
from stele.coordinator.actions import PASSED
from stele.domain.fencing import takes_part
from stele.domain.image import Image
from stele.domain.model.membership import MembershipImage, Node, NodeChanged
from stele.domain.model.transitions import Transition
from stele.domain.names import TAKES_PART, RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.quorum import blocking, is_covered
from stele.domain.topology import decide as topology_decisions
from stele.domain.topology import live_copies, planning
from stele.domain.topology import steps as moves
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.steps import Draft
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY, change_operation, planted

replace = msgspec.structs.replace
_STATE = TransitionState


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
    states: Any = OPERATIONS[RequestKind.REMOVE].states
    streaming = states[_STATE.WRITE_BOTH_READ_OLD]
    patch.item(states, _STATE.WRITE_BOTH_READ_OLD, replace(streaming, delta=transition.finish))


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
