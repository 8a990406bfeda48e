"""The topology at one epoch: flat, with every open transition by its id."""

import msgspec
from immutables import Map

from stele.domain.topology.facts import Transition
from stele.domain.topology.heads import Coordinator


class TopologyImage(msgspec.Struct, frozen=True):
    version: int = 1
    fence_version: int = 1
    since_epoch: int = 0
    fence_epoch: int = 0
    relaxed_to: str = ""
    let_through: str = ""
    transitions: Map[str, Transition] = Map()
    coordinator: Coordinator = Coordinator()

    def open(self) -> list[Transition]:
        """Open transitions by id."""
        return [self.transitions[name] for name in sorted(self.transitions)]

    def sessions(self) -> frozenset[str]:
        """Sessions that are open."""
        return frozenset(t.session for t in self.transitions.values() if t.session)

    def of_session(self, session: str) -> Transition | None:
        """The transition that has this session open."""
        if not session:
            return None
        return next((t for t in self.transitions.values() if t.session == session), None)

    def of_request(self, request_id: str) -> Transition | None:
        """The transition that carries a request out."""
        for transition in self.transitions.values():
            if request_id in transition.request_ids():
                return transition
        return None

    def settled(self) -> bool:
        """True when the current version is fenced: no older one is in use."""
        return self.fence_version == self.version
