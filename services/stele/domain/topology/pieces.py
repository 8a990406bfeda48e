"""Transitions as facts: what one is first, then its plans, large ones in pieces that each fit a record."""

from collections.abc import Iterator
from typing import Final

import msgspec

from stele.domain.ring.transition import TransitionPlan
from stele.domain.topology.facts import Transition, TransitionOpened, TransitionPlanned

ROWS_PER_FACT: Final = 2000
"""Of each part of a plan. About half a MiB, and never 4 MiB whatever the nodes are called."""

_PARTS: Final = TransitionPlan.__struct_fields__


def opening(transition: Transition) -> Iterator[TransitionOpened | TransitionPlanned]:
    """The facts that make a transition, written from nothing."""
    yield TransitionOpened(msgspec.structs.replace(transition, plans={}))
    for placement in sorted(transition.plans):
        yield from planned(transition.transition_id, placement, transition.plans[placement])


def planned(
    transition_id: str, placement: str, plan: TransitionPlan
) -> Iterator[TransitionPlanned]:
    """A transition's plan for a placement; an empty plan is one empty piece."""
    rows = max(len(getattr(plan, part)) for part in _PARTS)
    for start in range(0, max(1, rows), ROWS_PER_FACT):
        cut = slice(start, start + ROWS_PER_FACT)
        piece = TransitionPlan(**{part: getattr(plan, part)[cut] for part in _PARTS})
        yield TransitionPlanned(transition_id, placement, piece)


def joined(plan: TransitionPlan | None, more: TransitionPlan) -> TransitionPlan:
    """A plan with one more piece behind it."""
    if plan is None:
        return more
    return TransitionPlan(**{part: getattr(plan, part) + getattr(more, part) for part in _PARTS})
