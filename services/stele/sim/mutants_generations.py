"""Planted bugs of CDC generations: what they count, when they are committed, and what is left behind."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from stele.domain.cdc import generations
from stele.domain.cdc.facts import CdcFact, CdcGenerationCommitted
from stele.domain.context import Context
from stele.domain.image import Image
from stele.domain.names import RequestKind
from stele.domain.topology import steps
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import ring_with_open
from stele.domain.topology.rings import ring_now
from stele.sim.patching import Patch


def generation_forgets_who_joins(patch: Patch) -> None:
    """A CDC generation counts only the tokens of the ring before the join that it is made for."""
    patch.attribute(steps, "tokens_of_streams", lambda image: {*ring_now(image).tokens})


def generation_is_committed_unseen(patch: Patch) -> None:
    """A CDC generation is committed by the epoch that writes it: no barrier comes between."""
    plain = generations.written

    def at_once(context: Context, transition_id: str, tokens: Iterable[int]) -> Iterator[CdcFact]:
        facts = [*plain(context, transition_id, tokens)]
        yield from facts
        yield CdcGenerationCommitted(facts[0].generation_id, context.at_ms, context.epoch)

    patch.attribute(steps, "written", at_once)


def undone_generation_is_left(patch: Patch) -> None:
    """What was written for an operation that goes back stays."""

    def nothing(image: Image, transition_id: str) -> tuple[CdcFact, ...]:
        return ()

    patch.attribute(steps, "abandoned", nothing)


def generation_forgets_who_may_come_back(patch: Patch) -> None:
    """A CDC generation has no streams for nodes that are leaving, though they stay if that is undone."""
    patch.attribute(
        steps, "tokens_of_streams", lambda image: {*ring_with_open(image, ring_now(image)).tokens}
    )


def generation_need_not_be_known(patch: Patch) -> None:
    """A CDC generation for which no ranges change is committed although members have not heard of it."""
    operation = OPERATIONS[RequestKind.NEW_CDC_GENERATION]
    states = {
        name: msgspec.structs.replace(state, everybody_knows=False)
        for name, state in operation.states.items()
    }
    patch.item(OPERATIONS, operation.kind, msgspec.structs.replace(operation, states=states))


GENERATION_TEST_MUTANTS: Final = (
    generation_forgets_who_may_come_back,
    generation_need_not_be_known,
)
GENERATION_MUTANTS: Final = (
    generation_forgets_who_joins,
    generation_is_committed_unseen,
    undone_generation_is_left,
)
