"""The metadata log's process: the production commit pipeline behind a simulated front door."""

from collections.abc import Callable
from typing import Final

from stele.domain.commands import Envelope, Outcome
from stele.domain.facts import Epoch
from stele.domain.image import ZERO_STATE
from stele.domain.requests.decisions import decisions_of
from stele.domain.requests.not_taken import LATER, RESTRICTED
from stele.log.codec import decode_epoch
from stele.log.history import Bounds, History
from stele.log.pipeline import CommitPipeline, Decisions, Ids
from stele.log.schemas import HEADER_BYTES
from stele.log.state_ids import STATE_ID_BYTES, next_state_id
from stele.sim.kernel import Future
from stele.sim.process import Follower, Process, Reply
from stele.sim.watcher import TooOld

RESOLVE_AFTER_S: Final = 0.6
"""A record that was not met for so long is forced to an end by a NOOP."""
SAME_TURN_S: Final = 0.0
"""The pipeline is flushed before time goes on: only readers of one instant share a barrier."""
FROZEN_S: Final = 0.5
"""Between two tries while the log is frozen."""
SNAPSHOT_EVERY: Final = 25
"""Epochs."""
SMALL_HISTORY: Final = Bounds(mark_every=4, marks=6, images=4, recent_records=12, read_records=5)
"""A run of a hundred epochs goes past all of them."""


READ_RECORDS: Final = 50
PREVIOUS: Final = slice(HEADER_BYTES, HEADER_BYTES + STATE_ID_BYTES)
OWN: Final = slice(HEADER_BYTES + STATE_ID_BYTES, HEADER_BYTES + 2 * STATE_ID_BYTES)


class Writer(Follower):
    """Any number of these write at once; the order of the log decides."""

    pipeline: CommitPipeline

    def start(self) -> None:
        self.follow_log()
        self._looks = 0
        ids = Ids(self._state_id, self._now_ms)
        self.pipeline = CommitPipeline(self.fold, self._append, ids, self._recall)
        self.history = History(self, self.fold.image, self.fold.next_offset, SMALL_HISTORY)
        self._head: tuple[int, int] = (0, 0)
        self.after(RESOLVE_AFTER_S, self._resolve)

    def offer(self, offset: int, value: bytes) -> Epoch | None:
        before = self.fold.image
        epoch = self.pipeline.on_record(offset, value)
        if self.fold.image is not before:
            self.history.add(offset, value, self.fold.image)
        return epoch

    def on_epoch(self, epoch: Epoch | None) -> None:
        self.pipeline.flush()
        if self.fold.image.epoch % SNAPSHOT_EVERY == 0:
            self.save_snapshot()

    def serve_command(self, envelope: Envelope, reply: Reply) -> None:
        if not self.image.cluster:
            return  # the production shell decides nothing before it has read the log
        self.world.failpoint(self, "before_append")
        self.pipeline.submit(envelope, reply)
        self.after(SAME_TURN_S, self.pipeline.flush)
        self.world.failpoint(self, "after_append")

    def serve_barrier(self, reply: Reply) -> None:
        if not self.image.cluster:
            return
        self.pipeline.read_barrier(reply)
        self.after(SAME_TURN_S, self.pipeline.flush)

    def serve_epochs(self, first: int, limit: int, reply: Reply) -> None:
        self.spawn(self._find_epochs(first, limit, reply))

    async def _find_epochs(self, first: int, limit: int, reply: Reply) -> None:
        if first <= self.history.oldest:
            reply(TooOld(self.history.oldest))
            return
        found = await self.history.epochs(first, limit)
        reply([(epoch.epoch, epoch.state_id) for epoch in found])

    def _recall(self, epoch: int, answer: Callable[[Decisions | None], None]) -> None:
        found = self.history.recent(epoch)
        if found is not None:
            answer(decisions_of(found))
        else:
            self.spawn(self._recall_from_log(epoch, answer))

    async def _recall_from_log(
        self, wanted: int, answer: Callable[[Decisions | None], None]
    ) -> None:
        """From the log's beginning, since this process may have started from a snapshot after it."""
        epoch, state_id, offset = 0, ZERO_STATE, 0
        while epoch < wanted:
            records = await self.read(offset, READ_RECORDS)
            assert records, f"the log holds epoch {wanted}"
            for _, value in records:
                if epoch < wanted and value[PREVIOUS] == state_id:
                    epoch, state_id, found = epoch + 1, value[OWN], value
            offset = records[-1].offset + 1
        answer(decisions_of(decode_epoch(found)))
        self.pipeline.flush()

    def _append(self, value: bytes) -> None:
        self.world.log.append(self, value)

    def _now_ms(self) -> int:
        """Time passes between two looks at the clock, also within one event."""
        self._looks += 1
        return self.clock.wall_ms() + self._looks % 3

    def _state_id(self, previous: bytes) -> bytes:
        return next_state_id(previous, self.clock.wall_ms(), self._bits())

    def _bits(self) -> int:
        """74 random bits out of exact draws of 37."""
        return int(self.random() * (1 << 37)) << 37 | int(self.random() * (1 << 37))

    def _resolve(self) -> None:
        """What was in flight at the last look, and still is, is taken for lost."""
        head = (self.fold.image.epoch, self.pipeline.in_flight)
        if self.pipeline.in_flight and head[0] == self._head[0] and self._head[1]:
            self.pipeline.resolve()
        self._head = head
        self.after(RESOLVE_AFTER_S, self._resolve)


class Caller(Process):
    """A process that sends commands, and sends them again under the same id when it was not told."""

    def submit_once(self, envelope: Envelope, timeout_s: float = 2.0) -> Future[Outcome | None]:
        """One try at one writer. None: unknown."""
        writers = self.world.writers
        writer = writers[int(self.random() * len(writers))]
        number = self.world.witness.commands.asks(envelope)
        future = Future[Outcome | None]()

        def told(outcome: Outcome | None) -> None:
            if outcome is not None:
                self.world.witness.commands.answered(number, outcome)
            future.set(outcome)

        self.call(writer, writer.serve_command, envelope, timeout_s=timeout_s).then(told)
        return future

    async def submit(self, envelope: Envelope, attempts: int = 60) -> Outcome | None:
        """Try until the outcome is known."""
        for _ in range(attempts):
            outcome = await self.submit_once(envelope).wait()
            code = "" if outcome is None or outcome.taken else _code(outcome)
            if outcome is not None and code not in LATER:
                return outcome
            if code in RESTRICTED:
                await self.sleep(FROZEN_S)
            self.world.failpoint(self, "before_retry")
        return None


def _code(outcome: Outcome) -> str:
    return "" if outcome.rejection is None else outcome.rejection.code
