"""Planted bugs of the memory of decided requests: what is forgotten, and what is too old to be decided."""

from stele.domain import request_memory
from stele.domain.commands import Envelope, Rejection
from stele.domain.image import Image
from stele.domain.not_taken import check_id, horizon_of, restricted
from stele.domain.request_memory import SealedGeneration, restored
from stele.log.record_builder import why_not_taken
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, planted


@planted(RUN, rule="4")
def horizon_is_not_compared(patch: Patch) -> None:
    """Whatever is not remembered is decided, however old its id."""

    def unbounded(image: Image, envelope: Envelope) -> Rejection | None:
        return restricted(image.commits, envelope)

    patch.function(why_not_taken, unbounded)


@planted(RUN, rule="I2")
def forgetting_does_not_raise_the_horizon(patch: Patch) -> None:
    """A generation of decisions is forgotten, and its ids are taken as if they were new."""
    patch.attribute(SealedGeneration, "newest_ms", -1)


@planted(RUN, rule="I8")
def snapshot_forgets_the_horizon(patch: Patch) -> None:
    """A process that starts from a snapshot accepts ids that are too old for others."""
    patch.attribute(
        request_memory, "restored", lambda young, floor, horizon_ms: restored(young, floor, -1)
    )


@planted(RUN, rule="I10")
def horizon_is_not_heard(patch: Patch) -> None:
    """A process ignores the horizon of ids in refusals and uses the log's time, whose ids stay too old while
    no other command arrives.
    """
    patch.function(horizon_of, lambda rejection: -1)


@planted(RUN, rule="I10")
def ids_behind_the_horizon_are_from_the_future(patch: Patch) -> None:
    """Once a wrong clock has raised the horizon far ahead, no id is new enough and none is taken that is."""
    plain = check_id

    def check(
        request_id: str, state_id: bytes, now_ms: int, horizon_ms: int = -1
    ) -> Rejection | None:
        return plain(request_id, state_id, now_ms)

    patch.function(plain, check)
