"""Records in flight of a commit pipeline, with their commands and waiting callers."""

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.cluster.model import ClusterCreated
from stele.domain.commands import Envelope, Outcome
from stele.domain.commits.restricted import restricted
from stele.domain.evolve import evolve
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.requests.ids import time_ms
from stele.domain.requests.model import CommandRefused
from stele.domain.requests.not_taken import expired

MAX_RECORD_BYTES: Final = 8 * 1024 * 1024 - 4096
"""Largest record, in bytes. The topic takes 8 MiB including the header of the batch."""

Pending = asyncio.Future[Outcome]
"""The outcome of a command or read. A caller that gives up cancels it."""
Records = list[tuple[bytes, Epoch]]
"""Pairs of encoded bytes and epoch, each chained to the record before it."""


class Waiting(msgspec.Struct, frozen=True):
    """A caller with its command.

    ``digest`` is that of the command as its caller sent it. ``problem`` is the reason to refuse the
    command unless it was decided before.
    """

    envelope: Envelope
    digest: bytes
    pending: Pending
    problem: Rejection | None = None


class CommandInFlight(msgspec.Struct):
    """A command in flight, all callers that wait for it, and its refusal if it is refused."""

    request_id: str
    digest: bytes
    callers: list[Waiting]
    refused: CommandRefused | None = None


class InFlight(msgspec.Struct):
    """A record in flight, the image if it wins, and the callers that wait for it.

    A barrier carries refusals, which rest on the state before it. They are answered when it wins,
    and decided again when it loses. ``readers`` are barrier reads. ``not_taken`` are commands whose
    reason is certain once the barrier has won. A part has no callers, because its command waits for
    the record that commits the parts.
    """

    value: bytes
    image: Image
    commands: list[CommandInFlight] = []
    readers: list[Pending] = []
    not_taken: list[Waiting] = []


class PendingBarrier(msgspec.Struct):
    """A barrier that is not encoded yet.

    ``image`` is the image after it, without the effect of its refusals on the memory.
    """

    image: Image
    at_ms: int
    size_bytes: int = 0
    commands: list[CommandInFlight] = []
    readers: list[Pending] = []
    not_taken: list[Waiting] = []


def settle(pending: Pending, outcome: Outcome) -> None:
    """Give a caller its outcome, unless the caller has given up."""
    if not pending.done():
        pending.set_result(outcome)


def images_after(image: Image, records: Records) -> Iterator[Image]:
    """Yield the image after each of the records, as if all of them win."""
    for _, epoch in records:
        image = evolve(image, epoch)
        yield image


def outcome_of(request_id: str, image: Image, rejection: Rejection | None) -> Outcome:
    """Return the outcome of a request that was decided at the epoch of ``image``."""
    return Outcome(
        request_id=request_id,
        applied=rejection is None,
        epoch=image.epoch,
        state_id=image.state_id,
        rejection=rejection,
        log_id=image.log_id,
    )


def why_not_taken(image: Image, envelope: Envelope) -> Rejection | None:
    """Return why an undecided command is not taken in this state; None when it can be decided."""
    decided = image.decided
    if decided is not None and time_ms(envelope.request_id) <= decided.horizon_ms:
        return expired(decided.horizon_ms)
    return restricted(image.commits, envelope)


def log_id_of_founding(facts: tuple[AnyFact, ...]) -> bytes:
    """Return the log id that the facts of a founding record create."""
    fact, *_ = facts
    assert isinstance(fact, ClusterCreated)
    return bytes.fromhex(fact.log_id)


def size_of_refusal(fact: CommandRefused) -> int:
    """Return an upper estimate of the bytes of a refusal in a record, at four bytes a character."""
    texts = (fact.message, fact.hint, fact.actor, fact.reason, fact.origin)
    details = (text for item in fact.details.items() for text in item)
    return 200 + 4 * sum(map(len, (*texts, *details)))


def internal(error: Exception) -> Rejection:
    """Return the rejection for a command that raised ``error`` in the core."""
    return Rejection(
        "internal",
        "The command breaks the metadata log's own rules, so nothing was changed.",
        "Report it with the service's log.",
        {"error": repr(error)[:500]},
    )


def too_large(size_bytes: int) -> Rejection:
    """Return the rejection for a change with a fact that needs a record of ``size_bytes``."""
    return Rejection(
        "record_too_large",
        f"A single fact of the change needs a record of {size_bytes} bytes; the log takes {MAX_RECORD_BYTES}.",
        "Shorten the command's largest value.",
        {"size_bytes": str(size_bytes)},
    )
