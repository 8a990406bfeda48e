"""Writing the log: compare-and-swap by log order, many commits in flight, no input or output.

The writer decides each command on the image as it will be once all its records in flight have won, and
chains their state ids. A record answers its callers when the writer's own reader meets it. When a
foreign record wins an epoch, the whole chain has lost: prev_state_ids never come back, so those records
are losers wherever they land, and their commands are decided again under the same request ids.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from stele.domain.cluster.facts import ClusterCreated
from stele.domain.commands import (
    Envelope,
    FoundCluster,
    Noop,
    Outcome,
    Rejection,
    command_digest,
    command_name,
)
from stele.domain.decide import decide
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import NO_LOG, Image
from stele.log.codec import encode_epoch
from stele.log.fold import Fold

MAX_RECORD_BYTES: Final = 8 * 1024 * 1024 - 4096
"""The topic takes 8 MiB with the batch's own header."""

Reply = Callable[[Outcome], None]
OnBug = Callable[[Envelope, Exception], None]
Fill = Callable[[FoundCluster], FoundCluster]
"""Completes a founding with what its caller cannot know; the caller's own words stay what is digested."""


class Ids(msgspec.Struct, frozen=True):
    """Where a writer gets what it may not invent: state ids, request ids of barriers, its clock."""

    next_state_id: Callable[[bytes], bytes]
    request_id: Callable[[], str]
    now_ms: Callable[[], int]


class Waiting(msgspec.Struct, frozen=True):
    """A caller: its command, and how to answer it."""

    envelope: Envelope
    reply: Reply


class InFlight(msgspec.Struct):
    """A record on its way: the image if it wins, and who waits for it.

    ``refused`` are commands whose rejection rests on ``image`` still being the newest: they are
    answered when this record wins, and decided again when it loses. ``readers`` wait for a barrier.
    """

    request_id: str
    value: bytes
    image: Image
    waiting: list[Waiting]
    refused: list[tuple[Waiting, Rejection]]
    readers: list[Reply]


class CommitPipeline:
    """One writer of one log. Feed it commands and records; take ``appends`` out and append them.

    ``append`` is called with each record in order. It may lose, double or delay them: that is what the
    protocol is for. A command that breaks the core is refused as ``internal`` and told to ``on_bug``,
    so that it cannot take the commands of others down; without ``on_bug`` it raises.
    """

    def __init__(
        self,
        fold: Fold,
        append: Callable[[bytes], None],
        ids: Ids,
        on_bug: OnBug | None = None,
        fill: Fill = lambda command: command,
    ) -> None:
        self.fold = fold
        self.redecided = 0
        """Records that lost to a foreign one, so that their commands were decided again."""
        self.bytes_in_flight = 0
        self._on_bug = on_bug
        self._fill = fill
        self._append = append
        self._ids = ids
        self._in_flight: deque[InFlight] = deque()
        self._by_request: dict[str, InFlight] = {}
        self._open_barrier: InFlight | None = None

    @property
    def in_flight(self) -> int:
        """Records that were appended and not met yet."""
        return len(self._in_flight)

    @property
    def tip(self) -> Image:
        """The image once everything in flight has won."""
        return self._in_flight[-1].image if self._in_flight else self.fold.image

    def submit(self, envelope: Envelope, reply: Reply) -> None:
        """Decide and append; ``reply`` is called once, when the outcome is certain."""
        self._submit(Waiting(envelope, reply))

    def read_barrier(self, reply: Reply) -> None:
        """Answer when everything that was committed before this call is applied here.

        Callers that come before the next ``flush`` share one NOOP.
        """
        self._barrier().readers.append(reply)

    def flush(self) -> None:
        """The records so far are on their way: a later reader needs a barrier of its own."""
        self._open_barrier = None

    def on_record(self, offset: int, value: bytes) -> Epoch | None:
        """Meet the next record of the log and answer whom it concerns.

        Returns the epoch of a foreign winner. None for a loser, and for a winner of this writer, whose
        image is known already; ``fold.image.epoch`` tells the two apart.
        """
        head = self._in_flight[0] if self._in_flight else None
        if head is not None and value == head.value:
            self._won(offset)
            return None
        epoch = self.fold.offer(offset, value)
        if epoch is not None and self._in_flight:
            self._start_again()
        return epoch

    def resolve(self) -> None:
        """Force the outcome of what is in flight: whoever wins this epoch, the head or this NOOP, ends it.

        Only a founding record can win the first epoch, so that one is sent again.
        """
        if self.fold.image.log_id == NO_LOG:
            if self._in_flight:
                self._append(self._in_flight[0].value)
            return
        noop = Envelope(request_id=self._ids.request_id(), command=Noop())
        value, _ = self._encode(self.fold.image, noop, (), self._ids.now_ms())
        self._append(value)

    def _submit(self, waiting: Waiting) -> None:
        envelope = waiting.envelope
        flying = self._by_request.get(envelope.request_id)
        if flying is not None:
            flying.waiting.append(waiting)
            return
        tip = self.tip
        try:
            at_ms = self._ids.now_ms()
            decision = decide(tip, self._with_log_id(envelope), at_ms)
            if isinstance(decision, Rejection):
                self._refuse(waiting, decision)
                return
            value, image = self._encode(tip, envelope, decision, at_ms)
        except Exception as error:
            if self._on_bug is None:
                raise
            self._on_bug(envelope, error)
            waiting.reply(_rejected(envelope, tip, _internal(error)))
            return
        if len(value) > MAX_RECORD_BYTES:
            waiting.reply(_rejected(envelope, tip, _too_large(len(value))))
            return
        self._launch(InFlight(envelope.request_id, value, image, [waiting], [], []))

    def _refuse(self, waiting: Waiting, rejection: Rejection) -> None:
        """A refusal too must rest on the newest state, so it waits behind a barrier.

        A log that is not founded takes no barrier: there is nothing to decide on.
        """
        if self.tip.log_id == NO_LOG:
            waiting.reply(_rejected(waiting.envelope, self.tip, rejection))
            return
        self._barrier().refused.append((waiting, rejection))

    def _barrier(self) -> InFlight:
        if self._open_barrier is None or self._open_barrier is not self._tail():
            noop = Envelope(request_id=self._ids.request_id(), command=Noop())
            value, image = self._encode(self.tip, noop, (), self._ids.now_ms())
            self._open_barrier = InFlight(noop.request_id, value, image, [], [], [])
            self._launch(self._open_barrier)
        return self._open_barrier

    def _tail(self) -> InFlight | None:
        return self._in_flight[-1] if self._in_flight else None

    def _launch(self, flight: InFlight) -> None:
        self._in_flight.append(flight)
        self.bytes_in_flight += len(flight.value)
        self._by_request[flight.request_id] = flight
        self._append(flight.value)

    def _encode(
        self, tip: Image, envelope: Envelope, decision: tuple[object, ...], at_ms: int
    ) -> tuple[bytes, Image]:
        """``at_ms`` is the time that was decided by, so that any reader can decide again and compare."""
        read = self.fold.image
        epoch = Epoch(
            prev_state_id=tip.state_id,
            state_id=self._ids.next_state_id(tip.state_id),
            log_id=tip.log_id if tip.log_id != NO_LOG else _founded(decision),
            witness_state_id=read.state_id,
            epoch=tip.epoch + 1,
            witness_epoch=read.epoch,
            command_digest=command_digest(envelope.command),
            request_id=envelope.request_id,
            command=command_name(envelope.command),
            facts=decision,  # type: ignore[arg-type]
            actor=envelope.actor,
            reason=envelope.reason,
            origin=envelope.origin,
            at_ms=at_ms,
        )
        return encode_epoch(epoch), evolve(tip, epoch)

    def _with_log_id(self, envelope: Envelope) -> Envelope:
        """A founding gets the log's id, time-ordered as state ids are, and what ``fill`` knows."""
        command = envelope.command
        if not isinstance(command, FoundCluster):
            return envelope
        command = self._fill(command)
        if not command.log_id:
            log_id = self._ids.next_state_id(NO_LOG).hex()
            command = msgspec.structs.replace(command, log_id=log_id)
        return msgspec.structs.replace(envelope, command=command)

    def _won(self, offset: int) -> None:
        flight = self._in_flight.popleft()
        self.bytes_in_flight -= len(flight.value)
        if flight is self._open_barrier:
            self._open_barrier = None
        del self._by_request[flight.request_id]
        self.fold.adopt(offset, flight.value, flight.image)
        met = Outcome(
            request_id=flight.request_id,
            applied=True,
            epoch=flight.image.epoch,
            state_id=flight.image.state_id,
            log_id=flight.image.log_id,
        )
        image = flight.image
        for reply in flight.readers:
            reply(met)
        for waiting in flight.waiting:
            waiting.reply(_applied(waiting.envelope, image.epoch, image.state_id, image.log_id))
        for waiting, rejection in flight.refused:
            waiting.reply(_rejected(waiting.envelope, flight.image, rejection))

    def _start_again(self) -> None:
        lost, self._in_flight = self._in_flight, deque()
        self._by_request = {}
        self.bytes_in_flight = 0
        self._open_barrier = None
        self.redecided += len(lost)
        for flight in lost:
            for waiting in flight.waiting:
                self._submit(waiting)
            for waiting, _ in flight.refused:
                self._submit(waiting)
            if flight.readers:
                self._barrier().readers.extend(flight.readers)


def _applied(envelope: Envelope, epoch: int, state_id: bytes, log_id: bytes) -> Outcome:
    return Outcome(
        request_id=envelope.request_id, applied=True, epoch=epoch, state_id=state_id, log_id=log_id
    )


def _rejected(envelope: Envelope, image: Image, rejection: Rejection) -> Outcome:
    return Outcome(
        request_id=envelope.request_id,
        applied=False,
        epoch=image.epoch,
        state_id=image.state_id,
        rejection=rejection,
        log_id=image.log_id,
    )


def _founded(decision: tuple[object, ...]) -> bytes:
    (fact,) = decision
    assert isinstance(fact, ClusterCreated)
    return bytes.fromhex(fact.log_id)


def _internal(error: Exception) -> Rejection:
    return Rejection(
        "internal",
        "The command breaks the metadata log's own rules, so nothing was changed.",
        "Report it with the service's log.",
        {"error": repr(error)[:500]},
    )


def _too_large(size_bytes: int) -> Rejection:
    return Rejection(
        "record_too_large",
        f"The change needs a record of {size_bytes} bytes; the log takes {MAX_RECORD_BYTES}.",
        "Split it into smaller commands.",
        {"size_bytes": str(size_bytes)},
    )
