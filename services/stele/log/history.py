"""The past of the log: the offset of any epoch, the image at any epoch, epochs N to M.

Memory is bounded however long the log grows. The newest records are kept as bytes. For older ones
there are marks (epoch, offset, state id). To find an epoch, the log is read from the mark before
it, and the state ids alone separate winners from losers. Some epochs also keep their image, from
which later images are folded. When there are too many marks or images, every second one is dropped.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, TypeVar

from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, NO_LOG, ZERO_STATE, Image, without_memory
from stele.log.chain import LOG_ID, PREV_STATE_ID, STATE_ID, STOPS, Chain, Verdict
from stele.log.codec import decode_epoch
from stele.log.errors import OffsetGoneError
from stele.log.fold import Fold, Start, continuation, stopped_by
from stele.log.port import LogPast, Record

T = TypeVar("T")

FOLDED_AT_ONCE: Final = 100
"""Epochs folded before other tasks run: about 2 ms."""
JUDGED_AT_ONCE: Final = 1000
"""Records judged before other tasks run."""
LARGE_BYTES: Final = 64 * 1024
"""Total size from which epochs are decoded in a thread: decoding takes one or two milliseconds."""
REMEMBERED_IMAGES: Final = 4
"""Past images kept after a request: the next request often concerns a nearby epoch."""


class Bounds(NamedTuple):
    """Limits of what a history keeps in memory, and of what it reads at once."""

    mark_every: int = 1000
    """Epochs between two marks at first. Reading so many takes at most about a second."""
    marks: int = 4096
    """Most marks."""
    images: int = 32
    """Most images. They share structure, and omit the memory of decided requests: each would keep
    64 MiB."""
    recent_records: int = 10_000
    """Most records kept as bytes."""
    recent_bytes: int = 64 * 1024 * 1024
    """Most bytes of the kept records together."""
    read_records: int = 2000
    """Records of the first read. Each further read takes twice as many while they are small,
    because a read costs tens of milliseconds besides."""
    read_most: int = 8000
    """Most records of one read."""
    small_bytes: int = 2 * 1024 * 1024
    """Winners of a read up to this size in total are small, so that the next read may be larger."""


class EpochNotFoundError(LookupError):
    """The log does not hold this epoch: it is in the future, or no longer kept.

    ``stores`` are the blob stores that may hold epochs deleted from the archive.
    """

    def __init__(
        self, epoch: int, oldest: int, newest: int, stores: tuple[str, ...] | None = None
    ) -> None:
        self.epoch, self.oldest, self.newest = epoch, oldest, newest
        self.is_deleted = stores is not None and epoch < oldest
        self.stores = stores or ()
        told = f"There is no epoch {epoch}: the log holds {oldest} to {newest}."
        if self.is_deleted:
            where = f"; {', '.join(self.stores)} has them" if stores else ""
            told = (
                f"Epoch {epoch} was deleted: the archive begins at epoch {oldest}, and older ones are not kept"
                f" (archive_keep_days, archive_keep_epochs){where}."
            )
        super().__init__(told)


class Winner(NamedTuple):
    """A record that won its epoch."""

    epoch: int
    offset: int
    value: bytes

    def decode(self) -> Epoch:
        return decode_epoch(self.value)


class HistoryMark(NamedTuple):
    """The position just after ``epoch``: the next offset, and the ids of state and log."""

    epoch: int
    next_offset: int
    state_id: bytes
    log_id: bytes


async def with_decoded(winners: Sequence[Winner], use: Callable[[list[Epoch]], T]) -> T:
    """Return the result of ``use`` on the decoded epochs.

    Large ones are decoded in a thread so that commits are not delayed.
    """

    def work() -> T:
        return use([winner.decode() for winner in winners])

    if sum(len(winner.value) for winner in winners) < LARGE_BYTES:
        return work()
    return await asyncio.to_thread(work)


class Older(Protocol):
    """An archive of epochs that the topic no longer holds or that precede this reader's start."""

    async def winners(self, first: int, last: int) -> list[Winner]:
        """Return epochs from ``first`` up to ``last`` at most, at least one.

        Raises EpochNotFoundError, TimeoutError.
        """

    async def start(self, epoch: int) -> Start:
        """Return the newest available image not after ``epoch``. Raises TimeoutError."""


class History:
    """The past of one reader of the log, which calls ``add`` with each epoch that it applies."""

    def __init__(
        self,
        log: LogPast,
        image: Image = EMPTY,
        next_offset: int = 0,
        bounds: Bounds = Bounds(),  # noqa: B008 - it cannot be changed
        older: Older | None = None,
    ) -> None:
        self._log = log
        self._older = older
        self._bounds = bounds
        self._oldest, self._began = image.epoch, bytes(image.state_id)
        self._newest = image
        self._recent: deque[Winner] = deque()
        self._recent_bytes = 0
        self._marks = [_mark(image, next_offset)]
        self._mark_every = bounds.mark_every
        self._images = [Start(without_memory(image), next_offset)]
        self._image_every = bounds.mark_every
        self._asked: deque[Start] = deque(maxlen=REMEMBERED_IMAGES)
        self._folding = asyncio.Lock()

    @property
    def oldest(self) -> int:
        """The first epoch whose image is available."""
        if self._older is None:
            return self._oldest
        return self._newest.archive.trimmed_epoch

    @property
    def stores(self) -> tuple[str, ...]:
        """The blob stores that hold epochs deleted from the archive; empty if there are none."""
        trimmed = self._newest.archive.trimmed
        return () if trimmed is None else trimmed.stores

    def missing(self, epoch: int, oldest: int) -> EpochNotFoundError:
        """Return the error for a missing epoch, where epochs begin with ``oldest``."""
        deleted = self._older is not None and self._newest.archive.trimmed is not None
        return EpochNotFoundError(epoch, oldest, self.newest, self.stores if deleted else None)

    @property
    def newest(self) -> int:
        return self._newest.epoch

    def add(self, offset: int, value: bytes, image: Image) -> None:
        """Record a winner and the image after it."""
        assert image.epoch == self._newest.epoch + 1
        self._newest = image
        self._recent.append(Winner(image.epoch, offset, value))
        self._recent_bytes += len(value)
        self._forget_the_oldest()
        if image.epoch - self._marks[-1].epoch >= self._mark_every:
            self._marks.append(_mark(image, offset + 1))
            if len(self._marks) > self._bounds.marks:
                # The first mark stays: without it the oldest epochs could not be found.
                del self._marks[1::2]
                self._mark_every *= 2
        if image.epoch - self._images[-1].image.epoch >= self._image_every:
            self._images.append(Start(without_memory(image), offset + 1))
            if len(self._images) > self._bounds.images:
                del self._images[1::2]
                self._image_every *= 2

    async def epochs(self, first: int, limit: int) -> list[Epoch]:
        """Return at most ``limit`` epochs from ``first`` on; none if ``first`` is after the newest.

        Raises EpochNotFoundError when they are older than this process can read, OffsetGoneError
        when the topic was truncated, TimeoutError when the broker is too slow.
        """
        return await with_decoded([winner async for winner in self.winners(first, limit)], list)

    async def winners(self, first: int, limit: int) -> AsyncGenerator[Winner, None]:
        """Yield at most ``limit`` winners from ``first`` on, not decoded.

        Raises as ``epochs`` does. Only one read of them is in memory at a time.
        """
        if limit <= 0 or first > self.newest:
            return
        if first <= self.oldest:
            raise self.missing(first, self.oldest + 1)
        last = min(first + limit - 1, self.newest)
        async for winner in self._winners(self._mark_before(first), last):
            if winner.epoch >= first:
                yield winner

    async def epoch(self, epoch: int) -> Epoch:
        """Return one epoch, decoded. Raises as ``winner`` does."""
        (found,) = await with_decoded([await self.winner(epoch)], list)
        return found

    async def winner(self, epoch: int) -> Winner:
        """Return one winner. Raises as ``epochs`` does; EpochNotFoundError for a future epoch."""
        found = [winner async for winner in self.winners(epoch, 1)]
        if not found:
            raise self.missing(epoch, self.oldest + 1)
        return found[0]

    async def image_at(self, epoch: int) -> Image:
        """Return the image at ``epoch``. Past images lack the memory of decided requests.

        Raises EpochNotFoundError, OffsetGoneError.
        """
        if epoch == self._newest.epoch:
            return self._newest
        if not self.oldest <= epoch <= self.newest:
            raise self.missing(epoch, self.oldest)
        # One fold at a time: a request for a nearby epoch then begins at the image of this one.
        async with self._folding:
            start = await self._checkpoint_before(epoch)
            fold = Fold(start.image, start.next_offset, across_recoveries=True)
            async for winner in self._winners(_mark(start.image, start.next_offset), epoch):
                # Only winners are folded here, so the offsets between them are not a gap.
                fold.chain.jump(winner.offset)
                fold.offer(winner.offset, winner.value)
                if winner.epoch % FOLDED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self._asked.append(Start(fold.image, fold.next_offset))
        assert fold.image.epoch == epoch
        return fold.image

    def newest_winners(self, count: int) -> list[Winner]:
        """Return at most ``count`` of the newest winners that are in memory."""
        skipped = max(0, len(self._recent) - count)
        return [*islice(self._recent, skipped, None)]

    def recent(self, epoch: int) -> Epoch | None:
        """Return the epoch if its record is in memory, else None."""
        found = self._from_recent(epoch, 1)
        return found[0].decode() if found else None

    def _forget_the_oldest(self) -> None:
        most, most_bytes = self._bounds.recent_records, self._bounds.recent_bytes
        while len(self._recent) > most or self._recent_bytes > most_bytes:
            self._recent_bytes -= len(self._recent.popleft().value)

    def _from_recent(self, first: int, limit: int) -> list[Winner] | None:
        """Return winners from memory; None when the first one is no longer there."""
        if not self._recent or first < self._recent[0].epoch:
            return None
        # Epochs have no gaps, so the index follows from the number.
        begin = first - self._recent[0].epoch
        return list(islice(self._recent, begin, begin + limit))

    def _mark_before(self, epoch: int) -> HistoryMark:
        """Return the nearest mark before ``epoch``.

        An epoch in memory, or one before all marks and thus in the archive, needs only its number.
        """
        if self._from_recent(epoch, 1) is not None:
            return HistoryMark(epoch - 1, 0, ZERO_STATE, NO_LOG)
        at = bisect_right(self._marks, epoch - 1, key=attrgetter("epoch")) - 1
        return self._marks[at] if at >= 0 else HistoryMark(epoch - 1, 0, ZERO_STATE, NO_LOG)

    async def _winners(self, mark: HistoryMark, last: int) -> AsyncIterator[Winner]:
        """Yield the winners after the mark up to epoch ``last``, from memory where possible."""
        bounds, read = self._bounds, self._bounds.read_records
        while mark.epoch < last:
            before = mark
            page = self._from_recent(mark.epoch + 1, min(bounds.read_records, last - mark.epoch))
            if page is None:
                page, mark = await self._page(mark, last, read)
                if sum(len(winner.value) for winner in page) <= bounds.small_bytes:
                    read = min(2 * read, bounds.read_most)
            elif page:
                mark = _behind(page[-1])
            for winner in page[: last - before.epoch]:
                yield winner

    async def _page(
        self, mark: HistoryMark, last: int, read: int
    ) -> tuple[list[Winner], HistoryMark]:
        """Return some winners after the mark, or none, and the mark behind the records read.

        They come from the topic, or from the archive where the topic lacks them.
        """
        if self._older is not None and mark.epoch < self._oldest:
            return await self._archived(self._older, mark, min(last, self._oldest))
        try:
            records = await self._log.read(mark.next_offset, read)
        except OffsetGoneError:
            if self._older is None:
                raise
            return await self._archived(self._older, mark, last)
        if not records:
            raise TimeoutError(
                f"The log did not give epoch {mark.epoch + 1}, which it held before."
            )
        found = list[Winner]()
        for begin in range(0, len(records), JUDGED_AT_ONCE):
            won, mark = self._won(mark, records[begin : begin + JUDGED_AT_ONCE])
            found += won
            await asyncio.sleep(0)
        return found, mark

    async def _archived(
        self, older: Older, mark: HistoryMark, last: int
    ) -> tuple[list[Winner], HistoryMark]:
        # The chain of state ids must lead to this reader's own start: an archive of another history
        # must not be served as this one's past.
        found = await older.winners(mark.epoch + 1, last)
        stray = first_stray(found, mark.state_id, {self._oldest: self._began})
        if stray is not None:
            raise TimeoutError(
                f"Epoch {stray.epoch} of the archive is of another history: check the health of the"
                " catch-up replicas."
            )
        return found, _behind(found[-1])

    def _won(self, mark: HistoryMark, records: list[Record]) -> tuple[list[Winner], HistoryMark]:
        """Return the winners among ``records`` and the mark behind them.

        Raises LogError where the writer of a record had read a winner that is missing here.
        """
        chain = Chain(mark.log_id, mark.epoch, mark.state_id, mark.next_offset)
        found = list[Winner]()
        for offset, value in records:
            chain.jump(offset)  # the reader of the log has already checked the gaps
            verdict = chain.judge(offset, value)
            if verdict in STOPS:
                raise stopped_by(chain, verdict, offset, value)
            continues = verdict is Verdict.STRAY and continuation(chain, offset, value) is not None
            if verdict is Verdict.WINNER or continues:
                chain.win(offset, value)
                found.append(Winner(chain.epoch, offset, value))
            else:
                chain.skip(offset, value, verdict)
        return found, HistoryMark(chain.epoch, chain.next_offset, chain.state_id, chain.log_id)

    async def _checkpoint_before(self, epoch: int) -> Start:
        """Return the nearest known image not after ``epoch``, with its position in the log."""
        known = [c for c in (*self._images, *self._asked) if c.image.epoch <= epoch]
        nearest = max(known, key=attrgetter("image.epoch"), default=None)
        if self._older is not None and (nearest is None or epoch < self._oldest):
            start = await self._older.start(epoch)
            if nearest is None or start.image.epoch > nearest.image.epoch:
                return Start(without_memory(start.image), start.next_offset)
        assert nearest is not None, "without an archive the beginning is known"
        return nearest


def first_stray(
    winners: Sequence[Winner], state_id: bytes, known: Mapping[int, bytes]
) -> Winner | None:
    """Return the first winner that does not follow from the one before it, or None.

    The first one must follow from ``state_id``. ``known`` are state ids by epoch that must match.
    """
    for winner in winners:
        follows = state_id in (ZERO_STATE, winner.value[PREV_STATE_ID])
        state_id = winner.value[STATE_ID]
        if not follows or state_id != known.get(winner.epoch, state_id):
            return winner
    return None


def _behind(winner: Winner) -> HistoryMark:
    state_id, log_id = winner.value[STATE_ID], winner.value[LOG_ID]
    return HistoryMark(winner.epoch, winner.offset + 1, state_id, log_id)


def _mark(image: Image, next_offset: int) -> HistoryMark:
    return HistoryMark(image.epoch, next_offset, image.state_id, image.log_id)
