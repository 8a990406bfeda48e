"""The shell around the commit pipeline: one log, one reader, one event loop.

Commands of one turn of the loop are appended at once and share barriers. A record that does not come back
is forced to an outcome. When the reader must stop, nobody is left waiting and nothing is written any more.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
from confluent_kafka import KafkaException
from structlog.stdlib import BoundLogger

from stele.domain.commands import AnyCommand, Envelope, FoundCluster, Outcome, RevertState
from stele.domain.image import Image
from stele.domain.registry import KNOWN_FEATURES
from stele.log.apart import Made
from stele.log.errors import LogError, LostWinnersError
from stele.log.flight import Reply, outcome_of
from stele.log.fold import Fold
from stele.log.follower import Floor
from stele.log.history import History, Older
from stele.log.pipeline import CommitPipeline, Decisions
from stele.log.port import Log
from stele.log.reader import LogReader
from stele.log.start import BEGINNING, Start
from stele.metadata_log import metrics
from stele.metadata_log.callers import Callers, ReaderStoppedError, Tell
from stele.metadata_log.founding import (
    WHAT_TO_DO,
    OlderCluster,
    founding,
    meant_for_another,
    nothing_older,
    refused_for,
)
from stele.metadata_log.giving_way import GivingWay
from stele.metadata_log.ids import make_ids
from stele.metadata_log.known_end import TICK_S, KnownEnd
from stele.metadata_log.past import Past
from stele.metadata_log.reverts import Reverts
from stele.metadata_log.settings import MetadataLogSettings
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages

log: BoundLogger = get_logger(__name__)

FOUND_TIMEOUT_S: Final = 60.0
RETRY_START_S: Final = 1.0
READ_ON_S: Final = 10.0


class BusyError(Exception):
    """Too much is in flight; nothing was done with the command."""


class Writer:
    """Decides commands and appends them; keeps the image and its history. Lives in one event loop.

    It neither reads nor decides what needs more than the features that are ``supported``. The history is read
    from ``past``, an access to the log of its own, where there is one: a doubt about the log is settled by
    reading too, and would wait behind all who read the past.
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
        """The log, to the end that it had at the start. Who fails before that is ready, and has not."""
        self._logs = [kafka_log] if past is None else [past, kafka_log]
        self.history = History(self._logs[0], start.image, start.next_offset, older=archive)
        self.moved = asyncio.Event()
        """Set, and replaced by a fresh one, whenever epochs were applied."""
        self._log = kafka_log
        self._settings = settings
        self._fold = Fold(*start, supported=supported)
        self._reader = LogReader(
            kafka_log, self._fold, self._take, self._after_records, self._fail, _on_stray
        )
        self._known_end = KnownEnd(self._reader, self._fold, floor)
        self._older_cluster = older_cluster
        self._past = Past(self.history)
        self._reverts = Reverts(self.history)
        self._pipeline = CommitPipeline(
            self._fold,
            self._append,
            make_ids(),
            self._recall,
            self._on_bug,
            self._fill,
            self._in_thread,
        )
        self._loop = asyncio.get_running_loop()
        self._giving_way = GivingWay(self._pipeline.turns, self._loop, self._flush_soon)
        self._callers = Callers(self._loop)
        self._flush_is_due = False
        self._progress_s = time.monotonic()
        """When an epoch was won last, or the first of what is in flight was appended."""
        self._redecided = 0
        self._ready = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()
        self._deciding = ThreadPoolExecutor(1, "decisions")
        self._large: asyncio.Future[Made] | None = None
        """The newest decision that is made in a thread."""
        self._refused_founding = ""

    @property
    def image(self) -> Image:
        return self._fold.image

    @property
    def horizon_ms(self) -> int:
        """What the id of a new command must be newer than; -1: anything."""
        return self._pipeline.horizon_ms

    @property
    def log_id(self) -> bytes:
        """The log that is written; of one who has read nothing yet, the one that it should have found."""
        return self._known_end.log_id

    @property
    def ready(self) -> bool:
        """The log was read to the end that it had at the start, or will not be: there is a failure then. There
        need not be a cluster in it.
        """
        return self._ready.is_set()

    @property
    def losers(self) -> int:
        """Records that lost their epoch, of all that this process has read from the topic."""
        return self._fold.losers

    @property
    def strays(self) -> int:
        """Records of other logs, so too."""
        return self._fold.chain.strays

    @property
    def lag_records(self) -> int | None:
        """To the end of the log as it was seen last; None before the first look."""
        end = self._reader.end
        return None if end is None else max(0, end - self._fold.next_offset)

    @property
    def trouble(self) -> str:
        """Why nothing is acknowledged at present, in words; empty when commands are taken."""
        if self._reader.trouble or not self.ready or self.image.cluster:
            return self._reader.trouble
        none = f"There is no cluster in the log of '{self._settings.cluster}'."
        if self._refused_founding:
            return f"{none} {self._refused_founding} {WHAT_TO_DO}"
        return f"{none} Run `stele found` once; if there was a cluster, look whether the right topic is there."

    async def wait_ready(self, timeout_s: float) -> None:
        """Raises BusyError: nothing was done."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise BusyError(f"reading the log, at epoch {self.image.epoch}") from None

    async def start(self) -> None:
        """Read the log to its end, and found the cluster when there is none and the setting says so.

        Returns too when the log cannot be read: ``failure`` then says why.
        """
        self._reader.start()
        self._tasks = {asyncio.create_task(self._watch(), name="log-watch")}
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
        """Stop when the log that is written here is not the one of which others have a floor, or is shorter."""
        await self._ready.wait()
        try:
            await self._known_end.compare(ask, lambda: self.failure is not None)
        except LogError as error:
            self._fail(error)

    async def close(self) -> None:
        self._reader.stop()
        self._giving_way.close()
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

    def submit(self, envelope: Envelope, reply: Reply) -> None:
        """``reply`` is called once with the outcome, unless the reader stops before.

        Raises BusyError, ReaderStoppedError: then nothing was done.
        """
        self._reader.look_at_clocks()
        self._decide(envelope, reply)

    def _decide(self, envelope: Envelope, reply: Reply) -> None:
        self._check()
        began_s = time.perf_counter()

        def answer(outcome: Outcome) -> None:
            metrics.commit_seconds.observe(time.perf_counter() - began_s)
            if outcome.rejection is not None:
                metrics.rejections.labels(outcome.rejection.code).inc()
            reply(outcome)

        if isinstance(envelope.command, FoundCluster) and not self.image.cluster:
            task = self._loop.create_task(self._found(envelope, answer), name="found")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if isinstance(envelope.command, RevertState):
            task = self._loop.create_task(self._revert(envelope, answer), name="revert")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._submit(envelope, answer)

    def is_certain(self) -> bool:
        """Whether ``begin`` can be called: the log is read, and no doubt about it has come up."""
        self._reader.look_at_clocks()
        return self.ready and not self._reader.in_doubt

    def begin(self, envelope: Envelope, tell: Tell, timeout_s: float) -> None:
        """``tell`` is called once, in the very turn in which the result is known: the outcome,
        ReaderStoppedError when there will be none, or TimeoutError a moment after the time is over: then the
        outcome is unknown.

        Raises BusyError, ReaderStoppedError: then nothing was done, and nothing is told.
        """
        self._callers.ask(lambda reply: self._decide(envelope, reply), tell, timeout_s)

    async def commit(self, envelope: Envelope, timeout_s: float) -> Outcome:
        """The outcome. Raises as ``submit`` does, and TimeoutError: then the outcome is unknown."""
        await self._certain(timeout_s)
        async with asyncio.timeout(timeout_s):
            return await self._callers.outcome(lambda reply: self._decide(envelope, reply))

    async def linearizable(self, timeout_s: float) -> Image:
        """The image, no older than any commit before the call: a NOOP is appended and read back. A log that was
        not read to its end, or whose end may be lost, gets none.
        """
        await self._certain(timeout_s)
        self._check()
        if not self.ready:
            raise BusyError(f"reading the log, at epoch {self.image.epoch}")
        if not self.image.cluster:
            raise BusyError("there is no cluster in the log; run `stele found`")
        async with asyncio.timeout(timeout_s):
            await self._callers.outcome(self._read_barrier)
        return self.image

    async def barrier(self, timeout_s: float) -> Image:
        """The image with all that the log held at the call, as its leader tells the end.

        Raises TimeoutError, KafkaException, ReaderStoppedError.
        """
        self.raise_failure()
        async with asyncio.timeout(timeout_s):
            try:
                end = (await self._reader.look()).end
            except LogError as error:
                raise ReaderStoppedError(error) from error
            await self._wait_for_offset(end)
            await self._reader.certain()
        self.raise_failure()
        return self.image

    def _submit(self, envelope: Envelope, reply: Reply) -> None:
        foreign = meant_for_another(envelope, self.image)
        if foreign is not None:
            foreign_messages.labels("commands").inc()
        self._pipeline.submit(envelope, reply, foreign)
        self._flush_soon()

    async def _found(self, envelope: Envelope, reply: Reply) -> None:
        """Found the cluster, unless something tells of an older one."""
        try:
            older = await self._older_cluster(self._settings)
        except TimeoutError as error:
            older = f"it is not known, because the brokers do not answer ({error})"
        if older:
            await self._read_on()
        if older and not self.image.cluster:
            self._refused_founding = f"It is not founded, because of an older cluster: {older}."
            log.error("not founded", why=older)
            reply(refused_for(envelope, older))
        elif self.failure is None:
            self._submit(envelope, reply)

    async def _revert(self, envelope: Envelope, reply: Reply) -> None:
        """The state to go back to is read from the past first; one that is not there is refused."""
        assert isinstance(envelope.command, RevertState)
        unreadable = await self._reverts.read(envelope.command.to_epoch)
        if unreadable is not None:
            outcome = outcome_of(envelope.request_id, self.image, unreadable)
            reply(msgspec.structs.replace(outcome, taken=False))
        elif self.failure is None:
            self._submit(envelope, reply)

    async def _read_on(self) -> None:
        """What tells of an older cluster may be of one that another instance founded just now."""
        with contextlib.suppress(TimeoutError, KafkaException, ReaderStoppedError):
            await self.barrier(READ_ON_S)

    def _fill(self, command: AnyCommand) -> AnyCommand:
        if isinstance(command, RevertState):
            return self._reverts.fill(command)
        if not isinstance(command, FoundCluster):
            return command
        cluster_id = command.cluster_id or f"{self._settings.cluster}/{uuid.uuid4()}"
        topic_id = self._reader.topic_id
        return FoundCluster(cluster_id, topic_id=topic_id, begin_frozen=command.begin_frozen)

    async def _certain(self, timeout_s: float) -> None:
        """Raises BusyError while it is not certain that this is still the log that was read."""
        self._reader.look_at_clocks()
        if self._reader.in_doubt:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._reader.certain()

    def _read_barrier(self, reply: Reply) -> None:
        self._pipeline.read_barrier(reply)
        self._flush_soon()

    async def _wait_for_offset(self, offset: int) -> None:
        self.raise_failure()
        await self._callers.reached(offset, self._fold.next_offset)

    def _check(self) -> None:
        self.raise_failure()
        if self._reader.in_doubt:
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
        """Raises ReaderStoppedError where the log cannot be read any further."""
        if self.failure is not None:
            raise ReaderStoppedError(self.failure) from self.failure

    def _append(self, value: bytes) -> None:
        if self.failure is not None:
            return  # whoever waits was told
        if self._pipeline.in_flight <= 1:
            self._progress_s = time.monotonic()
        self._log.append(value)

    def _recall(self, epoch: int, answer: Callable[[Decisions | None], None]) -> None:
        def answered(found: Decisions | None) -> None:
            if self.failure is None:
                answer(None if self._reader.in_doubt else found)
                self._flush_soon()

        self._past.recall(epoch, answered)

    def _in_thread(self, work: Callable[[], Made], tell: Callable[[Made], None]) -> None:
        """The loop goes on meanwhile; an image never changes, so any thread may look at one. Of what was undone
        before it has begun nothing is made: one that has goes on to its end, and then the newest begins.
        """

        def done(large: asyncio.Future[Made]) -> None:
            if not large.cancelled() and self.failure is None:
                tell(large.result())
                self._flush_soon()

        if self._large is not None:
            self._large.cancel()
        self._large = self._loop.run_in_executor(self._deciding, work)
        self._large.add_done_callback(done)

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._pipeline.flush()
        self._giving_way.look(self._pipeline.in_flight)
        metrics.in_flight.set(self._pipeline.in_flight)

    def _take(self, offset: int, value: bytes) -> None:
        before = self._fold.image
        foreign = self._pipeline.on_record(offset, value)
        if self._fold.image is before:
            return  # a loser is no progress: it may stand behind a record that was lost
        self._progress_s = time.monotonic()
        self._known_end.check_read(offset)
        self.history.add(offset, value, self._fold.image)
        if foreign is None:
            metrics.commits.inc()
        else:
            metrics.foreign_epochs.inc()

    def _after_records(self) -> None:
        self._flush_soon()
        metrics.epoch.set(self.image.epoch)
        metrics.losers.set(self.losers)
        metrics.strays.set(self.strays)
        if self._pipeline.redecided != self._redecided:
            log.info("decided again", records=self._pipeline.redecided - self._redecided)
            self._redecided = self._pipeline.redecided
            metrics.redecided.set(self._redecided)
        self.moved.set()
        self.moved = asyncio.Event()
        self._callers.read_to(self._fold.next_offset)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.failed.set()
        self._reader.stop()
        log.error("the reader stopped", epoch=self.image.epoch, why=str(error))
        self._callers.stop(ReaderStoppedError(error))
        self.moved.set()
        self._ready.set()

    def _on_bug(self, envelope: Envelope, error: Exception) -> None:
        metrics.bugs.inc()
        log.error("a command broke the core", request_id=envelope.request_id, exc_info=error)

    async def _watch(self) -> None:
        """Force what is silent for too long to an outcome."""
        while self.failure is None:
            await asyncio.sleep(TICK_S)
            self._callers.look_at_clock()
            silent_s = time.monotonic() - self._progress_s
            if self._reader.in_doubt:
                continue  # nothing is read until the doubt ends
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


def _on_stray(offset: int, name: str) -> None:
    log.warning("a record of another log was skipped", offset=offset, writer=name)
