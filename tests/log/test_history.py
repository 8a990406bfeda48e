"""Any state and any epoch of the past, with bounded memory."""

import threading

import pytest

from stele.domain.commands import SetSetting
from stele.domain.image import Image, without_memory
from stele.log.chain import LOG_ID
from stele.log.codec import encode_epoch
from stele.log.errors import OffsetGoneError
from stele.log.fold import Start
from stele.log.history import LARGE_BYTES, Bounds, EpochNotFoundError, History, Winner
from stele.log.history import with_decoded as tell
from stele.log.port import Record
from tests.domain.history import History as Story
from tests.domain.history import three_nodes
from tests.log.memory import MemoryLog, MemoryPartition


class CountingLog(MemoryLog):
    """Counts how many records are read back."""

    def __init__(self, partition: MemoryPartition) -> None:
        super().__init__(partition)
        self.records_read = 0

    async def read(self, offset: int, limit: int) -> list[Record]:
        found = await super().read(offset, limit)
        self.records_read += len(found)
        return found


SMALL = Bounds(mark_every=5, marks=8, images=4, recent_records=20, read_records=7)
"""A few hundred epochs go past all of them."""


def history_of(story: Story, bounds: Bounds = SMALL) -> tuple[History, CountingLog]:
    """Return a history of the story, with a loser after each third winner."""
    partition = MemoryPartition()
    log = CountingLog(partition)
    history = History(log, bounds=bounds)
    for epoch, image in zip(story.epochs, story.images[1:], strict=True):
        value = encode_epoch(epoch)
        history.add(partition.append(value).offset, value, image)
        if epoch.epoch % 3 == 0:
            partition.append(value)
    return history, log


def same_state(one: Image, two: Image) -> bool:
    """Compare without the memory of decided requests, which images of the past leave out."""
    return without_memory(one) == without_memory(two)


@pytest.fixture(scope="module")
def long() -> Story:
    story, _ = three_nodes()
    for n in range(300):
        story.apply(SetSetting(f"s{n % 7}", str(n)))
    return story


async def test_the_image_at_any_epoch_is_exact(long: Story) -> None:
    history, _ = history_of(long)
    for epoch in [*range(60), *range(len(long.images) - 1, 0, -37)]:
        found: Image = await history.image_at(epoch)
        assert same_state(found, long.images[epoch])


async def test_epochs_are_read_from_any_position(long: Story) -> None:
    history, _ = history_of(long)
    for first in (1, 2, 17, 100, history.newest - 25, history.newest - 3, history.newest):
        for limit in (1, 3, 50):
            found = await history.epochs(first, limit)
            assert found == long.epochs[first - 1 : first - 1 + limit]
    assert (await history.epoch(42)) == long.epochs[41]


async def test_record_of_another_log_is_not_in_the_history(long: Story) -> None:
    """Even where it follows the same state as a winner."""
    partition = MemoryPartition()
    history = History(MemoryLog(partition), bounds=SMALL)
    for epoch, image in zip(long.epochs, long.images[1:], strict=True):
        value = encode_epoch(epoch)
        if epoch.epoch > 1:
            partition.append(value[: LOG_ID.start] + bytes([255] * 16) + value[LOG_ID.stop :])
        history.add(partition.append(value).offset, value, image)
    assert await history.epochs(1, 50) == long.epochs[:50]
    assert same_state(await history.image_at(43), long.images[43])


async def test_recent_epochs_are_not_read_back(long: Story) -> None:
    history, log = history_of(long)
    await history.epochs(history.newest - 10, 10)
    await history.image_at(history.newest)
    assert log.records_read == 0
    assert history.recent(history.newest - 5) == long.epochs[-6]
    assert history.recent(3) is None


async def test_memory_stays_bounded(long: Story) -> None:
    history, _ = history_of(long)
    assert len(history._recent) <= 20
    assert len(history._marks) <= 8
    assert len(history._images) <= 4
    assert history._images[0].image.epoch == 0


async def test_memory_is_bounded_in_bytes(long: Story) -> None:
    history, _ = history_of(long, SMALL._replace(recent_bytes=1000))
    assert sum(len(winner.value) for winner in history._recent) <= 1000


async def test_unknown_epochs_raise_an_error_with_the_newest_epoch(long: Story) -> None:
    history, _ = history_of(long)
    with pytest.raises(EpochNotFoundError) as caught:
        await history.image_at(history.newest + 1)
    assert caught.value.newest == history.newest
    assert await history.epochs(history.newest + 1, 5) == []
    with pytest.raises(EpochNotFoundError):
        await history.epoch(history.newest + 1)
    with pytest.raises(EpochNotFoundError):
        await history.epochs(0, 5)


async def test_history_after_a_snapshot_knows_its_oldest_epoch(long: Story) -> None:
    partition = MemoryPartition()
    for epoch in long.epochs:
        partition.append(encode_epoch(epoch))
    history = History(MemoryLog(partition), long.images[100], 100, SMALL)
    for number in range(100, 160):
        record = partition.records[number]
        history.add(record.offset, record.value, long.images[number + 1])
    assert same_state(await history.image_at(100), long.images[100])
    assert same_state(await history.image_at(120), long.images[120])
    assert await history.epochs(101, 2) == long.epochs[100:102]
    with pytest.raises(EpochNotFoundError):
        await history.image_at(99)
    with pytest.raises(EpochNotFoundError):
        await history.epochs(100, 1)


class OlderOfStory:
    """An archive of the story, with a snapshot of each 40th epoch. It returns at most 31 epochs at once."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.asked = list[tuple[int, int]]()

    async def winners(self, first: int, last: int) -> list[Winner]:
        self.asked.append((first, last))
        found = self._story.epochs[first - 1 : min(last, first + 30)]
        return [Winner(e.epoch, e.epoch - 1 + (e.epoch - 1) // 3, encode_epoch(e)) for e in found]

    async def start(self, epoch: int) -> Start:
        return Start(self._story.images[epoch // 40 * 40], 0)


class TruncatedLog(MemoryLog):
    """A log without its first records."""

    begin = 0

    async def read(self, offset: int, limit: int) -> list[Record]:
        if offset < self.begin:
            raise OffsetGoneError(offset, f"the topic begins at {self.begin}")
        return await super().read(offset, limit)


async def test_epochs_before_a_snapshot_or_truncation_come_from_the_archive(
    long: Story,
) -> None:
    partition, older = MemoryPartition(), OlderOfStory(long)
    log = TruncatedLog(partition)
    began = 100
    history = History(log, long.images[began], 133, SMALL, older)
    for epoch, image in zip(long.epochs, long.images[1:], strict=True):
        value = encode_epoch(epoch)
        offset = partition.append(value).offset
        if epoch.epoch % 3 == 0:
            partition.append(value)
        if epoch.epoch > began:
            history.add(offset, value, image)
    for begin in (0, 150, 300):
        log.begin = begin
        for at in (0, 1, 39, 40, 41, began - 1, began, began + 1, 150, 200, len(long.epochs)):
            assert same_state(await history.image_at(at), long.images[at])
        for first in (1, 60, began - 3, began + 1, 180):
            found = await history.epochs(first, 25)
            assert found == long.epochs[first - 1 : first + 24]
    assert history.oldest == 0
    assert max(first for first, _ in older.asked) > began, "the topic did not have it any more"


@pytest.mark.parametrize("where", ["in between", "at the beginning"])
async def test_archive_of_another_history_is_refused(long: Story, where: str) -> None:
    """Such as a replica that kept epochs given up by a recovery beside those that followed."""
    other, _ = three_nodes()
    other.at_ms += 1
    for n in range(120):
        assert other.apply(SetSetting("another", str(n))) is None
    began, cut = 100, 60 if where == "in between" else 0
    other.epochs[:cut] = long.epochs[:cut]
    history = History(
        MemoryLog(MemoryPartition()), long.images[began], 133, SMALL, OlderOfStory(other)
    )
    history.add(134, encode_epoch(long.epochs[began]), long.images[began + 1])
    with pytest.raises(TimeoutError, match="another history"):
        await history.epochs(1, began)
    with pytest.raises(TimeoutError, match="another history"):
        await history.epochs(cut or 1, began + 1 - (cut or 1))


async def test_epochs_before_the_beginning_need_an_archive(long: Story) -> None:
    history = History(MemoryLog(MemoryPartition()), long.images[100], 133, SMALL)
    with pytest.raises(EpochNotFoundError):
        await history.epochs(100, 1)
    with pytest.raises(EpochNotFoundError):
        await history.image_at(99)


class BehindLog(MemoryLog):
    """A broker without the newest records."""

    async def read(self, offset: int, limit: int) -> list[Record]:
        return []


async def test_missing_broker_answer_is_a_timeout_and_not_a_missing_epoch(long: Story) -> None:
    history, log = history_of(long)
    history._log = BehindLog(log._partition)
    assert history._from_recent(5, 1) is None
    for asked in (history.epoch(5), history.image_at(6), history.epochs(5, 2)):
        with pytest.raises(TimeoutError, match="did not give epoch"):
            await asked


async def test_large_epochs_are_processed_in_a_thread() -> None:
    story, _ = three_nodes()
    value = encode_epoch(story.epochs[-1])
    few, many = [Winner(1, 0, value)], [Winner(1, 0, value)] * (LARGE_BYTES // len(value) + 1)
    assert await tell(few, lambda epochs: (len(epochs), threading.get_ident())) == (
        1,
        threading.get_ident(),
    )
    count, thread = await tell(many, lambda epochs: (len(epochs), threading.get_ident()))
    assert count == len(many) and thread != threading.get_ident()
