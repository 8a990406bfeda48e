"""Facts of the topology: versions, transitions and their plans (docs/design.md, "Topology rounds")."""

import msgspec

from stele.domain.base import Fact
from stele.domain.names import BarrierLevel, TransitionState
from stele.domain.ring.transition import TransitionPlan
from stele.domain.topology.heads import Coordinator, TransitionHead, Versions


class Transition(TransitionHead, frozen=True, kw_only=True):
    """One operation under way, with the placements of all its steps, computed once when it opens.

    ``plans`` maps a placement's name to its plan. Steps take their rows from it and never compute
    replicas again, so readers fold the log without any strategy code (CEP-21, in-progress
    sequences).
    """

    plans: dict[str, TransitionPlan] = msgspec.field(default_factory=dict)


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
