"""Histories of the coordinator's random runs, and overrides of their newest state by older ones."""

from functools import cache

from stele.domain.commands import (
    AnyCommand,
    Envelope,
    LoadState,
    Rejection,
    RestrictCommits,
    RevertState,
)
from stele.domain.image import Image
from stele.domain.model.requests import named
from stele.domain.names import CommitMode
from stele.domain.overrides import packed_state
from stele.domain.snapshot import image_to_facts
from stele.domain.soundness import under_way
from tests.coordinator.random_runs import RandomRun
from tests.domain.epochs import History

SEEDS = (3, 11, 54, 77)


@cache
def run_of(seed: int) -> tuple[Image, ...]:
    """Return all images of a run. It ends while transitions are open."""
    run = RandomRun(seed)
    run.go(30)
    return tuple(run.world.images)


def at(images: tuple[Image, ...], index: int) -> History:
    """Return a log whose newest image is ``images[index]``, frozen by ada."""
    history = History()
    history.images = [*images[: index + 1]]
    assert ask(history, RestrictCommits(mode=CommitMode.FROZEN), "freeze") is None
    return history


def ask(
    history: History,
    command: AnyCommand,
    id_: str = "override",
    actor: str = "ada",
    reason: str = "why",
) -> Rejection | None:
    return history.submit(
        Envelope(request_id=named(id_), command=command, actor=actor, reason=reason)
    )


def content_of(image: Image) -> bytes:
    return packed_state(image_to_facts(image))


def revert(history: History, to: Image, *, accept_loss: bool = True) -> Rejection | None:
    command = RevertState(to_epoch=to.epoch, accept_loss=accept_loss, content=content_of(to))
    return ask(history, command)


def load(history: History, state: Image, *, accept_loss: bool = True) -> Rejection | None:
    return ask(history, LoadState(content=content_of(state), accept_loss=accept_loss))


def is_at_rest(image: Image) -> bool:
    return image.epoch > 0 and not [*under_way(image)]
