"""The topology at one epoch: flat, with every open transition by its id."""

from functools import cached_property

import msgspec
from immutables import Map

from stele.domain.topology.facts import Transition
from stele.domain.topology.heads import Coordinator


class TopologyImage(msgspec.Struct, frozen=True, dict=True):
    """Versions, the coordinator, and open transitions by id. Indexes are computed once for an
    image.
    """

    version: int = 1
    fence_version: int = 1
    since_epoch: int = 0
    fence_epoch: int = 0
    relaxed_to: str = ""
    let_through: str = ""
    transitions: Map[str, Transition] = Map()
    coordinator: Coordinator = Coordinator()

    def open(self) -> list[Transition]:
        """Return the open transitions, sorted by id."""
        return [self.transitions[name] for name in sorted(self.transitions)]

    def sessions(self) -> frozenset[str]:
        """Return the open sessions."""
        return self._sessions

    def of_session(self, session: str) -> Transition | None:
        """Return the transition whose session this is."""
        return self._by_session.get(session)

    def of_request(self, request_id: str) -> Transition | None:
        """Return the transition that carries out a request."""
        return self._by_request.get(request_id)

    @cached_property
    def _sessions(self) -> frozenset[str]:
        return frozenset(self._by_session)

    @cached_property
    def _by_session(self) -> dict[str, Transition]:
        return {t.session: t for t in self.transitions.values() if t.session}

    @cached_property
    def _by_request(self) -> dict[str, Transition]:
        return {i: each for each in self.transitions.values() for i in each.request_ids()}

    def settled(self) -> bool:
        """Return whether the current version is fenced: then no older one is in use."""
        return self.fence_version == self.version
