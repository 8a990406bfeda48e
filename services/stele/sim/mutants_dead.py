"""Planted bugs of nodes that are declared dead: who is excluded, whom that binds, what takes their place."""

from collections.abc import Set
from typing import Any, Final

import msgspec

from stele.agent.agent import Agent
from stele.coordinator import exclusions, rounds
from stele.coordinator.knowledge import Limits
from stele.domain.fencing import takes_part
from stele.domain.image import Image
from stele.domain.membership.facts import Node, NodeChanged
from stele.domain.membership.image import MembershipImage
from stele.domain.names import TAKES_PART, RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.quorum import blocking, is_covered
from stele.domain.topology import decide as topology_decisions
from stele.domain.topology import planning
from stele.domain.topology import steps as moves
from stele.domain.topology.draft import Draft
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.table import OPERATIONS
from stele.sim.patching import Patch

replace = msgspec.structs.replace
_STATE = TransitionState


def excluded_without_listening(patch: Patch) -> None:
    """Who is declared dead is excluded at once, though it is heard."""
    patch.attribute(exclusions, "_are_down", lambda desk, request, declared: True)


def exclusion_passes_every_barrier(patch: Patch) -> None:
    """As soon as somebody is excluded, nobody else is waited for."""

    plain = is_covered

    def covered(replicas: Set[str], nodes: Set[str], excluded: Set[str]) -> bool:
        return bool(excluded) or plain(replicas, nodes, excluded)

    patch.function(is_covered, covered)


def exclusion_need_not_be_known(patch: Patch) -> None:
    """A barrier does not wait until its nodes refuse those for whom it does not wait."""
    patch.attribute(MembershipImage, "last_exclusion", lambda self: 0)


def exclusions_are_not_noted(patch: Patch) -> None:
    """A node acknowledges who is excluded before that is on its disk: once it has started again on an older end
    of the log it may take requests of the excluded, though all barriers have counted it.
    """

    def noted(self: Agent, image: Image) -> bool:
        known = self._directory.identity.acknowledged
        version, fence = image.topology.version, image.topology.fence_version
        return version <= known.version and fence <= known.fence_version

    patch.attribute(Agent, "_is_noted", noted)


def excluded_nodes_are_served(patch: Patch) -> None:
    """A node that is declared dead, and does not know it, still coordinates requests."""

    def member(image: Image, coordinating: str) -> bool:
        node = image.node(coordinating)
        return node is not None and node.state in TAKES_PART

    patch.function(takes_part, member)


def excluded_nodes_are_waited_for(patch: Patch) -> None:
    """Barriers and requests need those who are declared dead."""
    patch.attribute(Node, "takes_part", lambda self: self.state in TAKES_PART)


def undone_removal_makes_a_member_again(patch: Patch) -> None:
    """The node of a removal that was undone is not excluded any more."""
    plain = moves._end_request  # noqa: SLF001 - bugs are planted in private places too

    def forgiving(draft: Draft, ending: Transition, request_id: str, **how: bool) -> None:
        plain(draft, ending, request_id, **how)
        node = draft.image.node(draft.image.requests.requests[request_id].node_id)
        if node is not None and node.excluded:
            draft.add(NodeChanged(replace(node, excluded_since=0)))

    patch.attribute(moves, "_end_request", forgiving)


def streams_need_one_source_fewer(patch: Patch) -> None:
    """What a node pulls may lack a write that was acknowledged."""
    plain = blocking
    patch.function(blocking, lambda replicas: max(1, plain(replicas) - 1) if replicas else 0)


def what_only_the_dead_have_is_given_up(patch: Patch) -> None:
    """Nobody is asked whether the loss of data is accepted."""
    patch.attribute(planning, "_check_sources", lambda image, planned, requests: None)


def replaced_node_keeps_its_tokens(patch: Patch) -> None:
    """The node whose place was taken stays a member, with the tokens that its successor has too."""
    plain = moves._nodes  # noqa: SLF001

    def subjects_only(draft: Draft, entering: Transition, state: Any) -> Any:
        own = entering.nodes()
        facts: list[Any] = plain(draft, entering, state)
        return [fact for fact in facts if fact.node.node_id in own]

    patch.attribute(moves, "_nodes", subjects_only)
    kept = replace(OPERATIONS[RequestKind.REPLACE], on_done=lambda image, done, epoch: ())
    patch.item(OPERATIONS, RequestKind.REPLACE, kept)


def removal_drops_the_rows_before_streaming(patch: Patch) -> None:
    """The ranges of a dead node belong to its successors before these have the data."""
    states: Any = OPERATIONS[RequestKind.REMOVE].states
    streaming = states[_STATE.WRITE_BOTH_READ_OLD]
    patch.item(states, _STATE.WRITE_BOTH_READ_OLD, replace(streaming, delta=transition.finish))


def removals_go_one_by_one(patch: Patch) -> None:
    """Of two dead nodes the one is never removed together with the other, which would take over from it."""
    alone = replace(OPERATIONS[RequestKind.REMOVE], grouped=False)
    patch.item(OPERATIONS, RequestKind.REMOVE, alone)


def excluded_nodes_count_as_answers(patch: Patch) -> None:
    """What waits for a node that is silent goes on waiting, where one that is excluded could answer as well."""
    plain = rounds._others  # noqa: SLF001
    patch.attribute(
        rounds, "_others", lambda image, dead: plain(image, dead) | image.membership.excluded()
    )


def requests_together_declare_everybody_dead(patch: Patch) -> None:
    """Whether somebody with data stays is asked when it is requested, and not when it is done."""
    for module in (exclusions, topology_decisions):
        patch.attribute(module, "check_exclusion", lambda image, request, dead: None)


def of_the_dead_only_some_go_together(patch: Patch) -> None:
    """As many dead nodes are removed as one operation as may join as one, and each takes over from the rest."""
    patch.attribute(Limits, "together", lambda self, kind: self.group)


DEAD_RACK_MUTANTS: Final = (of_the_dead_only_some_go_together,)
"""More nodes than the simulator has."""
DEAD_NODE_MUTANTS: Final = (
    requests_together_declare_everybody_dead,
    excluded_without_listening,
    exclusion_passes_every_barrier,
    exclusion_need_not_be_known,
    exclusions_are_not_noted,
    excluded_nodes_are_served,
    excluded_nodes_are_waited_for,
    undone_removal_makes_a_member_again,
    streams_need_one_source_fewer,
    what_only_the_dead_have_is_given_up,
    replaced_node_keeps_its_tokens,
    removal_drops_the_rows_before_streaming,
    removals_go_one_by_one,
    excluded_nodes_count_as_answers,
)
