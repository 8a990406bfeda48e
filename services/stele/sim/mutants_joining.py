"""Planted bugs of how nodes become members: found by tests of the cores alone."""

from typing import Final

from stele.agent.gate import Gate
from stele.agent.standing import join_ended
from stele.domain.base import Rejection
from stele.domain.image import Image
from stele.domain.topology.operations import join
from stele.domain.topology.operations import replace as replacing
from stele.domain.topology.operations.base import check_dead
from stele.domain.topology.operations.commands import Replace
from stele.runtime.service import Stop
from stele.sim.patching import Patch


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


def open_gate_notes_what_was_before(patch: Patch) -> None:
    """A member notes what it had acknowledged before its start once more, over what its agent notes by then."""
    plain = Gate.recognise

    async def again(self: Gate, stop: Stop) -> None:
        self._open = False
        await plain(self, stop)

    patch.attribute(Gate, "recognise", again)


JOINING_MUTANTS: Final = (
    data_directory_joins_again,
    dead_node_is_looked_for_first,
    ended_join_is_not_told,
    open_gate_notes_what_was_before,
)
