"""Planted bugs: known faults that runs or stories of the simulator must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec

from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, TransitionState
from stele.domain.topology import steps
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator.patching import Patch

RUN: Final = "run"
"""A run of a random scenario finds the bug."""
STORY: Final = "story"
"""A story finds the bug: it needs several events in one order."""

Plant = Callable[[Patch], None]


class PlantedBug(msgspec.Struct, frozen=True):
    """A known fault: how to plant it, how it is found, and the rule that it breaks."""

    plant: Plant
    found_by: str
    rule: str

    @property
    def description(self) -> str:
        """The docstring of the function that plants it, on one line."""
        return " ".join((self.plant.__doc__ or "").split())


PLANTED: Final[dict[str, PlantedBug]] = {}
"""Filled by ``planted`` when the modules of ``stele_simulator`` that declare bugs are imported."""


def planted(found_by: str, *, rule: str = "") -> Callable[[Plant], Plant]:
    """Declare the function that plants a bug.

    ``rule`` is a rule or an invariant of docs/design.md or docs/internals/verification.md.
    """

    def declare(plant: Plant) -> Plant:
        name = plant.__name__
        if name in PLANTED:
            raise ValueError(f"two planted bugs are called {name}: rename one")
        PLANTED[name] = PlantedBug(plant, found_by, rule)
        return plant

    return declare


def change_operation(patch: Patch, kind: RequestKind, **parts: Any) -> None:
    """Replace ``parts`` of the row of ``kind`` in the table of operations."""
    patch.item(OPERATIONS, kind, replace(OPERATIONS[kind], **parts))


def change_state(patch: Patch, kind: RequestKind, state: TransitionState, **parts: Any) -> None:
    """Replace ``parts`` of one state of an operation, and of those that share its states."""
    states: Any = OPERATIONS[kind].states
    patch.item(states, state, msgspec.structs.replace(states[state], **parts))


def plan_without_locks(patch: Patch, kind: RequestKind) -> None:
    """Let other transitions change the ranges of an operation while it is under way."""
    plain = OPERATIONS[kind].plans
    assert plain is not None

    def unlocked(image: Image, requests: list[Request]) -> Any:
        found = plain(image, requests)
        return {name: msgspec.structs.replace(plan, locks=()) for name, plan in found.items()}

    change_operation(patch, kind, plans=unlocked)


def count_failures_as_done(patch: Patch, kind: RequestKind) -> None:
    """End operations of this kind as done although they failed or were cancelled."""
    plain = steps._end

    def done(draft: steps.Draft, transition: Transition, *, undone: bool) -> None:
        plain(draft, transition, undone=undone and transition.kind is not kind)

    patch.attribute(steps, "_end", done)
