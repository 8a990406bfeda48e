"""What a commit pipeline has on its way: records, the commands in them, and who waits for which."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.cluster.facts import ClusterCreated
from stele.domain.commands import Envelope, Outcome
from stele.domain.commits.restricted import restricted
from stele.domain.evolve import evolve
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.requests.facts import CommandRefused
from stele.domain.requests.ids import time_ms
from stele.domain.requests.not_taken import expired

MAX_RECORD_BYTES: Final = 8 * 1024 * 1024 - 4096
"""The topic takes 8 MiB with the batch's own header."""

Reply = Callable[[Outcome], None]
Records = list[tuple[bytes, Epoch]]
"""Encoded and not, each chained to the one before it."""


class Waiting(msgspec.Struct, frozen=True):
    """A caller: its command, how to answer it, and why it is not taken unless it was decided before."""

    envelope: Envelope
    digest: bytes
    reply: Reply
    problem: Rejection | None = None


class Command(msgspec.Struct):
    """A command on its way, all who wait for it, and its refusal if it is refused."""

    request_id: str
    digest: bytes
    callers: list[Waiting]
    refused: CommandRefused | None = None


class InFlight(msgspec.Struct):
    """A record on its way: the image if it wins, and who waits for it.

    A barrier carries refusals, which rest on the state before it: they are answered when it wins, and decided
    again when it loses. ``readers`` wait for it too, and ``not_taken`` for it to be certain that they are not.
    Nobody waits for a part: its command waits for the record that commits it.
    """

    value: bytes
    image: Image
    commands: list[Command] = []
    readers: list[Reply] = []
    not_taken: list[Waiting] = []


class Barrier(msgspec.Struct):
    """A barrier that is not encoded yet. ``image`` is what it leads to, but for what it refuses."""

    image: Image
    at_ms: int
    size_bytes: int = 0
    commands: list[Command] = []
    readers: list[Reply] = []
    not_taken: list[Waiting] = []


def images_after(image: Image, records: Records) -> Iterator[Image]:
    """The image after each of the records, should they win."""
    for _, epoch in records:
        image = evolve(image, epoch)
        yield image


def outcome_of(request_id: str, image: Image, rejection: Rejection | None) -> Outcome:
    return Outcome(
        request_id=request_id,
        applied=rejection is None,
        epoch=image.epoch,
        state_id=image.state_id,
        rejection=rejection,
        log_id=image.log_id,
    )


def why_not_taken(image: Image, envelope: Envelope) -> Rejection | None:
    """Why a command that was not decided yet is not taken in this state; None when it can be decided."""
    decided = image.decided
    if decided is not None and time_ms(envelope.request_id) <= decided.horizon_ms:
        return expired(decided.horizon_ms)
    return restricted(image.commits, envelope)


def log_id_of_founding(facts: tuple[AnyFact, ...]) -> bytes:
    fact, *_ = facts
    assert isinstance(fact, ClusterCreated)
    return bytes.fromhex(fact.log_id)


def size_of_refusal(fact: CommandRefused) -> int:
    """About what a refusal takes in a record, in bytes; a character may take four."""
    texts = (fact.message, fact.hint, fact.actor, fact.reason, fact.origin)
    details = (text for item in fact.details.items() for text in item)
    return 200 + 4 * sum(map(len, (*texts, *details)))


def internal(error: Exception) -> Rejection:
    return Rejection(
        "internal",
        "The command breaks the metadata log's own rules, so nothing was changed.",
        "Report it with the service's log.",
        {"error": repr(error)[:500]},
    )


def too_large(size_bytes: int) -> Rejection:
    return Rejection(
        "record_too_large",
        f"A single fact of the change needs a record of {size_bytes} bytes; the log takes {MAX_RECORD_BYTES}.",
        "Shorten the command's largest value.",
        {"size_bytes": str(size_bytes)},
    )
