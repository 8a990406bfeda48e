"""Transitions as facts: the head first, then the plans, in pieces that each fit a record."""

from collections.abc import Iterator
from typing import Final

import msgspec

from stele.domain.ring.transition import TransitionPlan
from stele.domain.topology.facts import Transition, TransitionOpened, TransitionPlanned

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
