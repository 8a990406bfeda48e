"""The reader of the log that every process uses (docs/design.md, rule 11).

Records go to ``take`` one by one. While a suspicion is open, the reader holds records back: nothing
is applied and nothing is acknowledged. A look at the broker ends the suspicion when the last winner
is still where it was read. One look answers all suspicions raised before it began, and at most one
look runs at a time.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final

from confluent_kafka import KafkaException

from stele.log.chain import PLAIN, STOPS, Anchor, Verdict, digest_of
from stele.log.clocks import LONGEST_PAUSE_S, ClockJumpDetector, ConditionTimer
from stele.log.codec import DecodeError, decode_epoch
from stele.log.errors import AnchorLostError, OffsetGoneError, TruncatedError
from stele.log.fold import Fold, check_stray, stopped_by
from stele.log.port import HasRoom, Log, Record, TopicProbe, always

LOOK_EVERY_S: Final = 2.0
"""Interval of looks while nothing is suspicious."""
LONGEST_WITHOUT_LOOK_S: Final = 8.0
"""Time without a look after which the reader suspects that it missed records."""
TICK_S: Final = 0.25
"""Interval of the checks of the clocks and of the age of the last look."""
RETRY_S: Final = 0.5
"""Pause before a look that failed is repeated."""
SHORT_LOG_S: Final = 8.0
"""A replaced leader may report an end before the last winner. Later, the winner counts as lost."""
QUIET_S: Final = 1.0
"""A suspicion that ends within this time is not reported as trouble."""
NEAR: Final = 64
"""Two offsets at most this far apart are compared with one read."""
MAX_STRAY_NAME_CHARS: Final = 200
MOST_HELD: Final = 5000
"""Limit of held records. At the limit nothing more is read until the suspicion ends."""
DRAINED_AT_ONCE: Final = 500
"""Held records that are taken before other tasks of the event loop run."""

Take = Callable[[int, bytes], None]
OnStray = Callable[[int, str], None]


class TopicReader:
    """Reads ``log`` into ``fold``. Create it inside the event loop.

    ``take`` receives each record and must advance the chain of ``fold``. ``after`` is called when
    records were taken or a suspicion has ended. ``fail`` is called once, when reading has ended
    with an error. ``on_stray`` is called for each record of another log, with the name of its
    writer. Reading pauses while ``has_room`` returns False.
    """

    def __init__(
        self,
        log: Log,
        fold: Fold,
        take: Take,
        after: Callable[[], None],
        fail: Callable[[Exception], None],
        on_stray: OnStray = lambda offset, name: None,
        has_room: HasRoom = always,
    ) -> None:
        self.suspicion = ""
        """The reason of the open suspicion; empty when there is none."""
        self.topic_id = ""
        """The topic's id. Empty before the first look, and with brokers that have no topic ids."""
        self.end: int | None = None
        """The log's end at the last look; None before the first look."""
        self._log = log
        self._fold = fold
        self._take = take
        self._after = after
        self._on_fail = fail
        self._on_stray = on_stray
        self._taker_has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._held: deque[Record] = deque()
        # Held records at the front that the last look covers. Others may not be skipped or end
        # reading before a look that began after their arrival.
        self._held_before_look = 0
        self._clocks = ClockJumpDetector()
        self._suspected_s = 0.0
        self._since_s = 0.0
        self._failed_look = ""
        self._last_look_s = time.monotonic()
        self._end_too_early = ConditionTimer()
        self._records_absent = ConditionTimer()
        """Duration for which records behind the last winner have been absent from the topic."""
        self._first_offset = 0
        """The topic's first offset, as last reported."""
        self._looking = asyncio.Lock()
        self._next_look: asyncio.Task[TopicProbe] | None = None
        self._tasks = set[asyncio.Task[None]]()
        self._resolving = False
        self._resolved = asyncio.Event()
        self._resolved.set()

    def start(self) -> None:
        """Begin to follow the log behind the fold, with a look first if it begins at a snapshot."""
        self._log.follow(
            self._fold.next_offset, self._on_records, self._on_error, self.suspect, self._has_room
        )
        self._clocks.elapsed_s()
        # This process has not read the winners before a snapshot, so they are compared first.
        if len(self._fold.chain.recent) > 1:
            self.suspect("it begins with a snapshot")
        self._tick()

    def stop(self) -> None:
        """Take no more records, and cancel the reader's tasks."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    @property
    def is_suspended(self) -> bool:
        """True while nothing may be acknowledged: a suspicion is open, or records are held."""
        return bool(self.suspicion or self._held)

    @property
    def trouble(self) -> str:
        """Text for people on a suspicion that is older than ``QUIET_S``; empty otherwise."""
        if not self.is_suspended or time.monotonic() - self._since_s < QUIET_S:
            return ""
        if not self.suspicion:
            return f"{len(self._held)} records that were held back in a doubt about the log are being read"
        why = f": {self._failed_look}" if self._failed_look else ""
        return (
            f"It is not certain that the log is still the one that was read ({self.suspicion}){why}"
        )

    def suspect(self, reason: str) -> None:
        """Hold all records back until a look that begins after this call has found the anchor."""
        if self._stopped:
            return
        # A look that is already under way does not answer this suspicion: ``_resolve`` compares
        # this time with the begin of the look.
        self._suspected_s = time.monotonic()
        if not self.suspicion:
            self.suspicion, self._failed_look = reason, ""
            if not self._resolving:
                self._since_s = self._suspected_s
        self._resolved.clear()
        if not self._resolving:
            self._resolving = True
            self._spawn(self._resolve())

    def look_at_clocks(self) -> None:
        """Raise a suspicion if the process was paused. Call it before every acknowledgement."""
        pause_s = self._clocks.elapsed_s()
        if pause_s > LONGEST_PAUSE_S:
            self.suspect(f"this process was away for {pause_s:.1f} s")

    async def wait_until_resolved(self) -> None:
        """Return when no suspicion is open, or when reading has ended."""
        await self._resolved.wait()

    async def look(self) -> TopicProbe:
        """Look at the broker after this call, and check that the anchor is intact.

        Callers share a look that has not begun. Raises TimeoutError, KafkaException and
        AnchorLostError. Raises TruncatedError when the topic was truncated behind the anchor.
        Raises OffsetGoneError when the topic is another one and nothing was read of the earlier
        one.
        """
        # A look that has begun is not shared: it may have asked before the caller's event. The
        # shield keeps the cancellation of one caller from ending the look of the others.
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_next(), name="look")
            self._next_look.add_done_callback(_ignore_error)
        return await asyncio.shield(self._next_look)

    # -- records --

    def _has_room(self) -> bool:
        return len(self._held) < MOST_HELD and self._taker_has_room()

    def _on_records(self, records: list[Record]) -> None:
        if self._stopped:
            return
        # Check the clocks before the records: they may have waited while the process was paused.
        self.look_at_clocks()
        if self.is_suspended:
            self._held.extend(records)
            return
        try:
            for index, (offset, value) in enumerate(records):
                verdict = self._fold.chain.judge(offset, value)
                if verdict in PLAIN:
                    self._take(offset, value)
                else:
                    self._held.extend(records[index:])
                    self.suspect(_text(verdict, offset))
                    break
        except Exception as error:  # whatever stops a reader must be seen, not swallowed
            self._fail(error)
            return
        self._after()

    async def _drain(self) -> None:
        """Take the held records, up to a new suspicion."""
        while self._held and not self._stopped and not self.suspicion:
            self._drain_some()
            self._after()
            await asyncio.sleep(0)

    def _drain_some(self) -> None:
        chain = self._fold.chain
        for _ in range(DRAINED_AT_ONCE):
            if not self._held or self._stopped:
                return
            offset, value = self._held[0]
            verdict = chain.judge(offset, value)
            # A gap must be filled first. Other suspicious records need a look that began after
            # they arrived; after that look the verdict is final.
            if verdict not in PLAIN and (verdict is Verdict.HOLE or self._held_before_look <= 0):
                self.suspect(_text(verdict, offset))
                return
            if verdict in STOPS:
                raise stopped_by(chain, verdict, offset, value)
            if verdict is Verdict.STRAY:
                check_stray(chain, offset, value)
            self._held.popleft()
            self._held_before_look -= 1
            if verdict is Verdict.STRAY:
                chain.skip(offset, value, verdict)
                self._on_stray(offset, _writer_of(value))
            else:
                self._take(offset, value)

    async def _fill_gap(self) -> None:
        """Read the records missing before the first held record, and that record, once more.

        A leader that does not return the delivered record has an old end. Its answer does not prove
        that the gap is empty. Raises TimeoutError then, and AnchorLostError when another record has
        the offset.
        """
        chain = self._fold.chain
        while self._held and self._held[0].offset < chain.next_offset:
            self._held.popleft()
            self._held_before_look -= 1
        if not self._held or self._held[0].offset == chain.next_offset:
            return
        begin, end = chain.next_offset, self._held[0].offset
        read = await self._log.read(begin, end - begin + 1)
        again = next((record for record in read if record.offset == end), None)
        if again is None:
            raise TimeoutError(f"offset {end} was delivered, and is not read again")
        if again.value != self._held[0].value:
            raise self._lost(
                chain.anchor, f"another record stands at offset {end} than was delivered"
            )
        found = [record for record in read if begin <= record.offset < end]
        # The log was read again, so the offsets that are still missing hold no records.
        chain.jump(found[0].offset if found else end)
        self._held.extendleft(reversed(found))
        self._held_before_look += len(found)

    def _on_error(self, error: Exception) -> None:
        """Handle the end of reading.

        A missing offset may be before the topic's beginning or behind its end. A look at the anchor
        shows which. If the anchor is intact, no winner was lost, and this reader only has to start
        again from a snapshot.
        """
        if not isinstance(error, OffsetGoneError):
            self._fail(error)
            return
        self.suspect(str(error))
        self._spawn(self._check_missing_offset(error))

    async def _check_missing_offset(self, error: OffsetGoneError) -> None:
        while not self._stopped:
            try:
                await self.look()
                await self._compare_recent()
            except (AnchorLostError, OffsetGoneError) as lost:
                self._fail(lost)
                return
            except (KafkaException, TimeoutError):
                await asyncio.sleep(RETRY_S)
                continue
            self._fail(error)

    # -- suspicions --

    async def _resolve(self) -> None:
        try:
            while self.is_suspended and not self._stopped:
                held, began_s = len(self._held), time.monotonic()
                try:
                    await self.look()
                    if self._suspected_s > began_s:
                        continue  # a suspicion that is newer than the look needs another look
                    await self._compare_recent()
                    self._held_before_look = held
                    await self._fill_gap()
                except (KafkaException, TimeoutError) as error:
                    self._failed_look = str(error)
                    await asyncio.sleep(RETRY_S)
                    continue
                if self._suspected_s <= began_s:
                    # Records that arrive during the drain are held behind the others, so that the
                    # order of the log is kept.
                    self.suspicion = ""
                    await self._drain()
                    self._after()
        except Exception as error:  # whatever stops a reader must be seen, not swallowed
            self._fail(error)
        finally:
            self._resolving = False
            if not self.is_suspended:
                self._resolved.set()
                self._after()

    async def _look_next(self) -> TopicProbe:
        async with self._looking:
            # From here on the look has begun: callers that arrive now get the next one.
            self._next_look = None
            anchor, began_s = self._fold.chain.anchor, time.monotonic()
            look = await self._log.look(None if anchor is None else anchor.offset)
            try:
                self._compare(anchor, look)
            except (AnchorLostError, OffsetGoneError) as error:
                self._fail(error)
                raise
            self._last_look_s, self.end = began_s, look.end
            return look

    def _compare(self, anchor: Anchor | None, look: TopicProbe) -> None:
        for known in (self._fold.image.topic_id, self.topic_id):
            if known and look.topic_id and look.topic_id != known:
                text = f"the topic is another one, {look.topic_id} and not {known}"
                if self._fold.chain.epoch == 0:  # this reader holds no epoch that could be lost
                    raise OffsetGoneError(self._fold.chain.next_offset, f"{text}. Begin anew.")
                raise self._lost(anchor, text)
        self.topic_id = look.topic_id
        if anchor is None:
            return
        if look.value is not None and digest_of(look.value) == anchor.digest:
            self._end_too_early.reset()
            return
        if look.value is None and look.end <= anchor.offset:
            self._wait_for_leader(anchor, look)
        if look.value is None and look.begin > anchor.offset:
            raise TruncatedError(
                anchor.offset, f"the topic now begins at {look.begin}. Begin with a snapshot."
            )
        raise self._lost(anchor, "another record is there" if look.value else "it is gone")

    async def _compare_recent(self) -> None:
        """Check that the newest winners and skipped records are where they were read.

        The anchor alone is not enough. When the topic loses its end, a record in flight may be
        appended again at its old offset. Then only the last winner is there. When the topic loses
        losers only, other records take their offsets, and this reader never reads those. Records
        before the topic's beginning are in the archive and are not compared. An old leader may hide
        records that it does not return.

        Raises AnchorLostError, OffsetGoneError, KafkaException, TimeoutError.
        """
        chain = self._fold.chain
        winners = [each for each in chain.recent if each.offset >= self._first_offset]
        begin = winners[0].offset if winners else self._first_offset
        passed = [each for each in chain.passed if each.offset >= begin]
        if len(winners) < 2 and not passed:  # the look has compared the last winner
            return
        there = dict[int, bytes]()
        for first, last in _runs([each.offset for each in (*winners, *passed)]):
            try:
                read = await self._log.read(first, last - first + 1)
            except OffsetGoneError:
                self._first_offset = max(self._first_offset, (await self._log.look(first)).begin)
                raise TimeoutError(f"the topic now begins at {self._first_offset}") from None
            there |= {record.offset: record.value for record in read}

        def is_another(each: Anchor) -> bool:
            return each.offset in there and digest_of(there[each.offset]) != each.digest

        for each in filter(is_another, winners):
            why = f"another record stands at offset {each.offset}, where a winner before it was"
            raise self._lost(chain.anchor, why)
        for each in filter(is_another, passed):
            anchor = chain.anchor
            why = f"another record stands at offset {each.offset}, which was not read"
            if anchor is not None and anchor.offset > each.offset:
                raise self._lost(anchor, f"its place is behind one that was lost: {why}")
            raise OffsetGoneError(each.offset, f"{why}. Begin with a snapshot.")
        absent = [each.offset for each in (*winners, *passed) if each.offset not in there]
        if absent:
            self._wait_for_records(min(absent), winners[-1].offset if winners else -1)
        self._records_absent.reset()

    def _wait_for_records(self, absent: int, newest: int) -> None:
        """Raise TimeoutError while an old leader may hide the record at offset ``absent``.

        Up to the newest winner, which is known to exist, this holds without limit. Behind it,
        absent records count as lost after ``SHORT_LOG_S``.
        """
        if absent <= newest or self._records_absent.sample(time.monotonic()) < SHORT_LOG_S:
            text = f"offset {absent} was read, and is not read again"
            if not self.suspicion:
                self.suspect(text)
            raise TimeoutError(text)

    def _wait_for_leader(self, anchor: Anchor, look: TopicProbe) -> None:
        """Raise TimeoutError while the reported end may come from an old leader."""
        if self._end_too_early.sample(time.monotonic()) < SHORT_LOG_S:
            text = f"the log ends at {look.end}, before the last winner at {anchor.offset}"
            if not self.suspicion:
                self.suspect(text)
            raise TimeoutError(text)

    def _lost(self, anchor: Anchor | None, why: str) -> AnchorLostError:
        chain = self._fold.chain
        offset = chain.next_offset if anchor is None else anchor.offset
        return AnchorLostError(
            offset,
            f"the last winner that was read, epoch {chain.epoch} of log {chain.log_id.hex()}, is"
            f" missing: {why}. Commands are no longer acknowledged. Restore the topic from a copy that has it,"
            " or run `stele recover`.",
        )

    def _tick(self) -> None:
        if self._stopped:
            return
        self.look_at_clocks()
        since_s = time.monotonic() - self._last_look_s
        if since_s > LONGEST_WITHOUT_LOOK_S and not self.suspicion:
            self.suspect(f"the brokers have not shown the log for {since_s:.0f} s")
        elif since_s > LOOK_EVERY_S and self._next_look is None and not self._looking.locked():
            self._spawn(self._look_regularly())
        self._loop.call_later(TICK_S, self._tick)

    async def _look_regularly(self) -> None:
        """Look at the broker while no suspicion is open; records are applied meanwhile."""
        # A look without an answer raises no suspicion yet: ``_tick`` does after a longer time.
        with contextlib.suppress(KafkaException, TimeoutError):
            try:
                await self.look()
                await self._compare_recent()
            except (AnchorLostError, OffsetGoneError) as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._stopped:
            self._stopped = True
            self._held.clear()
            self._resolved.set()
            self._on_fail(error)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _runs(offsets: list[int]) -> list[tuple[int, int]]:
    """Return first and last offset of each group whose neighbours are within ``NEAR``."""
    runs = list[tuple[int, int]]()
    for offset in sorted(offsets):
        if runs and offset - runs[-1][1] <= NEAR:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs


def _ignore_error(look: "asyncio.Task[TopicProbe]") -> None:
    """Retrieve the error of a look whose callers have all timed out, so asyncio does not log it."""
    if not look.cancelled():
        look.exception()


def _text(verdict: Verdict, offset: int) -> str:
    return {
        Verdict.HOLE: f"records before offset {offset} were not read",
        Verdict.STRAY: f"the record at offset {offset} is of another log",
        Verdict.NO_BEGINNING: f"the log does not begin with the record at offset {offset}",
    }.get(
        verdict, f"the writer of the record at offset {offset} had read what is not in this history"
    )


def _writer_of(value: bytes) -> str:
    """Return actor and origin of a stray, as far as it can be decoded."""
    try:
        epoch = decode_epoch(value)
    except DecodeError as error:
        return f"unknown ({error})"[:MAX_STRAY_NAME_CHARS]
    return f"{epoch.actor or '-'} from {epoch.origin or '-'}"[:MAX_STRAY_NAME_CHARS]
