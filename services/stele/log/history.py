"""The past of the log: which offset holds which epoch, the image at any epoch, epochs N to M.

Memory is bounded however long the log grows. The newest records are kept as bytes. Of the others there are
marks (epoch, offset, state id): to find an epoch, the log is read from the mark before it, and the winners
are told from the losers by their state ids alone. Some marks also keep the image, from which any other is
folded. When there are too many marks or images, every second one is dropped.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, NO_LOG, Image, without_memory
from stele.log.chain import STATE_ID, Chain, Verdict
from stele.log.codec import decode_epoch
from stele.log.fold import Fold, stopped_by
from stele.log.port import LogPast

FOLDED_AT_ONCE: Final = 100
"""Epochs folded before other work gets its turn, 2 ms."""
REMEMBERED_IMAGES: Final = 4
"""Images of the past that were asked for lately: the next question is often nearby."""


class Bounds(NamedTuple):
    """How much a history keeps in memory, and how much it reads at once."""

    mark_every: int = 1000
    """Epochs between two marks at first: a second's work to read, at the slowest."""
    marks: int = 4096
    images: int = 32
    """Images share structure; what they decided is left out, since each would keep its own 64 MiB."""
    recent_records: int = 10_000
    recent_bytes: int = 64 * 1024 * 1024
    read_records: int = 2000


class EpochNotFoundError(LookupError):
    """The log does not hold this epoch: not yet, or not any more."""

    def __init__(self, epoch: int, oldest: int, newest: int) -> None:
        self.epoch, self.oldest, self.newest = epoch, oldest, newest
        super().__init__(f"There is no epoch {epoch}: the log holds {oldest} to {newest}.")


class Winner(NamedTuple):
    """A record that won its epoch."""

    epoch: int
    offset: int
    value: bytes

    def decode(self) -> Epoch:
        return decode_epoch(self.value)


class Mark(NamedTuple):
    """The log just after ``epoch``: the offset to read on from, and the state id to go by."""

    epoch: int
    next_offset: int
    state_id: bytes


class Checkpoint(NamedTuple):
    """An image and the offset to fold on from."""

    image: Image
    next_offset: int


class History:
    """The past of one reader of the log, which tells each epoch as it applies it with ``add``."""

    def __init__(
        self,
        log: LogPast,
        image: Image = EMPTY,
        next_offset: int = 0,
        bounds: Bounds = Bounds(),  # noqa: B008 - it cannot be changed
    ) -> None:
        self._log = log
        self._bounds = bounds
        self._oldest = image.epoch
        self._newest = image
        self._recent: deque[Winner] = deque()
        self._recent_bytes = 0
        self._marks = [Mark(image.epoch, next_offset, image.state_id)]
        self._mark_every = bounds.mark_every
        self._images = [_checkpoint(image, next_offset)]
        self._image_every = bounds.mark_every
        self._asked: deque[Checkpoint] = deque(maxlen=REMEMBERED_IMAGES)
        self._folding = asyncio.Lock()

    @property
    def oldest(self) -> int:
        """The first epoch whose image can be had."""
        return self._oldest

    @property
    def newest(self) -> int:
        return self._newest.epoch

    def add(self, offset: int, value: bytes, image: Image) -> None:
        """Take note of a winner and of the image that it made."""
        assert image.epoch == self._newest.epoch + 1
        self._newest = image
        self._recent.append(Winner(image.epoch, offset, value))
        self._recent_bytes += len(value)
        self._forget_the_oldest()
        if image.epoch - self._marks[-1].epoch >= self._mark_every:
            self._marks.append(Mark(image.epoch, offset + 1, image.state_id))
            if len(self._marks) > self._bounds.marks:
                del self._marks[1::2]
                self._mark_every *= 2
        if image.epoch - self._images[-1].image.epoch >= self._image_every:
            self._images.append(_checkpoint(image, offset + 1))
            if len(self._images) > self._bounds.images:
                del self._images[1::2]
                self._image_every *= 2

    async def epochs(self, first: int, limit: int) -> list[Epoch]:
        """At most ``limit`` epochs from ``first`` on; none when ``first`` is after the newest.

        Raises EpochNotFoundError when they are older than what this process knows, OffsetGoneError
        when the topic was truncated, TimeoutError when the broker is too slow.
        """
        if limit <= 0 or first > self.newest:
            return []
        found = self._from_recent(first, limit)
        if found is None:
            found = await self._from_log(first, limit)
        return [winner.decode() for winner in found]

    async def epoch(self, epoch: int) -> Epoch:
        """Raises as ``epochs`` does, and EpochNotFoundError when it has not happened yet."""
        found = await self.epochs(epoch, 1)
        if not found:
            raise EpochNotFoundError(epoch, self._oldest + 1, self.newest)
        return found[0]

    async def image_at(self, epoch: int) -> Image:
        """The image at ``epoch``, exactly, but for its decided requests.

        Raises EpochNotFoundError, OffsetGoneError.
        """
        if epoch == self._newest.epoch:
            return self._newest
        if not self._oldest <= epoch <= self.newest:
            raise EpochNotFoundError(epoch, self._oldest, self.newest)
        async with self._folding:
            start = self._checkpoint_before(epoch)
            fold = Fold(start.image, start.next_offset)
            async for winner in self._winners(
                Mark(start.image.epoch, start.next_offset, start.image.state_id), epoch
            ):
                fold.chain.jump(winner.offset)
                fold.offer(winner.offset, winner.value)
                if winner.epoch % FOLDED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self._asked.append(Checkpoint(fold.image, fold.next_offset))
        assert fold.image.epoch == epoch
        return fold.image

    def recent(self, epoch: int) -> Epoch | None:
        """The epoch if its record is in memory."""
        found = self._from_recent(epoch, 1)
        return found[0].decode() if found else None

    def _forget_the_oldest(self) -> None:
        most, most_bytes = self._bounds.recent_records, self._bounds.recent_bytes
        while len(self._recent) > most or self._recent_bytes > most_bytes:
            self._recent_bytes -= len(self._recent.popleft().value)

    def _from_recent(self, first: int, limit: int) -> list[Winner] | None:
        """None when the first of them is not in memory any more."""
        if not self._recent or first < self._recent[0].epoch:
            return None
        begin = first - self._recent[0].epoch
        return list(islice(self._recent, begin, begin + limit))

    async def _from_log(self, first: int, limit: int) -> list[Winner]:
        if first <= self._oldest:
            raise EpochNotFoundError(first, self._oldest + 1, self.newest)
        mark = self._marks[bisect_right(self._marks, first - 1, key=attrgetter("epoch")) - 1]
        last = min(first + limit - 1, self.newest)
        return [w async for w in self._winners(mark, last) if w.epoch >= first]

    async def _winners(self, mark: Mark, last: int) -> AsyncIterator[Winner]:
        """Winners after the mark up to epoch ``last``, from memory where they are still there."""
        epoch, next_offset, state_id = mark
        while epoch < last:
            found = self._from_recent(epoch + 1, self._bounds.read_records)
            if found is not None:
                for winner in found[: last - epoch]:
                    yield winner
                epoch += len(found)
                if found:
                    next_offset, state_id = found[-1].offset + 1, found[-1].value[STATE_ID]
                continue
            records = await self._log.read(next_offset, self._bounds.read_records)
            if not records:
                raise TimeoutError(f"The log did not give epoch {epoch + 1}, which it held before.")
            chain = Chain(self._newest.log_id if epoch else NO_LOG, epoch, state_id, next_offset)
            for offset, value in records:
                chain.jump(offset)  # the reader of the log has looked into the holes
                verdict = chain.offer(offset, value)
                if verdict is Verdict.LOST_WINNERS:
                    raise stopped_by(chain, verdict, offset, value)
                if verdict is Verdict.WINNER and epoch < last:
                    epoch, state_id = epoch + 1, value[STATE_ID]
                    yield Winner(epoch, offset, value)
            next_offset = records[-1].offset + 1

    def _checkpoint_before(self, epoch: int) -> Checkpoint:
        known = (c for c in (*self._images, *self._asked) if c.image.epoch <= epoch)
        return max(known, key=_epoch_of)


def _checkpoint(image: Image, next_offset: int) -> Checkpoint:
    return Checkpoint(without_memory(image), next_offset)


def _epoch_of(checkpoint: Checkpoint) -> int:
    return checkpoint.image.epoch
