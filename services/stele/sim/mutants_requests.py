"""Planted bugs of the memory of decided requests: what is forgotten, and what is too old to be decided."""

from typing import Final

from stele.domain.commands import Envelope, Rejection
from stele.domain.commits.restricted import restricted
from stele.domain.image import Image
from stele.domain.requests import decided
from stele.domain.requests.memory import Generation, restored
from stele.domain.requests.not_taken import check_id, horizon_of
from stele.log.flight import why_not_taken
from stele.sim.patching import Patch


def horizon_is_not_compared(patch: Patch) -> None:
    """Whatever is not remembered is decided, however old its id."""

    def unbounded(image: Image, envelope: Envelope) -> Rejection | None:
        return restricted(image.commits, envelope)

    patch.function(why_not_taken, unbounded)


def forgetting_does_not_raise_the_horizon(patch: Patch) -> None:
    """A generation of decisions is forgotten, and its ids are taken as if they were new."""
    patch.attribute(Generation, "newest_ms", -1)


def snapshot_forgets_the_horizon(patch: Patch) -> None:
    """Who begins with a snapshot decides ids that are too old for the others."""
    patch.attribute(
        decided, "restored", lambda young, floor, horizon_ms: restored(young, floor, -1)
    )


def horizon_is_not_heard(patch: Patch) -> None:
    """Who is told how new an id must be goes on by the log's time, whose ids are too old as long as nobody else
    asks for anything.
    """
    patch.function(horizon_of, lambda rejection: -1)


def ids_behind_the_horizon_are_from_the_future(patch: Patch) -> None:
    """Once a wrong clock has raised the horizon far ahead, no id is new enough and none is taken that is."""
    plain = check_id

    def check(
        request_id: str, state_id: bytes, now_ms: int, horizon_ms: int = -1
    ) -> Rejection | None:
        return plain(request_id, state_id, now_ms)

    patch.function(plain, check)


REQUEST_MUTANTS: Final = (
    horizon_is_not_compared,
    forgetting_does_not_raise_the_horizon,
    snapshot_forgets_the_horizon,
    horizon_is_not_heard,
    ids_behind_the_horizon_are_from_the_future,
)
