"""Writing the log: compare-and-swap by log order, many commits in flight, no input or output.

The writer decides each command on the image as it will be once all its records in flight have won, and
chains their state ids. A record answers its callers when the writer's own reader meets it. When a
foreign record wins an epoch, the whole chain has lost: prev_state_ids never come back, so those records
are losers wherever they land, and their commands are decided again under the same request ids.

A request id is looked up first: on its way here, then among all that was decided. What was decided is
answered from its epoch's own record, so whoever asks again is told exactly what the first was told. Refusals
are records too: the barrier that they wait for carries them. What is not taken, since the log is frozen or the
id too old, waits for a barrier only while that is not certain yet, and leaves no trace: a frozen log does not
grow by what it does not take. What is too large for a record goes in parts, which nobody waits for, chained in
flight with the record that commits them. What takes long to decide is decided apart, and what is asked
meanwhile waits for that (``apart``). What lost is decided again, and what waits for another writer's turn is
decided (``turns``), with the next ``flush``: once for all the records that are read together.
"""

from collections import deque
from collections.abc import Callable, Mapping
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
from stele.domain.requests.decisions import Decision, decisions_of, refusal, rejection_of
from stele.domain.requests.not_taken import BAD_ID, check_id, deleted, reused, unreadable
from stele.log.apart import Apart, Deciding, Made, at_once, is_large
from stele.log.codec import decode_epoch
from stele.log.flight import (
    Barrier,
    Command,
    InFlight,
    Reply,
    Waiting,
    images_after,
    internal,
    outcome_of,
    size_of_refusal,
    why_not_taken,
)
from stele.log.fold import Fold
from stele.log.maker import NO_DIGEST, Fill, Ids, RecordMaker, as_it_is
from stele.log.turns import Turns

MAX_REFUSALS_BYTES: Final = 1024 * 1024
"""Of the refusals that share a barrier: a caller of one does not wait for megabytes of others."""

replace = msgspec.structs.replace

OnBug = Callable[[Envelope, Exception], None]
Decisions = Mapping[str, Decision]
Recall = Callable[[int, Callable[[Decisions | None], None]], None]
"""Called with an epoch of the past; calls back, at once or later, with what it decided, or None when that
cannot be read now."""


class CommitPipeline:
    """One writer of one log. Feed it commands and records; take ``appends`` out and append them.

    ``append`` is called with each record in order. It may lose, double or delay them: that is what the
    protocol is for. ``recall`` reads the past. A command that breaks the core is refused as ``internal`` and
    told to ``on_bug``, so that it cannot take the commands of others down; without ``on_bug`` it raises.
    ``apart`` makes decisions that take long.
    """

    def __init__(
        self,
        fold: Fold,
        append: Callable[[bytes], None],
        ids: Ids,
        recall: Recall,
        on_bug: OnBug | None = None,
        fill: Fill = as_it_is,
        apart: Apart = at_once,
    ) -> None:
        self.fold = fold
        self.redecided = 0
        """Records that lost to a foreign one, so that their commands were decided again."""
        self.bytes_in_flight = 0
        self.recalling = 0
        """Callers who wait for what the past says of their request id."""
        self._on_bug = on_bug
        self._append = append
        self._ids = ids
        self._recall = recall
        self._maker = RecordMaker(ids, fold.supported, fill)
        self._apart = apart
        self._newest: tuple[int, bytes] = (0, b"")
        """The last winner, which ``recall`` may not know yet."""
        self._in_flight: deque[InFlight] = deque()
        self._by_request: dict[str, Command] = {}
        self._open: Barrier | None = None
        self._deciding: Deciding | None = None
        self.turns = Turns()
        self._held: list[Waiting] = []
        """Commands that lost, and behind them, in their order, those that have come since."""
        self._held_readers: list[Reply] = []

    @property
    def horizon_ms(self) -> int:
        """An id that is not known, of this time or before, may have been decided; -1: there is none."""
        decided = self.fold.image.decided
        return -1 if decided is None else decided.horizon_ms

    @property
    def held(self) -> int:
        """What waits for a decision that is made apart, that one too, or to be decided with the next flush."""
        deciding = 0 if self._deciding is None else len(self._deciding)
        return deciding + len(self._held) + len(self._held_readers)

    @property
    def in_flight(self) -> int:
        """Records that were appended, or are about to be, and not met yet."""
        return len(self._in_flight) + (self._open is not None)

    @property
    def tip(self) -> Image:
        """The image once everything in flight has won."""
        if self._open is not None:
            return self._open.image
        return self._appended_tip()

    def submit(self, envelope: Envelope, reply: Reply, problem: Rejection | None = None) -> None:
        """Decide and append; ``reply`` is called once, when the outcome is certain. With a ``problem`` what was
        not decided before is refused for that, and so is an id from the future.
        """
        newest = self.tip.state_id
        of_id = check_id(envelope.request_id, newest, self._ids.now_ms(), self.horizon_ms)
        if of_id is not None and of_id.code == BAD_ID:
            reply(self._not_taken(envelope, of_id))
            return
        digest = command_digest(envelope.command)
        self._submit(Waiting(envelope, digest, reply, problem or of_id))

    def read_barrier(self, reply: Reply) -> None:
        """Answer when everything that was committed before this call is applied here.

        Callers that come before the next ``flush`` share one NOOP.
        """
        if self._deciding is not None:
            self._deciding.readers.append(reply)
        elif self._is_holding():
            self._held_readers.append(reply)
        else:
            self._barrier().readers.append(reply)

    def flush(self) -> None:
        """Decide what was held, and append the barrier with all who wait for it.

        To be called after records too. A later reader needs a barrier of its own.
        """
        if self._is_holding() and not self.turns.gives_way:
            asked, self._held = self._held, []
            readers, self._held_readers = self._held_readers, []
            self._go_on(asked, readers)
        if self._open is None:
            return
        opened, self._open = self._open, None
        facts = tuple(c.refused for c in opened.commands if c.refused is not None)
        noop = Envelope(request_id="", command=Noop())
        tip = self._appended_tip()
        value, epoch = self._maker.encode(
            tip, self.fold.image, noop, NO_DIGEST, facts, opened.at_ms, opened.image.state_id
        )
        image = evolve(tip, epoch)
        self._launch(InFlight(value, image, opened.commands, opened.readers, opened.not_taken))

    def on_record(self, offset: int, value: bytes) -> Epoch | None:
        """Meet the next record of the log and answer whom it concerns.

        Returns the epoch of a foreign winner. None for a loser, and for a winner of this writer, whose
        image is known already; ``fold.image.epoch`` tells the two apart.
        """
        head = self._in_flight[0] if self._in_flight else None
        if head is not None and value == head.value:
            self.turns.won(value)
            self._won(offset)
            return None
        epoch = self.fold.offer(offset, value)
        if epoch is None:
            self.turns.met_loser(value)
        else:
            self.turns.another_won()
            self._newest = (epoch.epoch, value)
            if self._in_flight or self._open is not None or self._deciding is not None:
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
        noop = Envelope(request_id="", command=Noop())
        image = self.fold.image
        value, _ = self._maker.encode(image, image, noop, NO_DIGEST, (), self._ids.now_ms())
        self.turns.appended(value)
        self._append(value)

    def _submit(self, waiting: Waiting, unrelated: frozenset[int] = frozenset()) -> None:
        """``unrelated`` are epochs of the past that turned out not to have decided this id."""
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
            waiting.reply(self._not_taken(waiting.envelope, waiting.problem))
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
        certain = why_not_taken(self.fold.image, waiting.envelope)
        if certain is None:
            self._barrier().not_taken.append(waiting)
        else:
            waiting.reply(self._not_taken(waiting.envelope, certain))

    def _ask_the_past(self, waiting: Waiting, unrelated: frozenset[int], epoch: int) -> None:
        if epoch <= self.fold.image.archive.trimmed_epoch:
            waiting.reply(self._not_taken(waiting.envelope, deleted(epoch)))
            return
        self.recalling += 1

        def answered(decisions: Decisions | None) -> None:
            self.recalling -= 1
            if decisions is None:
                waiting.reply(self._not_taken(waiting.envelope, unreadable(epoch)))
                return
            found = decisions.get(waiting.envelope.request_id)
            if found is None:
                self._submit(waiting, unrelated | {epoch})
            else:
                self._answer(waiting, found.digest, found.outcome)

        newest, value = self._newest
        if epoch == newest:
            answered(decisions_of(decode_epoch(value)))
        else:
            self._recall(epoch, answered)

    def _decide(self, waiting: Waiting, tip: Image) -> None:
        envelope = self._maker.filled(waiting.envelope)
        command = Command(envelope.request_id, waiting.digest, [waiting])
        if is_large(tip, envelope.command):
            self.flush()
            if not self._is_forgotten(waiting):
                self._decide_apart(command, envelope)
            return
        # Behind a barrier the images are made anew.
        begin = tip if self._open is None else without_memory(tip)
        made = self._maker.made(envelope, waiting.digest, tip, begin, self.fold.image)
        if self._open is not None and isinstance(made, tuple):
            self.flush()
            if self._is_forgotten(waiting):
                return
            made = made[0], list(images_after(self._appended_tip(), made[0]))
        self._decided(command, made)

    def _is_forgotten(self, waiting: Waiting) -> bool:
        """Whether an id is too old behind the barrier that was just appended, for the refusals which that
        decides; then it waits until the barrier has won.
        """
        if why_not_taken(self._appended_tip(), waiting.envelope) is None:
            return False
        self._barrier().not_taken.append(waiting)
        return True

    def _decide_apart(self, command: Command, envelope: Envelope) -> None:
        """Whatever is asked until it is decided waits, so that the state stays the newest."""
        tip, read = self._appended_tip(), self.fold.image
        deciding = self._deciding = Deciding(command)
        self._by_request[command.request_id] = command

        def decided(made: Made) -> None:
            if self._deciding is not deciding:
                return  # a foreign record has won meanwhile, so it is decided again
            self._deciding = None
            del self._by_request[command.request_id]
            self._decided(command, made)
            self._go_on(deciding.held, deciding.readers)

        self._apart(lambda: self._maker.made(envelope, command.digest, tip, tip, read), decided)

    def _decided(self, command: Command, made: Made) -> None:
        if isinstance(made, Exception):
            if self._on_bug is None:
                raise made
            self._on_bug(command.callers[0].envelope, made)
            made = internal(made)
        if isinstance(made, Rejection):
            self._refuse(command, made)
            return
        *parts, commit = map(InFlight, (value for value, _ in made[0]), made[1])
        commit.commands.append(command)
        for flight in (*parts, commit):
            self._launch(flight)

    def _refuse(self, command: Command, rejection: Rejection) -> None:
        """A refusal too must rest on the newest state, so it waits behind a barrier, which records it.

        A log that is not founded takes no barrier: there is nothing to decide on, and nothing was decided.
        """
        if self.tip.log_id == NO_LOG:
            for waiting in command.callers:
                waiting.reply(self._not_taken(waiting.envelope, rejection))
            return
        barrier = self._barrier()
        fact = refusal(command.callers[0].envelope, command.digest, rejection)
        command.refused = fact
        barrier.commands.append(command)
        self._by_request[command.request_id] = command
        barrier.size_bytes += size_of_refusal(fact)
        if barrier.size_bytes > MAX_REFUSALS_BYTES:
            self.flush()

    def _barrier(self) -> Barrier:
        if self._open is None:
            tip = self._appended_tip()
            state_id = self._ids.next_state_id(tip.state_id)
            after = replace(tip, epoch=tip.epoch + 1, state_id=state_id)
            self._open = Barrier(after, self._ids.now_ms())
        return self._open

    def _appended_tip(self) -> Image:
        return self._in_flight[-1].image if self._in_flight else self.fold.image

    def _launch(self, flight: InFlight) -> None:
        self._in_flight.append(flight)
        self.bytes_in_flight += len(flight.value)
        for command in flight.commands:
            self._by_request[command.request_id] = command
        self.turns.appended(flight.value)
        self._append(flight.value)

    def _won(self, offset: int) -> None:
        flight = self._in_flight.popleft()
        self.bytes_in_flight -= len(flight.value)
        for command in flight.commands:
            del self._by_request[command.request_id]
        image = flight.image
        self.fold.adopt(offset, flight.value, image)
        self._newest = (image.epoch, flight.value)
        for reply in flight.readers:
            reply(outcome_of("", image, None))
        for command in flight.commands:
            fact = command.refused
            rejection = None if fact is None else rejection_of(fact)
            outcome = outcome_of(command.request_id, image, rejection)
            for waiting in command.callers:
                self._answer(waiting, command.digest, outcome)
        for waiting in flight.not_taken:
            self._submit(waiting)

    def _answer(self, waiting: Waiting, digest: bytes, outcome: Outcome) -> None:
        if waiting.digest == digest:
            waiting.reply(outcome)
        else:
            waiting.reply(self._not_taken(waiting.envelope, reused(outcome.epoch)))

    def _not_taken(self, envelope: Envelope, rejection: Rejection) -> Outcome:
        outcome = outcome_of(envelope.request_id, self.fold.image, rejection)
        return replace(outcome, taken=False)

    def _start_again(self) -> None:
        """The commands of a lost chain are decided again, in their order, with the next flush."""
        lost, opened, deciding = self._in_flight, self._open, self._deciding
        self._in_flight, self._open, self._deciding = deque(), None, None
        self._by_request = {}
        self.bytes_in_flight = 0
        self.redecided += len(lost)
        flights: list[InFlight | Barrier] = [*lost]
        if opened is not None:
            flights.append(opened)
        asked, readers = list[Waiting](), list[Reply]()
        for flight in flights:
            for command in flight.commands:
                asked += command.callers
            asked += flight.not_taken
            readers += flight.readers
        if deciding is not None:
            asked += (*deciding.command.callers, *deciding.held)
            readers += deciding.readers
        self._held[:0], self._held_readers[:0] = asked, readers

    def _is_holding(self) -> bool:
        """Nothing is decided before the next flush."""
        return bool(self.turns.gives_way or self._held or self._held_readers)

    def _go_on(self, asked: list[Waiting], readers: list[Reply]) -> None:
        for waiting in asked:
            self._submit(waiting)
        for reply in readers:
            self.read_barrier(reply)
