"""How every process reads its log (design, section 1, rule 11).

Records go to ``take`` one by one. When something is suspicious they are held back, so that nothing is
applied and nothing acknowledged, until a look at the broker shows that the last winner is still where it
was read. One look answers all suspicions up to its beginning, and at most one is under way.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final

from confluent_kafka import KafkaException

from stele.log.chain import PLAIN, STOPS, Anchor, Verdict, digest_of
from stele.log.codec import DecodeError, decode_epoch
from stele.log.errors import AnchorLostError, OffsetGoneError, TruncatedError
from stele.log.fold import Fold, stopped_by
from stele.log.incarnations import check_stray
from stele.log.lasting import Lasting
from stele.log.port import HasRoom, Log, Look, Record, always
from stele.log.pulse import LONGEST_PAUSE_S, Pulse

LOOK_EVERY_S: Final = 2.0
LONGEST_WITHOUT_LOOK_S: Final = 8.0
TICK_S: Final = 0.25
RETRY_S: Final = 0.5
SHORT_LOG_S: Final = 8.0
"""An end before the last winner may be told by a leader that was replaced; if it stays, winners are gone."""
QUIET_S: Final = 1.0
"""A doubt that ends within this is no trouble to speak of."""
NEAR: Final = 64
"""Places with no more records between them are read at once."""
MAX_STRAY_NAME_CHARS: Final = 200
MOST_HELD: Final = 5000
"""Records that are held back: then nothing more is read until the doubt is settled."""
DRAINED_AT_ONCE: Final = 500
"""Records that were held back, and are taken before anything else in the process gets its turn."""

Take = Callable[[int, bytes], None]
OnStray = Callable[[int, str], None]


class LogReader:
    """Reads ``log`` into ``fold``, whose chain ``take`` must move. Make it inside the event loop.

    ``after`` is called when records were taken or a doubt has ended, ``fail`` once, when reading is over
    for good; ``on_stray`` for each record of another log, with the name of its writer. Nothing more is read
    while ``has_room`` says so.
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
        self.doubt = ""
        """Why it is not certain that this is the log that was read before; empty when it is."""
        self.topic_id = ""
        """What the brokers call the topic; empty before the first look, and where topics have no ids."""
        self.end: int | None = None
        """The log's end at the last look."""
        self._log = log
        self._fold = fold
        self._take = take
        self._after = after
        self._on_fail = fail
        self._on_stray = on_stray
        self._taker_has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._over = False
        self._held: deque[Record] = deque()
        self._verified = 0
        self._pulse = Pulse()
        self._doubted_s = 0.0
        self._since_s = 0.0
        self._unanswered = ""
        self._looked_s = time.monotonic()
        self._short = Lasting()
        self._cut = Lasting()
        """Losers behind the last winner are not there, as it is told."""
        self._begin = 0
        """The topic holds nothing before it, as it was told last."""
        self._looking = asyncio.Lock()
        self._next_look: asyncio.Task[Look] | None = None
        self._tasks = set[asyncio.Task[None]]()
        self._settling = False
        self._certain = asyncio.Event()
        self._certain.set()

    def start(self) -> None:
        self._log.follow(
            self._fold.next_offset, self._on_records, self._on_error, self.suspect, self._has_room
        )
        self._pulse.beat()
        if (
            len(self._fold.chain.recent) > 1
        ):  # what stands before a snapshot was read by nobody here
            self.suspect("it begins with a snapshot")
        self._tick()

    def stop(self) -> None:
        self._over = True
        for task in self._tasks:
            task.cancel()

    @property
    def in_doubt(self) -> bool:
        """Nothing may be acknowledged: there is a doubt, or records are held back by one."""
        return bool(self.doubt or self._held)

    @property
    def trouble(self) -> str:
        """A doubt that has lasted, in words for people; else empty."""
        if not self.in_doubt or time.monotonic() - self._since_s < QUIET_S:
            return ""
        if not self.doubt:
            return f"{len(self._held)} records that were held back in a doubt about the log are being read"
        why = f": {self._unanswered}" if self._unanswered else ""
        return f"It is not certain that the log is still the one that was read ({self.doubt}){why}"

    def suspect(self, reason: str) -> None:
        """Hold everything back until a look that begins from now on has found the anchor."""
        if self._over:
            return
        self._doubted_s = time.monotonic()
        if not self.doubt:
            self.doubt, self._unanswered = reason, ""
            if not self._settling:
                self._since_s = self._doubted_s
        self._certain.clear()
        if not self._settling:
            self._settling = True
            self._spawn(self._settle())

    def look_at_clocks(self) -> None:
        """Call it before anything is acknowledged: a process that was stopped must look first."""
        pause_s = self._pulse.beat()
        if pause_s > LONGEST_PAUSE_S:
            self.suspect(f"this process was away for {pause_s:.1f} s")

    async def certain(self) -> None:
        """Return when there is no doubt, or when reading is over."""
        await self._certain.wait()

    async def look(self) -> Look:
        """What the broker holds at some moment after the call, with the anchor found intact.

        Callers share a look that has not begun. Raises TimeoutError, KafkaException, AnchorLostError,
        TruncatedError when the topic was truncated behind the anchor, and OffsetGoneError when it is another
        one and nothing was read of the one before.
        """
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_next(), name="look")
            self._next_look.add_done_callback(_retrieve)
        return await asyncio.shield(self._next_look)

    # -- records --

    def _has_room(self) -> bool:
        return len(self._held) < MOST_HELD and self._taker_has_room()

    def _on_records(self, records: list[Record]) -> None:
        if self._over:
            return
        self.look_at_clocks()
        if self.in_doubt:
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
        """Take what was held back, up to a suspicion that came after the last look."""
        while self._held and not self._over and not self.doubt:
            self._drain_some()
            self._after()
            await asyncio.sleep(0)

    def _drain_some(self) -> None:
        chain = self._fold.chain
        for _ in range(DRAINED_AT_ONCE):
            if not self._held or self._over:
                return
            offset, value = self._held[0]
            verdict = chain.judge(offset, value)
            if verdict not in PLAIN and (verdict is Verdict.HOLE or self._verified <= 0):
                self.suspect(_text(verdict, offset))
                return
            if verdict in STOPS:
                raise stopped_by(chain, verdict, offset, value)
            if verdict is Verdict.STRAY:
                check_stray(chain, offset, value)
            self._held.popleft()
            self._verified -= 1
            if verdict is Verdict.STRAY:
                chain.skip(offset, value, verdict)
                self._on_stray(offset, _writer_of(value))
            else:
                self._take(offset, value)

    async def _fill_hole(self) -> None:
        """Read again what is missing before the first record that is held back, and that record too: a leader
        that does not give what was delivered has an old end, and cannot say that nothing stands before it.
        Raises TimeoutError then, AnchorLostError when another record stands there.
        """
        chain = self._fold.chain
        while self._held and self._held[0].offset < chain.next_offset:
            self._held.popleft()
            self._verified -= 1
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
        chain.jump(found[0].offset if found else end)
        self._held.extendleft(reversed(found))
        self._verified += len(found)

    def _on_error(self, error: Exception) -> None:
        """Reading is over. An offset that is not there may be before the topic's beginning or behind its end: a
        look at the anchor tells what became of the log. Where that is intact no winner was lost, and the error
        says no more than that this reader must begin anew.
        """
        if not isinstance(error, OffsetGoneError):
            self._fail(error)
            return
        self.suspect(str(error))
        self._spawn(self._explain(error))

    async def _explain(self, error: OffsetGoneError) -> None:
        while not self._over:
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

    # -- doubts --

    async def _settle(self) -> None:
        try:
            while self.in_doubt and not self._over:
                held, began_s = len(self._held), time.monotonic()
                try:
                    await self.look()
                    if self._doubted_s > began_s:
                        continue
                    await self._compare_recent()
                    self._verified = held
                    await self._fill_hole()
                except (KafkaException, TimeoutError) as error:
                    self._unanswered = str(error)
                    await asyncio.sleep(RETRY_S)
                    continue
                if self._doubted_s <= began_s:
                    self.doubt = ""
                    await self._drain()
                    self._after()
        except Exception as error:  # whatever stops a reader must be seen, not swallowed
            self._fail(error)
        finally:
            self._settling = False
            if not self.in_doubt:
                self._certain.set()
                self._after()

    async def _look_next(self) -> Look:
        async with self._looking:
            self._next_look = None
            anchor, began_s = self._fold.chain.anchor, time.monotonic()
            look = await self._log.look(None if anchor is None else anchor.offset)
            try:
                self._compare(anchor, look)
            except (AnchorLostError, OffsetGoneError) as error:
                self._fail(error)
                raise
            self._looked_s, self.end = began_s, look.end
            return look

    def _compare(self, anchor: Anchor | None, look: Look) -> None:
        for known in (self._fold.image.topic_id, self.topic_id):
            if known and look.topic_id and look.topic_id != known:
                text = f"the topic is another one, {look.topic_id} and not {known}"
                if self._fold.chain.epoch == 0:  # nothing is held that could be lost
                    raise OffsetGoneError(self._fold.chain.next_offset, f"{text}. Begin anew.")
                raise self._lost(anchor, text)
        self.topic_id = look.topic_id
        if anchor is None:
            return
        if look.value is not None and digest_of(look.value) == anchor.digest:
            self._short.over()
            return
        if look.value is None and look.end <= anchor.offset:
            self._wait_for_leader(anchor, look)
        if look.value is None and look.begin > anchor.offset:
            raise TruncatedError(
                anchor.offset, f"the topic begins at {look.begin} by now. Begin with a snapshot."
            )
        raise self._lost(anchor, "another record stands there" if look.value else "it is gone")

    async def _compare_recent(self) -> None:
        """What was read last is where it was read. Where the topic lost its end, a record that was on its way
        may land once more, at the very place where it stood: then the last winner is there alone. Where it lost
        no more than losers, other records stand in their places, and who had read these reads none of them.
        What is before the topic's beginning was kept elsewhere, and is not asked for. What is not given may be
        hidden by an old leader.
        Raises AnchorLostError, OffsetGoneError, KafkaException, TimeoutError.
        """
        chain = self._fold.chain
        winners = [each for each in chain.recent if each.offset >= self._begin]
        begin = winners[0].offset if winners else self._begin
        passed = [each for each in chain.passed if each.offset >= begin]
        if len(winners) < 2 and not passed:  # the last one was compared
            return
        there = dict[int, bytes]()
        for first, last in _runs([each.offset for each in (*winners, *passed)]):
            try:
                read = await self._log.read(first, last - first + 1)
            except OffsetGoneError:
                self._begin = max(self._begin, (await self._log.look(first)).begin)
                raise TimeoutError(f"the topic begins at {self._begin} by now") from None
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
        self._cut.over()

    def _wait_for_records(self, absent: int, newest: int) -> None:
        """Raises TimeoutError while an old leader may hide what stands at offset ``absent``: up to the newest
        winner, which is there, without limit.
        """
        if absent <= newest or self._cut.seen(time.monotonic()) < SHORT_LOG_S:
            text = f"offset {absent} was read, and is not read again"
            if not self.doubt:
                self.suspect(text)
            raise TimeoutError(text)

    def _wait_for_leader(self, anchor: Anchor, look: Look) -> None:
        """Raises TimeoutError while the end that was told may be an old one."""
        if self._short.seen(time.monotonic()) < SHORT_LOG_S:
            text = f"the log ends at {look.end}, before the last winner at {anchor.offset}"
            if not self.doubt:
                self.suspect(text)
            raise TimeoutError(text)

    def _lost(self, anchor: Anchor | None, why: str) -> AnchorLostError:
        chain = self._fold.chain
        offset = chain.next_offset if anchor is None else anchor.offset
        return AnchorLostError(
            offset,
            f"the last winner that was read, epoch {chain.epoch} of log {chain.log_id.hex()}, is not there any"
            f" more: {why}. Nothing is acknowledged any more. Restore the topic from a copy that has it, or run"
            " `stele recover`.",
        )

    def _tick(self) -> None:
        if self._over:
            return
        self.look_at_clocks()
        since_s = time.monotonic() - self._looked_s
        if since_s > LONGEST_WITHOUT_LOOK_S and not self.doubt:
            self.suspect(f"the brokers have not shown the log for {since_s:.0f} s")
        elif since_s > LOOK_EVERY_S and self._next_look is None and not self._looking.locked():
            self._spawn(self._look_in_passing())
        self._loop.call_later(TICK_S, self._tick)

    async def _look_in_passing(self) -> None:
        """Steady state: records go on meanwhile."""
        with contextlib.suppress(KafkaException, TimeoutError):
            try:
                await self.look()
                await self._compare_recent()
            except (AnchorLostError, OffsetGoneError) as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._over:
            self._over = True
            self._held.clear()
            self._certain.set()
            self._on_fail(error)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _runs(offsets: list[int]) -> list[tuple[int, int]]:
    """First and last of those that are near to one another."""
    runs = list[tuple[int, int]]()
    for offset in sorted(offsets):
        if runs and offset - runs[-1][1] <= NEAR:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs


def _retrieve(look: "asyncio.Task[Look]") -> None:
    """Those who waited may have run out of time; then nobody else asks how it ended."""
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
    """Who wrote a stray, as far as it can be decoded."""
    try:
        epoch = decode_epoch(value)
    except DecodeError as error:
        return f"unknown ({error})"[:MAX_STRAY_NAME_CHARS]
    return f"{epoch.actor or '-'} from {epoch.origin or '-'}"[:MAX_STRAY_NAME_CHARS]
