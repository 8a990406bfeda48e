"""Facts and image of the topology (docs/design.md, "Topology rounds")."""

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import msgspec
from immutables import Map

from stele.domain.base import Fact
from stele.domain.model.topology import Coordinator, TransitionHead, Versions
from stele.domain.names import BarrierLevel, TransitionState
from stele.domain.ring.transition import TransitionPlan, TransitionRow


class Transition(TransitionHead, frozen=True, kw_only=True):
    """One operation under way, with the placements of all its steps, computed once when it opens.

    ``plans`` maps a placement's name to its plan. Steps take their rows from it and never compute
    replicas again, so readers fold the log without any strategy code (CEP-21, in-progress
    sequences).
    """

    plans: dict[str, TransitionPlan] = msgspec.field(default_factory=dict)

    def rows(self) -> Iterator[TransitionRow]:
        """Yield the rows of all plans."""
        return (row for plan in self.plans.values() for row in plan.rows)


class VersionsChanged(Fact, frozen=True):
    versions: Versions


class BarrierRelaxed(Fact, frozen=True):
    """The barrier of the present version passes at a lower level from this epoch on.

    ``without`` are the replicas whose answers the level before still lacked. ``unsafe``: a quorum
    without this version may still acknowledge writes.
    """

    version: int
    level: BarrierLevel
    without: tuple[str, ...]
    unsafe: bool


class CoordinatorChanged(Fact, frozen=True):
    coordinator: Coordinator


class TransitionOpened(Fact, frozen=True):
    """A new transition without its plans, which are separate facts."""

    transition: Transition


class TransitionMoved(Fact, frozen=True):
    """A transition entered another state, with a new session if work is done in it."""

    transition_id: str
    state: TransitionState
    session: str
    entered_version: int
    entered_epoch: int


class TransitionMarked(Fact, frozen=True):
    """A transition is marked to go back, with the reason."""

    transition_id: str
    mark: str
    blamed: tuple[str, ...]


class TransitionPlanned(Fact, frozen=True):
    """A transition's plan for a placement, or one more piece, appended to the earlier pieces."""

    transition_id: str
    placement: str
    plan: TransitionPlan


class TransitionUnplanned(Fact, frozen=True):
    """The plan of a transition for a placement that was dropped is removed."""

    transition_id: str
    placement: str


class TransitionFinished(Fact, frozen=True):
    transition_id: str


TopologyFact = (
    VersionsChanged
    | BarrierRelaxed
    | CoordinatorChanged
    | TransitionOpened
    | TransitionMoved
    | TransitionMarked
    | TransitionPlanned
    | TransitionUnplanned
    | TransitionFinished
)


# Transitions as facts: the head first, then the plans, in pieces that each fit a record.


ROWS_PER_FACT: Final = 2000
"""Most rows of each part of a plan in one fact: about half a MiB, below 4 MiB for any node ids."""

_PARTS: Final = TransitionPlan.__struct_fields__


def opening(transition: Transition) -> Iterator[TransitionOpened | TransitionPlanned]:
    """Yield the facts that create a transition."""
    # The head comes first: ``transition_planned`` appends pieces to an open transition.
    yield TransitionOpened(msgspec.structs.replace(transition, plans={}))
    for placement in sorted(transition.plans):
        yield from planned(transition.transition_id, placement, transition.plans[placement])


def planned(
    transition_id: str, placement: str, plan: TransitionPlan
) -> Iterator[TransitionPlanned]:
    """Yield a transition's plan for a placement in pieces; an empty plan is one empty piece."""
    rows = max(len(getattr(plan, part)) for part in _PARTS)
    for start in range(0, max(1, rows), ROWS_PER_FACT):
        cut = slice(start, start + ROWS_PER_FACT)
        piece = TransitionPlan(**{part: getattr(plan, part)[cut] for part in _PARTS})
        yield TransitionPlanned(transition_id, placement, piece)


def joined(plan: TransitionPlan | None, more: TransitionPlan) -> TransitionPlan:
    """Return a plan with one more piece appended."""
    if plan is None:
        return more
    return TransitionPlan(**{part: getattr(plan, part) + getattr(more, part) for part in _PARTS})


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
