"""Known bugs of repairs of tablets."""

from typing import Any, Final

import msgspec

from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring.transition import TransitionPlan
from stele.domain.topology import steps
from stele.domain.topology.operations import repairs
from stele.domain.topology.operations.base import no_receivers
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.steps import Draft
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, change_operation, planted

_REPAIR: Final = RequestKind.TABLET_REPAIR


@planted(STORY, rule="I5")
def replicas_are_not_repaired(patch: Patch) -> None:
    """A tablet counts as repaired although no replica sent a row."""
    change_operation(patch, _REPAIR, receivers=no_receivers)


@planted(STORY)
def failed_repair_counts(patch: Patch) -> None:
    """A repair that failed, or was cancelled, counts as done."""
    plain = steps._end

    def done(draft: Draft, transition: Transition, *, undone: bool) -> None:
        plain(draft, transition, undone=undone and transition.kind is not _REPAIR)

    patch.attribute(steps, "_end", done)


@planted(STORY)
def excluded_hold_up_repairs(patch: Patch) -> None:
    """A tablet with an excluded replica cannot be repaired."""
    states: Any = OPERATIONS[_REPAIR].states
    strict = msgspec.structs.replace(states[TransitionState.REPAIR], reads_stay=False)
    patch.item(states, TransitionState.REPAIR, strict)


@planted(STORY)
def repair_locks_nothing(patch: Patch) -> None:
    """A tablet moves while it is repaired."""
    plain = repairs.plans

    def unlocked(image: Any, requests: Any) -> Any:
        found = plain(image, requests)
        if not isinstance(found, dict):
            return found
        return {name: TransitionPlan(plan.rows) for name, plan in found.items()}

    change_operation(patch, _REPAIR, plans=unlocked)
