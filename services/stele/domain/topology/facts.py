"""The topology: what becomes true of versions, transitions and their plans (seeds 000 and 001)."""

import msgspec

from stele.domain.base import Fact
from stele.domain.names import BarrierLevel, TransitionState
from stele.domain.ring.transition import TransitionPlan
from stele.domain.topology.heads import Coordinator, TransitionHead, Versions


class Transition(TransitionHead, frozen=True, kw_only=True):
    """One operation under way, with the placements of all its steps, computed once when it opens.

    ``plans`` maps a placement's name to its plan: steps look their rows up there and never compute replicas
    again, so readers fold the log without any strategy code (CEP-21, in-progress sequences).
    """

    plans: dict[str, TransitionPlan] = msgspec.field(default_factory=dict)


class VersionsChanged(Fact, frozen=True):
    versions: Versions


class BarrierRelaxed(Fact, frozen=True):
    """The barrier of the present version is passed at a lower level from now on.

    ``without`` are the replicas whose answers the level before still lacked. ``unsafe``: a quorum that knows
    nothing of this version may still acknowledge writes.
    """

    version: int
    level: BarrierLevel
    without: tuple[str, ...]
    unsafe: bool


class CoordinatorChanged(Fact, frozen=True):
    coordinator: Coordinator


class TransitionOpened(Fact, frozen=True):
    """Without its plans, which are facts of their own."""

    transition: Transition


class TransitionMoved(Fact, frozen=True):
    """It entered another state, with a session of its own where data moves."""

    transition_id: str
    state: TransitionState
    session: str
    entered_version: int
    entered_epoch: int


class TransitionMarked(Fact, frozen=True):
    """It will go back, and why."""

    transition_id: str
    mark: str
    blamed: tuple[str, ...]


class TransitionPlanned(Fact, frozen=True):
    """Its plan for a placement, or one more piece of it, to be put behind those that came before."""

    transition_id: str
    placement: str
    plan: TransitionPlan


class TransitionUnplanned(Fact, frozen=True):
    """Its plan for a placement that is gone."""

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
