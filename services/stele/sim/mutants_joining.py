"""Planted bugs of how nodes become members, and of features: found by tests of the cores alone."""

from typing import Final

from stele.agent.standing import join_ended
from stele.coordinator.desk import Desk
from stele.domain.acks import Barrier
from stele.domain.base import Rejection
from stele.domain.image import Image
from stele.domain.topology import decide
from stele.domain.topology.operations import join
from stele.domain.topology.operations import replace as replacing
from stele.domain.topology.operations.base import check_dead
from stele.domain.topology.operations.commands import Replace
from stele.sim.patching import Patch


def features_wait_for_nobody(patch: Patch) -> None:
    """A feature is enabled while a member is down that may come back with an older build."""
    answered = Barrier(complete=True, satisfied=True, blockers=())
    patch.attribute(Desk, "answered", lambda self, epoch: answered)


def support_is_checked_when_asked_for_alone(patch: Patch) -> None:
    """Who takes back that it supports a feature while others are waited for is passed over."""
    patch.attribute(decide, "check_supported", lambda image, features: None)


def data_directory_joins_again(patch: Patch) -> None:
    """The data of a node that was rejected, or has left, becomes another node's."""
    patch.attribute(join, "_check_host_is_new", lambda image, command: None)


def dead_node_is_looked_for_first(patch: Patch) -> None:
    """A node of another cluster that is to replace one is told that there is no such node."""
    plain = join.check_newcomer

    def late(image: Image, command: Replace) -> Rejection | None:
        return check_dead(image, (command.replaced_id,)) or plain(image, command)

    patch.attribute(replacing, "check_newcomer", late)


def ended_join_is_not_told(patch: Patch) -> None:
    """A node whose request was cancelled or has failed goes on running, and nobody tells it."""
    patch.function(join_ended, lambda image, identity: "")


JOINING_MUTANTS: Final = (
    features_wait_for_nobody,
    support_is_checked_when_asked_for_alone,
    data_directory_joins_again,
    dead_node_is_looked_for_first,
    ended_join_is_not_told,
)
