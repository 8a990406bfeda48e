"""A log of one writer in memory, for tests of the pure core: it takes commands and has epochs and images."""

import random
from collections.abc import Callable, Iterable

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
from stele.domain.image import EMPTY, EMPTY_FOR_FOLLOWERS, NO_LOG, Image
from stele.domain.model.features import FeaturesEnabled
from stele.domain.model.requests import named, parse
from stele.domain.recovery import NewLog, Why, recovered
from stele.domain.request_memory import refusal
from stele.log.record_builder import next_state_id

AT_MS = 1_700_000_000_000
LOG_ID = next_state_id(bytes(16), AT_MS, 7)


class History:
    """Every epoch and every image since the start.

    ``judge`` receives each epoch before it is taken, ``on_image`` the image that it made. If it starts with
    ``EMPTY``, its images remember decided requests, whose ids must then be UUIDs.
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
        self._last_id = 0

    @property
    def image(self) -> Image:
        return self.images[-1]

    def apply(self, command: AnyCommand, request_id: str = "") -> Rejection | None:
        if not request_id:
            self._last_id += 1
            request_id = named(f"request-{self._last_id}")
        return self.submit(
            Envelope(request_id=request_id, command=command, actor="ada", reason="why")
        )

    def submit(self, envelope: Envelope) -> Rejection | None:
        """Return None if the command was applied. An id has one outcome, however often it is sent."""
        if envelope.request_id not in self._outcomes:
            self._outcomes[envelope.request_id] = self._decide(envelope)
        return self._outcomes[envelope.request_id]

    def refuse(self, envelope: Envelope, rejection: Rejection) -> None:
        """Append a barrier that records a rejection."""
        fact = refusal(envelope, command_digest(envelope.command), rejection)
        self._add(Envelope(request_id="", command=Noop(), actor="log", reason="why"), (fact,))

    def enable(self, *features: str) -> None:
        """Enable features, as the coordinator does once all processes have acknowledged the request."""
        enabled = (*self.image.features.enabled, *features)
        self._add(Envelope(request_id="", command=Noop()), (FeaturesEnabled(enabled),))

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
            log_id=LOG_ID if image.log_id == NO_LOG else image.log_id,
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
        self._append(epoch, after)

    def recover(
        self, log_id: bytes, last_epoch: int = 0, topic_id: str = "", known_epoch: int = 0
    ) -> Epoch:
        """Recover the log as another one after ``last_epoch``. With 0 no epoch is lost."""
        known_epoch = known_epoch or self.image.epoch
        if last_epoch:
            del self.epochs[last_epoch:], self.images[last_epoch + 1 :]
        state_id = next_state_id(self.image.state_id, self.at_ms, self._chance.getrandbits(74))
        new = NewLog(log_id=log_id, state_id=state_id, topic_id=topic_id, at_ms=self.at_ms)
        epoch = recovered(self.image, new, Why(actor="ada", reason="it was lost"), known_epoch)
        assert isinstance(epoch, Epoch)
        self._append(epoch, evolve(self.image, epoch))
        return epoch

    def _append(self, epoch: Epoch, after: Image) -> None:
        self.epochs.append(epoch)
        self.images.append(after)
        self.on_image(after)


def as_asked_by_uuid(epochs: Iterable[Epoch]) -> list[Epoch]:
    """Return the same epochs with request ids that a memory of decided requests can hold."""
    return [
        epoch
        if not epoch.request_id or parse(epoch.request_id)
        else msgspec.structs.replace(epoch, request_id=named(epoch.request_id))
        for epoch in epochs
    ]


def remembered(epochs: Iterable[Epoch]) -> list[Image]:
    """Return every image since the start, with the memory of decided requests."""
    found = [EMPTY]
    for epoch in as_asked_by_uuid(epochs):
        found.append(evolve(found[-1], epoch))
    return found


def code_of(found: object) -> str:
    """Return the code of a rejection, or an empty string."""
    return found.code if isinstance(found, Rejection) else ""
