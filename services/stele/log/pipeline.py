"""Writing the log: compare-and-swap by log order, many commits in flight, no input or output.

The writer decides each command on the tip: the image after all its records in flight have won. It
chains the state ids of these records. Callers are answered when the writer's own reader reads the
record. When a foreign record wins an epoch, the whole chain loses. A prev_state_id never returns,
so these records lose wherever they land. Their commands are decided again under the same request
ids.

Each request id is looked up first, in flight and then among all decisions. A decided command is
answered from the record of its epoch, so a repeated command returns the first outcome. Refusals are
recorded in the NOOP record that they wait for.

A command that is not taken (log frozen, id too old) appends nothing, so a frozen log does not grow.
It waits for a NOOP only while the reason is not yet certain. A decision too large for one record
goes in parts, chained in flight with the record that commits them. No caller waits for a part.

The pipeline calls nobody. It returns a future for each command, and collects in ``Ready`` what its
owner must do next: append records, read past decisions, run a large decision.

Commands that arrive during a large decision wait for it. Lost commands, and commands held for
another writer's turn (``log.writer_turns``), are decided with the next ``flush``, once for
all records that are read together. See docs/design.md, rules 1 to 4, 7 and 9.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from stele.domain.commands import (
    Envelope,
    Noop,
    Outcome,
    Rejection,
    command_digest,
)
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import NO_LOG, Image, without_memory
from stele.domain.not_taken import BAD_ID, check_id, deleted, reused, unreadable
from stele.domain.request_memory import RequestDecision, decisions_of, refusal, rejection_of
from stele.log.codec import decode_epoch
from stele.log.fold import Fold
from stele.log.record_builder import (
    NO_DIGEST,
    CommandInFlight,
    Deciding,
    Ids,
    InFlight,
    Made,
    Pending,
    PendingNoop,
    RecordBuilder,
    Waiting,
    images_after,
    internal,
    is_large,
    outcome_of,
    set_outcome,
    size_of_refusal,
    why_not_taken,
)
from stele.log.writer_turns import WriterTurns

MAX_REFUSALS_BYTES: Final = 1024 * 1024
"""Limit of the refusals that share a NOOP record. It bounds the wait of a caller for other refusals."""

replace = msgspec.structs.replace

Decisions = Mapping[str, RequestDecision]
"""The decisions of one epoch by request id."""


class Ready(msgspec.Struct):
    """What the owner of a pipeline must do next."""

    records: list[bytes] = []
    """Append them to the log, in this order. Appends may be lost, repeated or late."""
    recalls: list[int] = []
    """Read the decisions of these past epochs, and pass each to ``recalled``."""
    deciding: Deciding | None = None
    """Call its ``decide`` in a thread, and pass the result to ``decided``."""
    bugs: list[tuple[Envelope, Exception]] = []
    """Report these commands, which raised in the core. They are refused as ``internal``."""

    def __bool__(self) -> bool:
        return bool(self.records or self.recalls or self.deciding is not None or self.bugs)


class CommitPipeline:
    """One writer of one log: takes commands and records, makes records and answers callers.

    After each call its owner takes ``take_ready`` and does what it says. The futures of ``submit``
    and ``linearizable_read`` belong to ``loop``.
    """

    def __init__(self, fold: Fold, ids: Ids, loop: asyncio.AbstractEventLoop) -> None:
        self.fold = fold
        self.redecided = 0
        """Count of records that lost to a foreign record; their commands were decided again."""
        self.bytes_in_flight = 0
        self._ids = ids
        self._loop = loop
        self._builder = RecordBuilder(ids, fold.supported)
        self._ready = Ready()
        self._recalling: dict[int, list[tuple[Waiting, frozenset[int]]]] = {}
        """Commands that wait for a past epoch which may hold their request id, by that epoch, each
        with the epochs that do not hold it.
        """
        self._newest: tuple[int, bytes] = (0, b"")
        """Epoch and bytes of the last winner, which the owner may not be able to read yet."""
        self._in_flight: deque[InFlight] = deque()
        self._by_request: dict[str, CommandInFlight] = {}
        self._open: PendingNoop | None = None
        self._deciding: Deciding | None = None
        self.turns = WriterTurns()
        self._held: list[Waiting] = []
        """Commands that lost, followed by those that arrived later, in order of arrival."""
        self._held_readers: list[Pending] = []

    @property
    def horizon_ms(self) -> int:
        """Horizon in milliseconds since 1970: an unknown id up to it may have been decided.

        -1 while there is no horizon.
        """
        decided = self.fold.image.decided
        return -1 if decided is None else decided.horizon_ms

    @property
    def held(self) -> int:
        """Count of commands and reads that wait for a slow decision or for the next ``flush``.

        The command under decision counts too.
        """
        deciding = 0 if self._deciding is None else len(self._deciding)
        return deciding + len(self._held) + len(self._held_readers)

    @property
    def recalling(self) -> int:
        """Count of commands that wait for a past epoch which may hold their request id."""
        return sum(map(len, self._recalling.values()))

    @property
    def in_flight(self) -> int:
        """Count of records that are made but not yet read back, without the open NOOP."""
        return len(self._in_flight)

    @property
    def tip(self) -> Image:
        """The image after everything in flight has won, including the open NOOP."""
        if self._open is not None:
            return self._open.image
        return self._appended_tip()

    def take_ready(self) -> Ready:
        """Return what the owner must do now, and forget it."""
        ready = self._ready
        if ready:
            self._ready = Ready()
        return ready

    def submit(
        self, envelope: Envelope, problem: Rejection | None = None, digest: bytes = b""
    ) -> Pending:
        """Decide a command and make its record; the future ends when the outcome is certain.

        With a ``problem``, an undecided command is not taken for that reason. The same holds for a
        request id from the future. ``digest`` is that of the caller's command, if the command was
        completed since.
        """
        pending: Pending = self._loop.create_future()
        newest = self.tip.state_id
        of_id = check_id(envelope.request_id, newest, self._ids.now_ms(), self.horizon_ms)
        if of_id is not None and of_id.code == BAD_ID:
            set_outcome(pending, self._not_taken(envelope, of_id))
        else:
            digest = digest or command_digest(envelope.command)
            self._submit(Waiting(envelope, digest, pending, problem or of_id))
        return pending

    def linearizable_read(self) -> Pending:
        """Return a future that ends when everything committed before this call is applied here.

        Callers that arrive before the next ``flush`` share one NOOP.
        """
        pending: Pending = self._loop.create_future()
        self._linearizable_read(pending)
        return pending

    def recalled(self, epoch: int, decisions: Decisions | None) -> None:
        """Continue with the commands that wait for the decisions of a past epoch.

        None says that the epoch cannot be read now.
        """
        for waiting, unrelated in self._recalling.pop(epoch):
            if decisions is None:
                set_outcome(waiting.pending, self._not_taken(waiting.envelope, unreadable(epoch)))
                continue
            found = decisions.get(waiting.envelope.request_id)
            if found is None:
                # Two ids may share the 40 bits of hash that the memory keeps.
                self._submit(waiting, unrelated | {epoch})
            else:
                self._answer(waiting, found.digest, found.outcome)

    def decided(self, deciding: Deciding, made: Made) -> None:
        """Take the result of a large decision, and continue with the commands that waited for it.

        The result is void if a foreign record has won meanwhile: the command is decided again.
        """
        if self._deciding is not deciding:
            return
        self._deciding = None
        del self._by_request[deciding.command.request_id]
        self._decided(deciding.command, made)
        self._resume(deciding.held, deciding.readers)

    def stop(self, error: Exception) -> None:
        """Raise ``error`` in all callers, because no outcome will follow."""
        self._hold_all()
        recalling = [waiting for each in self._recalling.values() for waiting, _ in each]
        pending = [waiting.pending for waiting in (*self._held, *recalling)]
        for each in (*pending, *self._held_readers):
            if not each.done():
                each.set_exception(error)
        self._held, self._held_readers, self._recalling = [], [], {}

    def flush(self) -> None:
        """Decide the held commands, and append the open NOOP with everything that waits for it.

        Call it after commands and after records. A read that arrives later needs its own NOOP.
        """
        if self._is_holding() and not self.turns.is_paused:
            asked, self._held = self._held, []
            readers, self._held_readers = self._held_readers, []
            self._resume(asked, readers)
        if self._open is None:
            return
        opened, self._open = self._open, None
        facts = tuple(c.refused for c in opened.commands if c.refused is not None)
        noop = Envelope(request_id="", command=Noop())
        tip = self._appended_tip()
        # The record keeps the state id that the NOOP got when it was opened: records that were
        # decided behind it already name that id as their prev_state_id.
        value, epoch = self._builder.encode(
            tip, self.fold.image, noop, NO_DIGEST, facts, opened.at_ms, opened.image.state_id
        )
        image = evolve(tip, epoch)
        self._launch(InFlight(value, image, opened.commands, opened.readers, opened.not_taken))

    def on_record(self, offset: int, value: bytes) -> Epoch | None:
        """Apply the next record of the log, and answer the callers of a record of this writer.

        Return the epoch of a foreign winner. Return None for a loser, and for a winner of this
        writer, because its image is already known. ``fold.image.epoch`` distinguishes these two.
        """
        head = self._in_flight[0] if self._in_flight else None
        # Only the head can win, because every other record in flight follows the one before it. The
        # head names the present state, and this is the first record that does, so it has won. Its
        # image was computed when it was decided: it is adopted and not folded again.
        if head is not None and value == head.value:
            self.turns.won(value)
            self._won(offset)
            return None
        epoch = self.fold.offer(offset, value)
        if epoch is None:
            self.turns.read_loser(value)
        else:
            self.turns.other_writer_won()
            self._newest = (epoch.epoch, value)
            if self._in_flight or self._open is not None or self._deciding is not None:
                self.redecided += len(self._in_flight)
                self._hold_all()
        return epoch

    def resolve(self) -> None:
        """Force an outcome of the records in flight by a NOOP on the last winner (rule 3).

        Either the head or this NOOP wins the next epoch, which decides the head. Only a founding
        record can win the first epoch, so before that the founding record is sent again.
        """
        if self.fold.image.log_id == NO_LOG:
            if self._in_flight:
                self._ready.records.append(self._in_flight[0].value)
            return
        noop = Envelope(request_id="", command=Noop())
        image = self.fold.image
        value, _ = self._builder.encode(image, image, noop, NO_DIGEST, (), self._ids.now_ms())
        self.turns.appended(value)
        self._ready.records.append(value)

    def _submit(self, waiting: Waiting, unrelated: frozenset[int] = frozenset()) -> None:
        """Answer, hold or decide a command.

        ``unrelated`` are past epochs that did not decide its id. The order matters: an id is looked
        up in flight and in the past before anything can refuse it. Otherwise a repeated command
        could get another outcome than the first.
        """
        request_id = waiting.envelope.request_id
        on_its_way = self._by_request.get(request_id)
        if on_its_way is not None:
            on_its_way.callers.append(waiting)
            return
        decided = self.fold.image.decided
        assert decided is not None, "a writer keeps the memory of decided requests"
        for epoch in decided.candidates(request_id):
            if epoch not in unrelated:
                self._ask_the_past(waiting, unrelated, epoch)
                return
        if waiting.problem is not None:
            set_outcome(waiting.pending, self._not_taken(waiting.envelope, waiting.problem))
            return
        if self._deciding is not None:
            self._deciding.held.append(waiting)
            return
        if self._is_holding():
            self._held.append(waiting)
            return
        tip = self.tip
        if why_not_taken(tip, waiting.envelope) is None:
            self._decide(waiting, tip)
            return
        # The tip may still lose. A reason that holds in the applied image is certain; any other
        # must wait until the records in flight have won.
        certain = why_not_taken(self.fold.image, waiting.envelope)
        if certain is None:
            self._noop().not_taken.append(waiting)
        else:
            set_outcome(waiting.pending, self._not_taken(waiting.envelope, certain))

    def _linearizable_read(self, pending: Pending) -> None:
        if self._deciding is not None:
            self._deciding.readers.append(pending)
        elif self._is_holding():
            self._held_readers.append(pending)
        else:
            self._noop().readers.append(pending)

    def _ask_the_past(self, waiting: Waiting, unrelated: frozenset[int], epoch: int) -> None:
        if epoch <= self.fold.image.archive.trimmed_epoch:
            set_outcome(waiting.pending, self._not_taken(waiting.envelope, deleted(epoch)))
            return
        newest, value = self._newest
        if epoch not in self._recalling and epoch != newest:
            self._ready.recalls.append(epoch)
        self._recalling.setdefault(epoch, []).append((waiting, unrelated))
        if epoch == newest:
            self.recalled(epoch, decisions_of(decode_epoch(value)))

    def _decide(self, waiting: Waiting, tip: Image) -> None:
        envelope = waiting.envelope
        command = CommandInFlight(envelope.request_id, waiting.digest, [waiting])
        if is_large(tip, envelope.command):
            self.flush()
            if not self._is_forgotten(waiting):
                self._decide_apart(command, envelope)
            return
        # With an open NOOP the images are only known after the flush, because its refusals
        # change the memory of decided requests. All images share its newest table, which grows with
        # each decision, so images that may be discarded must not carry it.
        begin = tip if self._open is None else without_memory(tip)
        made = self._builder.made(envelope, waiting.digest, tip, begin, self.fold.image)
        if self._open is not None and isinstance(made, tuple):
            self.flush()
            if self._is_forgotten(waiting):
                return
            made = made[0], list(images_after(self._appended_tip(), made[0]))
        self._decided(command, made)

    def _is_forgotten(self, waiting: Waiting) -> bool:
        """Return whether the NOOP that was just appended keeps this command from being taken.

        Its refusals may have raised the horizon above the command's id. The command then waits
        until the NOOP has won.
        """
        if why_not_taken(self._appended_tip(), waiting.envelope) is None:
            return False
        self._noop().not_taken.append(waiting)
        return True

    def _decide_apart(self, command: CommandInFlight, envelope: Envelope) -> None:
        """Leave the decision of a large command to the owner.

        All commands and reads that arrive meanwhile wait, so the state that it is decided on stays
        the newest.
        """
        tip, read = self._appended_tip(), self.fold.image
        decide = partial(self._builder.made, envelope, command.digest, tip, tip, read)
        self._deciding = self._ready.deciding = Deciding(command, decide)
        self._by_request[command.request_id] = command

    def _decided(self, command: CommandInFlight, made: Made) -> None:
        if isinstance(made, Exception):
            self._ready.bugs.append((command.callers[0].envelope, made))
            made = internal(made)
        if isinstance(made, Rejection):
            self._refuse(command, made)
            return
        *parts, commit = map(InFlight, (value for value, _ in made[0]), made[1])
        commit.commands.append(command)
        for flight in (*parts, commit):
            self._launch(flight)

    def _refuse(self, command: CommandInFlight, rejection: Rejection) -> None:
        """Record a refusal in the open NOOP, which proves that it rests on the newest state.

        A log that is not founded takes no NOOP. There the command is answered as not taken.
        """
        if self.tip.log_id == NO_LOG:
            for waiting in command.callers:
                set_outcome(waiting.pending, self._not_taken(waiting.envelope, rejection))
            return
        noop = self._noop()
        fact = refusal(command.callers[0].envelope, command.digest, rejection)
        command.refused = fact
        noop.commands.append(command)
        self._by_request[command.request_id] = command
        noop.size_bytes += size_of_refusal(fact)
        if noop.size_bytes > MAX_REFUSALS_BYTES:
            self.flush()

    def _noop(self) -> PendingNoop:
        if self._open is None:
            tip = self._appended_tip()
            state_id = self._ids.next_state_id(tip.state_id)
            after = replace(tip, epoch=tip.epoch + 1, state_id=state_id)
            self._open = PendingNoop(after, self._ids.now_ms())
        return self._open

    def _appended_tip(self) -> Image:
        return self._in_flight[-1].image if self._in_flight else self.fold.image

    def _launch(self, flight: InFlight) -> None:
        self._in_flight.append(flight)
        self.bytes_in_flight += len(flight.value)
        for command in flight.commands:
            self._by_request[command.request_id] = command
        self.turns.appended(flight.value)
        self._ready.records.append(flight.value)

    def _won(self, offset: int) -> None:
        flight = self._in_flight.popleft()
        self.bytes_in_flight -= len(flight.value)
        for command in flight.commands:
            del self._by_request[command.request_id]
        image = flight.image
        # Adopt first: callers, and commands that were waiting, must see the image that won.
        self.fold.adopt(offset, flight.value, image)
        self._newest = (image.epoch, flight.value)
        for pending in flight.readers:
            set_outcome(pending, outcome_of("", image, None))
        for command in flight.commands:
            fact = command.refused
            rejection = None if fact is None else rejection_of(fact)
            outcome = outcome_of(command.request_id, image, rejection)
            for waiting in command.callers:
                self._answer(waiting, command.digest, outcome)
        for waiting in flight.not_taken:
            self._submit(waiting)

    def _answer(self, waiting: Waiting, digest: bytes, outcome: Outcome) -> None:
        if waiting.digest != digest:
            outcome = self._not_taken(waiting.envelope, reused(outcome.epoch))
        set_outcome(waiting.pending, outcome)

    def _not_taken(self, envelope: Envelope, rejection: Rejection) -> Outcome:
        outcome = outcome_of(envelope.request_id, self.fold.image, rejection)
        return replace(outcome, taken=False)

    def _hold_all(self) -> None:
        """Move the commands of a lost chain to the held ones, in order, for the next ``flush``."""
        lost, opened, deciding = self._in_flight, self._open, self._deciding
        self._in_flight, self._open, self._deciding = deque(), None, None
        self._by_request = {}
        self.bytes_in_flight = 0
        flights: list[InFlight | PendingNoop] = [*lost]
        if opened is not None:
            flights.append(opened)
        asked, readers = list[Waiting](), list[Pending]()
        for flight in flights:
            for command in flight.commands:
                asked += command.callers
            asked += flight.not_taken
            readers += flight.readers
        if deciding is not None:
            asked += (*deciding.command.callers, *deciding.held)
            readers += deciding.readers
        # In front: commands that are already held arrived later than those of the lost chain.
        self._held[:0], self._held_readers[:0] = asked, readers

    def _is_holding(self) -> bool:
        """Return whether new commands must be held until the next ``flush``.

        While older commands are held, newer ones queue behind them to keep their order.
        """
        return bool(self.turns.is_paused or self._held or self._held_readers)

    def _resume(self, asked: list[Waiting], readers: list[Pending]) -> None:
        for waiting in asked:
            self._submit(waiting)
        for pending in readers:
            self._linearizable_read(pending)
