"""A log of one writer in memory, for tests of the pure core: commands in, epochs and images out."""

import random
from collections.abc import Callable, Iterable
from itertools import count

import msgspec

from stele.domain.commands import (
    AnyCommand,
    Envelope,
    Noop,
    Rejection,
    command_digest,
    command_name,
)
from stele.domain.decide import decide
from stele.domain.evolve import evolve
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import EMPTY, EMPTY_FOR_FOLLOWERS, Image
from stele.domain.requests.decisions import refusal
from stele.domain.requests.ids import named, parse
from stele.log.state_ids import next_state_id

AT_MS = 1_700_000_000_000
LOG_ID = next_state_id(bytes(16), AT_MS, 7)


class History:
    """Every epoch and every image since the beginning.

    ``judge`` sees each epoch before it is taken, ``on_image`` the image that it made. From ``EMPTY`` its images
    remember decided requests, whose ids must then be UUIDs.
    """

    def __init__(
        self,
        judge: Callable[[Image, Image, Epoch], None] | None = None,
        empty: Image = EMPTY_FOR_FOLLOWERS,
    ) -> None:
        self.epochs: list[Epoch] = []
        self.images: list[Image] = [empty]
        self.on_image: Callable[[Image], None] = lambda _image: None
        self.at_ms = AT_MS
        """The writer's clock."""
        self._judge = judge
        self._outcomes: dict[str, Rejection | None] = {}
        self._chance = random.Random(7)
        self._ids = count(1)

    @property
    def image(self) -> Image:
        return self.images[-1]

    def apply(self, command: AnyCommand, request_id: str = "") -> Rejection | None:
        request_id = request_id or named(f"request-{next(self._ids)}")
        return self.submit(
            Envelope(request_id=request_id, command=command, actor="ada", reason="why")
        )

    def submit(self, envelope: Envelope) -> Rejection | None:
        """None when it was applied. An id has one outcome, however often it is sent."""
        if envelope.request_id not in self._outcomes:
            self._outcomes[envelope.request_id] = self._decide(envelope)
        return self._outcomes[envelope.request_id]

    def refuse(self, envelope: Envelope, rejection: Rejection) -> None:
        """A barrier that records a refusal."""
        fact = refusal(envelope, command_digest(envelope.command), rejection)
        self._add(Envelope(request_id="", command=Noop(), actor="log", reason="why"), (fact,))

    def _decide(self, envelope: Envelope) -> Rejection | None:
        decision = decide(self.image, envelope, self.at_ms)
        if isinstance(decision, Rejection):
            return decision
        self._add(envelope, decision)
        return None

    def _add(self, envelope: Envelope, facts: tuple[AnyFact, ...]) -> None:
        image = self.image
        entropy = self._chance.getrandbits(74)
        epoch = Epoch(
            prev_state_id=image.state_id,
            state_id=next_state_id(image.state_id, self.at_ms, entropy),
            log_id=LOG_ID,
            witness_state_id=image.state_id,
            epoch=image.epoch + 1,
            witness_epoch=image.epoch,
            command_digest=command_digest(envelope.command) if envelope.request_id else bytes(16),
            request_id=envelope.request_id,
            command=command_name(envelope.command),
            facts=facts,
            actor=envelope.actor,
            reason=envelope.reason,
        )
        after = evolve(image, epoch)
        if self._judge is not None:
            self._judge(image, after, epoch)
        self.epochs.append(epoch)
        self.images.append(after)
        self.on_image(after)


def as_asked_by_uuid(epochs: Iterable[Epoch]) -> list[Epoch]:
    """The same epochs with request ids that a memory of decided requests can hold."""
    return [
        epoch
        if not epoch.request_id or parse(epoch.request_id)
        else msgspec.structs.replace(epoch, request_id=named(epoch.request_id))
        for epoch in epochs
    ]


def remembered(epochs: Iterable[Epoch]) -> list[Image]:
    """Every image since the beginning, with the memory of decided requests."""
    found = [EMPTY]
    for epoch in as_asked_by_uuid(epochs):
        found.append(evolve(found[-1], epoch))
    return found
