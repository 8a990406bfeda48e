"""Streams of whole nodes: none under a session that is not open, and none before older writes are fenced or
drained (I6). The checks use none of production's rules.
"""

from typing import TYPE_CHECKING, Final

from stele.domain.messages import Ack
from stele_simulator.processes.members import NodeMachine

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

IN_SESSION: Final = "I6"


class StreamWitness:
    """Sees rows that are taken in, and pages that are given."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._drained: dict[str, int] = {}
        """By node: the oldest version that it says it works by."""

    def acknowledged(self, ack: Ack) -> None:
        """A node says this."""
        self._drained[ack.node_id] = ack.oldest_version_in_use

    def keeps(self, node: NodeMachine, session: str) -> None:
        """A streamed row has its place in the store's order: its session is open where that happens."""
        assert node.image is not None
        open_ = node.image.topology.sessions()
        self._demand(
            session in open_,
            f"{node.node_id} takes in data under an open session only",
            f"session {session} wrote while {sorted(open_)} were open at epoch {node.image.epoch}",
        )

    def gives(self, node: NodeMachine, session: str) -> None:
        """It answers with data: it knows the fence of the step, or every member has drained what is older.
        Else it could accept older writes afterwards.
        """
        image = node.image
        assert image is not None
        transition = image.topology.of_session(session)
        self._demand(
            transition is not None,
            f"{node.node_id} gives data under an open session",
            f"{session} is not open there at epoch {image.epoch}",
        )
        assert transition is not None
        fence, version = image.topology.fence_version, transition.entered_version
        members = image.membership.taking_part()
        late = sorted(name for name in members if self._drained.get(name, 0) < version)
        self._demand(
            fence >= version or not late,
            f"{node.node_id} gives data of version {version} once older writes are fenced out or drained"
            " by all",
            f"its fence is {fence}, and {late} have not drained them",
        )

    def _demand(self, holds: bool, expected: str, found: str) -> None:
        self._world.demand(holds, IN_SESSION, expected, found)
