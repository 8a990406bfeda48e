"""The shell around the commit pipeline: one log, one reader, one event loop.

Commands of one turn of the loop are appended at once and share NOOP records. A record that does not
come back is forced to an outcome. When the reader must stop, all callers fail and nothing more is
written.
"""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException
from msgspec.structs import replace
from structlog.stdlib import BoundLogger

from stele.domain.commands import (
    Envelope,
    FoundCluster,
    Outcome,
    Rejection,
    RevertState,
    command_digest,
)
from stele.domain.image import Image
from stele.domain.registry import KNOWN_FEATURES
from stele.log.errors import LogError, LostWinnersError
from stele.log.fold import BEGINNING, Fold, Start
from stele.log.follower import Floor
from stele.log.history import History, Older
from stele.log.pipeline import CommitPipeline
from stele.log.port import Log
from stele.log.reader import TopicReader
from stele.log.record_builder import (
    ENTROPY_BITS,
    Deciding,
    Ids,
    Made,
    Pending,
    next_state_id,
    outcome_of,
)
from stele.log.writer_turns import WriterTurns
from stele.metadata_log import metrics
from stele.metadata_log.founding import (
    WHAT_TO_DO,
    OlderCluster,
    founding,
    meant_for_another,
    nothing_older,
    refused_for,
)
from stele.metadata_log.known_end import TICK_S, KnownEnd
from stele.metadata_log.past import PastDecisions, content_at
from stele.metadata_log.settings import MetadataLogSettings
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages

# Backoff between writers: how long and how often a writer lets others win.
#
# See ``log.writer_turns``.


FIRST_WINDOW_S: Final = 0.1
LONGEST_WINDOW_S: Final = 1.0
"""Longest turn for another writer.

It must read all that has won, and append, which may take long.
"""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 10.0
"""Longest pause after an unused turn: the loser may have been the last record of a dead writer."""


class PauseTimer:
    """Ends the turns of other writers, in the event loop. ``on_resumed`` appends what waits."""

    def __init__(
        self, turns: WriterTurns, loop: asyncio.AbstractEventLoop, on_resumed: Callable[[], None]
    ) -> None:
        self._turns = turns
        self._loop = loop
        self._on_resumed = on_resumed
        self._window_s, self._pause_s = FIRST_WINDOW_S, FIRST_PAUSE_S
        self._timer: asyncio.TimerHandle | None = None
        turns.may_pause = True

    def update(self, in_flight: int) -> None:
        """Update the timer after each change.

        Another writer's turn starts once this writer has no record in flight.
        """
        if self._turns.is_paused and self._timer is None and not in_flight:
            self._timer = self._loop.call_later(self._window_s, self._on_unused_turn)
        elif self._timer is not None and not self._turns.is_paused and self._turns.may_pause:
            self.close()  # another writer used the turn
            self._pause_s = FIRST_PAUSE_S

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_unused_turn(self) -> None:
        self._turns.resume()
        self._turns.may_pause = False
        self._timer = self._loop.call_later(self._pause_s, self._allow_pause)
        self._window_s = min(2 * self._window_s, LONGEST_WINDOW_S)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._on_resumed()

    def _allow_pause(self) -> None:
        self._timer = None
        self._turns.may_pause = True


class ReaderStoppedError(Exception):
    """The log cannot be read any further, so no command can be decided.

    The text is the reason. ``failure`` is the reader's error.
    """

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


# Ids and times of the records that a metadata-log appends.


def make_ids() -> Ids:
    """Return ids made of randomness and the clock.

    State ids are not secret, so one true random seed suffices.
    """
    chance = random.Random(random.SystemRandom().getrandbits(256))

    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    def state_id(previous: bytes) -> bytes:
        return next_state_id(previous, now_ms(), chance.getrandbits(ENTROPY_BITS))

    return Ids(next_state_id=state_id, now_ms=now_ms)


log: BoundLogger = get_logger(__name__)

T = TypeVar("T")

FOUND_TIMEOUT_S: Final = 60.0
RETRY_START_S: Final = 1.0
READ_ON_S: Final = 10.0


class BusyError(Exception):
    """The command was not taken: too much is in flight, or the log is being read or checked."""


class Writer:
    """Decides commands, appends records, and keeps the image and its history.

    Lives in one event loop. It neither reads nor decides what needs features beyond ``supported``.
    The history is read from ``past``, a separate access to the log, if given. Resolving a suspicion
    reads the log too, and would queue behind all readers of the past.
    """

    def __init__(
        self,
        kafka_log: Log,
        settings: MetadataLogSettings,
        older_cluster: OlderCluster = nothing_older,
        start: Start = BEGINNING,
        archive: Older | None = None,
        floor: Floor | None = None,
        supported: Set[str] = KNOWN_FEATURES,
        past: Log | None = None,
    ) -> None:
        self.failure: Exception | None = None
        self.failed = asyncio.Event()
        """Set once there is a failure."""
        self.has_read = False
        """The log was read to its end at the start.

        A writer that fails before that is ready, but has not read it.
        """
        self._logs = [kafka_log] if past is None else [past, kafka_log]
        self.history = History(self._logs[0], start.image, start.next_offset, older=archive)
        self.moved = asyncio.Event()
        """Set, and replaced by a fresh one, whenever records were read. A failure sets it too."""
        self._log = kafka_log
        self._settings = settings
        self._supported = supported
        self._fold = Fold(*start, supported=supported)
        self._reader = TopicReader(
            kafka_log, self._fold, self._take, self._after_records, self._fail, _on_stray
        )
        self._known_end = KnownEnd(self._reader, self._fold, floor)
        self._older_cluster = older_cluster
        self._past = PastDecisions(self.history)
        self._loop = asyncio.get_running_loop()
        self._pipeline = CommitPipeline(self._fold, make_ids(), self._loop)
        self._pause_timer = PauseTimer(self._pipeline.turns, self._loop, self._flush_soon)
        self._flush_is_due = False
        self._progress_s = time.monotonic()
        """Time of the last win, or of the append of the first record in flight, in monotonic
        seconds.
        """
        self._redecided = 0
        self._ready = asyncio.Event()
        self._tasks = set[asyncio.Task[Any]]()
        self._deciding = ThreadPoolExecutor(1, "decisions")
        self._large: asyncio.Future[Made] | None = None
        """The newest decision that is made in a thread."""
        self._refused_founding = ""

    @property
    def image(self) -> Image:
        return self._fold.image

    @property
    def horizon_ms(self) -> int:
        """The id of a new command must be newer than this time; -1: any id is accepted."""
        return self._pipeline.horizon_ms

    @property
    def log_id(self) -> bytes:
        """Id of the log that is written. Before anything is read, the id that the floor expects."""
        return self._known_end.log_id

    @property
    def ready(self) -> bool:
        """The log was read to the end that it had at the start, or reading has failed.

        The log need not contain a cluster.
        """
        return self._ready.is_set()

    @property
    def losers(self) -> int:
        """Records that lost their epoch, of all that this process has read from the topic."""
        return self._fold.losers

    @property
    def strays(self) -> int:
        """Records of other logs, of all that this process has read from the topic."""
        return self._fold.chain.strays

    @property
    def lag_records(self) -> int | None:
        """Records up to the end of the log as last seen; None before the first look."""
        end = self._reader.end
        return None if end is None else max(0, end - self._fold.next_offset)

    @property
    def trouble(self) -> str:
        """Reason why no command is accepted at present; empty while commands are accepted."""
        if self._reader.trouble or not self.ready or self.image.cluster:
            return self._reader.trouble
        none = f"There is no cluster in the log of '{self._settings.cluster}'."
        if self._refused_founding:
            return f"{none} {self._refused_founding} {WHAT_TO_DO}"
        return f"{none} Run `stele found` once; if there was a cluster, look whether the right topic is there."

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until the log is read. Raises BusyError on timeout; nothing was done."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise BusyError(f"reading the log, at epoch {self.image.epoch}") from None

    async def start(self) -> None:
        """Read the log to its end. Found the cluster if there is none and the setting permits it.

        Also returns when the log cannot be read; ``failure`` is the reason.
        """
        self._reader.start()
        self._spawn(self._watch(), "log-watch")
        with contextlib.suppress(ReaderStoppedError):
            while not self._ready.is_set():
                try:
                    await self._wait_for_offset((await self._reader.look()).end)
                    self._known_end.check_end()
                    if not self.image.cluster and self._settings.found == "auto":
                        await self.commit(founding(self._settings), FOUND_TIMEOUT_S)
                    self.has_read = self.failure is None
                    self._ready.set()
                except LostWinnersError as error:
                    self._fail(error)
                    return
                except (KafkaException, TimeoutError, BusyError) as error:
                    log.warning("still reading the log", epoch=self.image.epoch, why=str(error))
                    await asyncio.sleep(RETRY_START_S)
            log.info("the log is read", epoch=self.image.epoch, cluster_id=self.image.cluster_id)

    async def compare(self, ask: Callable[[], Awaitable[Floor | None]]) -> None:
        """Stop this writer if others have a floor of another log, or of a longer one."""
        await self._ready.wait()
        try:
            await self._known_end.compare(ask, lambda: self.failure is not None)
        except LogError as error:
            self._fail(error)

    async def close(self) -> None:
        self._reader.stop()
        self._pause_timer.close()
        if self._large is not None:
            self._large.cancel()
        self._deciding.shutdown(wait=False)
        for task in [*self._tasks]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._past.close()
        for each in self._logs:
            await each.close()

    def submit(self, envelope: Envelope) -> Pending:
        """Decide a command; the future ends with its outcome.

        Raises BusyError or ReaderStoppedError; nothing was done then. The future raises
        ReaderStoppedError when the reader stops before; the outcome is unknown then.
        """
        self._reader.look_at_clocks()
        self._check()
        if isinstance(envelope.command, FoundCluster | RevertState):
            # It continues when the caller gives up: reading may take longer than a caller waits.
            pending = asyncio.shield(self._spawn(self._completed(envelope), "complete"))
        else:
            pending = self._submit(envelope)
        pending.add_done_callback(partial(_observe, time.perf_counter()))
        return pending

    async def commit(self, envelope: Envelope, timeout_s: float) -> Outcome:
        """Return the outcome of a command.

        Raises what ``submit`` and its future raise. Raises TimeoutError after ``timeout_s``; the
        outcome is unknown then.
        """
        await self._certain(timeout_s)
        async with asyncio.timeout(timeout_s):
            return await self.submit(envelope)

    async def linearizable(self, timeout_s: float) -> Image:
        """Return an image that contains every commit before the call.

        A NOOP is appended and read back. This is the level ``linearizable`` (docs/design.md, rule
        10). Raises BusyError while the log is not read to its end, or its end may be lost.
        """
        await self._certain(timeout_s)
        self._check()
        if not self.ready:
            raise BusyError(f"reading the log, at epoch {self.image.epoch}")
        if not self.image.cluster:
            raise BusyError("there is no cluster in the log; run `stele found`")
        read = self._pipeline.linearizable_read()
        self._advance()
        async with asyncio.timeout(timeout_s):
            await read
        return self.image

    async def barrier(self, timeout_s: float) -> Image:
        """Return an image with all that the log held at the call, up to the end that its leader
        reports.

        Raises TimeoutError, KafkaException, ReaderStoppedError.
        """
        self.raise_failure()
        async with asyncio.timeout(timeout_s):
            try:
                end = (await self._reader.look()).end
            except LogError as error:
                raise ReaderStoppedError(error) from error
            await self._wait_for_offset(end)
            # The topic may be another one, or winners may be lost. Wait until all suspicions end.
            await self._reader.wait_until_resolved()
        self.raise_failure()
        return self.image

    def _submit(self, envelope: Envelope, digest: bytes = b"") -> Pending:
        foreign = meant_for_another(envelope, self.image)
        if foreign is not None:
            foreign_messages.labels("commands").inc()
        pending = self._pipeline.submit(envelope, foreign, digest)
        self._advance()
        return pending

    async def _completed(self, envelope: Envelope) -> Outcome:
        """Decide a command whose caller lacks values that this process reads first."""
        asked = envelope.command
        if isinstance(asked, RevertState):
            content = await content_at(self.history, asked.to_epoch)
            if isinstance(content, Rejection):
                outcome = outcome_of(envelope.request_id, self.image, content)
                return replace(outcome, taken=False)
            # Content that the caller sent is not trusted.
            completed: RevertState | FoundCluster = replace(asked, content=content)
        else:
            assert isinstance(asked, FoundCluster)
            older = await self._older() if not self.image.cluster else ""
            if older:
                return refused_for(envelope, older)
            completed = self._founding(asked)
        self.raise_failure()
        digest = command_digest(asked)
        return await self._submit(replace(envelope, command=completed), digest)

    async def _older(self) -> str:
        """Return evidence of an older cluster, which forbids to found one."""
        try:
            older = await self._older_cluster(self._settings)
        except TimeoutError as error:
            older = f"it is not known, because the brokers do not answer ({error})"
        if older:
            # Another instance may have founded the cluster just now, which leaves the same
            # evidence.
            with contextlib.suppress(TimeoutError, KafkaException, ReaderStoppedError):
                await self.barrier(READ_ON_S)
        if not older or self.image.cluster:
            return ""
        self._refused_founding = f"It is not founded, because of an older cluster: {older}."
        log.error("not founded", why=older)
        return older

    def _founding(self, command: FoundCluster) -> FoundCluster:
        features = self._supported if self._settings.found_features == "all" else ()
        return FoundCluster(
            command.cluster_id or f"{self._settings.cluster}/{uuid.uuid4()}",
            topic_id=self._reader.topic_id,
            begin_frozen=command.begin_frozen,
            enable_features=tuple(sorted(features)),
        )

    async def _certain(self, timeout_s: float) -> None:
        """Wait until all suspicions about the log end, at most ``timeout_s``.

        Returns in any case: the caller checks whether suspicions are left.
        """
        self._reader.look_at_clocks()
        if self._reader.is_suspended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._reader.wait_until_resolved()

    async def _wait_for_offset(self, offset: int) -> None:
        """Wait until all records before ``offset`` were read. Raises ReaderStoppedError."""
        self.raise_failure()
        while self._fold.next_offset < offset:
            await self.moved.wait()
            self.raise_failure()

    def _check(self) -> None:
        self.raise_failure()
        if self._reader.is_suspended:
            metrics.busy.inc()
            raise BusyError(self._reader.trouble or "the log is being looked at")
        pipeline = self._pipeline
        waiting = pipeline.in_flight + pipeline.recalling + pipeline.held
        full = waiting >= self._settings.max_in_flight
        if full or pipeline.bytes_in_flight >= self._settings.max_in_flight_bytes:
            metrics.busy.inc()
            raise BusyError(
                f"{pipeline.in_flight} records are in flight, and {waiting} wait in all"
            )

    def raise_failure(self) -> None:
        """Raise ReaderStoppedError when the log cannot be read any further."""
        if self.failure is not None:
            raise ReaderStoppedError(self.failure) from self.failure

    def _advance(self) -> None:
        """Do what the pipeline has made ready, and let it flush at the end of this turn."""
        self._handle_ready()
        self._flush_soon()

    def _handle_ready(self) -> None:
        ready = self._pipeline.take_ready()
        if self.failure is not None:
            return  # all callers have failed
        if ready.records and self._pipeline.in_flight <= len(ready.records):
            self._progress_s = time.monotonic()
        for value in ready.records:
            self._log.append(value)
        for epoch in ready.recalls:
            self._spawn(self._recall(epoch), f"recall-{epoch}")
        if ready.deciding is not None:
            self._decide_in_thread(ready.deciding)
        for envelope, error in ready.bugs:
            metrics.bugs.inc()
            log.error("a command broke the core", request_id=envelope.request_id, exc_info=error)

    async def _recall(self, epoch: int) -> None:
        decisions = await self._past.recall(epoch)
        if self.failure is None:
            self._pipeline.recalled(epoch, None if self._reader.is_suspended else decisions)
            self._advance()

    def _decide_in_thread(self, deciding: Deciding) -> None:
        """Decide a large command in a thread while the loop continues.

        A void decision that has not started is cancelled. A started one ends before the newest
        starts.
        """
        if self._large is not None:
            self._large.cancel()
        self._large = self._loop.run_in_executor(self._deciding, deciding.decide)
        self._large.add_done_callback(partial(self._decided, deciding))

    def _decided(self, deciding: Deciding, large: asyncio.Future[Made]) -> None:
        if not large.cancelled() and self.failure is None:
            self._pipeline.decided(deciding, large.result())
            self._advance()

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run ``work`` in a task that ends when the writer closes."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._pipeline.flush()
        self._handle_ready()
        self._pause_timer.update(self._pipeline.in_flight)
        metrics.in_flight.set(self._pipeline.in_flight)

    def _take(self, offset: int, value: bytes) -> None:
        before = self._fold.image
        foreign = self._pipeline.on_record(offset, value)
        if self._fold.image is before:
            return  # a loser proves no progress: the topic may have lost the record before it
        self._progress_s = time.monotonic()
        self._known_end.check_read(offset)
        self.history.add(offset, value, self._fold.image)
        if foreign is None:
            metrics.commits.inc()
        else:
            metrics.foreign_epochs.inc()

    def _after_records(self) -> None:
        self._advance()
        metrics.epoch.set(self.image.epoch)
        metrics.losers.set(self.losers)
        metrics.strays.set(self.strays)
        if self._pipeline.redecided != self._redecided:
            log.info("decided again", records=self._pipeline.redecided - self._redecided)
            self._redecided = self._pipeline.redecided
            metrics.redecided.set(self._redecided)
        self.moved.set()
        self.moved = asyncio.Event()

    def _fail(self, error: Exception) -> None:
        # Set `failure` first: work that ends later checks it, and then answers no caller.
        self.failure = error
        self.failed.set()
        self._reader.stop()
        log.error("the reader stopped", epoch=self.image.epoch, why=str(error))
        self._pipeline.stop(ReaderStoppedError(error))
        self.moved.set()
        self._ready.set()

    async def _watch(self) -> None:
        """Force records that stay unread for too long to an outcome."""
        while self.failure is None:
            await asyncio.sleep(TICK_S)
            silent_s = time.monotonic() - self._progress_s
            if self._reader.is_suspended:
                continue  # nothing is read while a suspicion is open
            if self.lag_records is not None:
                metrics.lag.set(self.lag_records)
            if self._pipeline.in_flight and silent_s > self._settings.unknown_after_s:
                self._progress_s = time.monotonic()
                metrics.resolved.inc()
                log.warning(
                    "records did not come back; forcing their outcome",
                    in_flight=self._pipeline.in_flight,
                    epoch=self.image.epoch,
                )
                self._pipeline.resolve()
                self._handle_ready()


def _observe(began_s: float, pending: Pending) -> None:
    """Count a command that has ended. A caller that gave up counts with the time that it waited."""
    if not pending.cancelled():
        if pending.exception() is not None:
            return
        rejection = pending.result().rejection
        if rejection is not None:
            metrics.rejections.labels(rejection.code).inc()
    metrics.commit_seconds.observe(time.perf_counter() - began_s)


def _on_stray(offset: int, name: str) -> None:
    log.warning("a record of another log was skipped", offset=offset, writer=name)
