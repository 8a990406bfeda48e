"""A replay takes from archives what the topic lacks. Each epoch counts once, and no loser wins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from stele.domain.commands import SetSetting
from stele.domain.image import EMPTY
from stele.domain.snapshot import state_hash
from stele.log.archive.archive import archived
from stele.log.archive.container import Archived, NotArchivedError
from stele.log.archive_store import source as replay_rules
from stele.log.archive_store.source import (
    LocalSource,
    Replayed,
    first_epoch,
    fold_archive_and_topic,
    fold_topic,
)
from stele.log.codec import encode_epoch
from stele.log.errors import CorruptRecordError, LostWinnersError
from stele.log.fold import Fold
from stele.log.port import Record
from tests.domain.epochs import History as Story
from tests.domain.history import three_nodes
from tests.log.archive.story import long_story
from tests.log.archive_store.made import Made, record_of

LAST = 80
NEW = bytes([0xC0] * 16)
KEPT = 6


class Topic:
    """The rest of a topic: holes, and nothing before ``begin``."""

    def __init__(self, records: Sequence[Record], begin: int = 0) -> None:
        self.records = [record for record in records if record.offset >= begin]
        self.begin = begin
        self.end = records[-1].offset + 1
        self.asked = list[int]()

    async def read(self, offset: int, limit: int) -> list[Record]:
        assert offset >= self.begin
        self.asked.append(offset)
        return [record for record in self.records if record.offset >= offset][: min(limit, 7)]


def with_losers(story: Story) -> list[Record]:
    """Return records at the offsets of ``record_of``, with a loser before each third winner."""
    records = list[Record]()
    for epoch in story.epochs:
        record = record_of(epoch)
        if epoch.epoch % 3 == 0:
            records.append(Record(record.offset - 1, story_loser(story, epoch.epoch)))
        records.append(Record(record.offset, record.value))
    return sorted(records)


def story_loser(story: Story, epoch: int) -> bytes:
    """Return a record that gives another outcome to the decided epoch before."""
    before = story.epochs[epoch - 2]
    return encode_epoch(before)[:16] + bytes([7] * 16) + encode_epoch(before)[32:]


async def replay(made: Made, topic: Topic, last: int | None = None) -> Replayed:
    source = LocalSource(made.archive, lambda: made.about)
    return await fold_archive_and_topic(source, topic, topic.begin, topic.end, last)


@pytest.mark.parametrize("archived_to", [40, 60, LAST])
@pytest.mark.parametrize("begin", [1, 30, 44, 51])
async def test_replay_reads_the_archive_and_then_the_truncated_topic(
    tmp_path: Path, begin: int, archived_to: int
) -> None:
    story = long_story()
    made, topic = Made(tmp_path, archived_to, story=story), Topic(with_losers(story), begin)
    found = await replay(made, topic)
    assert state_hash(found.fold.image) == state_hash(story.image)
    assert found.fold.image.epoch == LAST
    assert found.archived <= archived_to
    assert found.fold.next_offset == topic.end
    plain = await fold_topic(Fold(), Topic(with_losers(story)), 0, topic.end)
    assert found.fold.losers < plain.losers


@pytest.mark.parametrize("last", [3, 40, 41, 79])
async def test_replay_stops_at_the_requested_epoch_in_archive_or_topic(
    tmp_path: Path, last: int
) -> None:
    story = long_story()
    made, topic = Made(tmp_path, 60, story=story), Topic(with_losers(story), 50)
    found = await replay(made, topic, last)
    assert found.fold.image.epoch == last
    assert state_hash(found.fold.image) == state_hash(story.images[last])


@pytest.mark.parametrize("archived_to", [KEPT, KEPT + 1, KEPT + 3])
async def test_a_recovered_log_is_replayed_through_its_recovery(
    tmp_path: Path, archived_to: int
) -> None:
    story: Story = three_nodes()[0]
    story.recover(NEW, KEPT)
    for number in range(3):
        assert story.apply(SetSetting("colour", str(number))) is None
    made = Made(tmp_path, KEPT, snapshots=(), story=story)
    new = [Record(n, encode_epoch(epoch)) for n, epoch in enumerate(story.epochs[KEPT:])]
    for (offset, value), epoch in zip(new, story.epochs[KEPT:archived_to], strict=False):
        made.archive.segments.add(archived(offset, value, epoch))
    made.archive.segments.sync()
    topic = Topic(new)
    assert await first_epoch(topic, 0) == KEPT + 1
    found = await replay(made, topic)
    assert found.archived == archived_to
    assert found.fold.image.log_id == NEW
    assert state_hash(found.fold.image) == state_hash(story.image)


async def test_replay_does_not_continue_with_records_of_an_older_log(tmp_path: Path) -> None:
    """The topic was rolled back to epoch 3, and the log was recovered as of epoch 6."""
    story: Story = three_nodes()[0]
    story.recover(NEW, KEPT)
    assert story.apply(SetSetting("colour", "1")) is None
    made = Made(tmp_path, 3, snapshots=(), story=story)
    made.go_on(KEPT + 1)
    left = [Record(*record_of(epoch)[1::2]) for epoch in story.epochs[:3]]
    new = [Record(100 + n, encode_epoch(epoch)) for n, epoch in enumerate(story.epochs[KEPT:])]

    class InSmallParts(LocalSource):
        async def records(self, first: int, last: int) -> list[Archived]:
            return (await super().records(first, last))[:1]

    topic = Topic([*left, *new])
    source = InSmallParts(made.archive, lambda: made.about)
    found = await fold_archive_and_topic(source, topic, 0, topic.end)
    assert state_hash(found.fold.image) == state_hash(story.image)


async def test_replay_fails_when_topic_and_archive_lack_epochs(tmp_path: Path) -> None:
    story = long_story()
    made = Made(tmp_path, 40, story=story)
    with pytest.raises(LostWinnersError):
        await replay(made, Topic(with_losers(story), 70))


async def test_replay_needs_an_archive_from_epoch_1(tmp_path: Path) -> None:
    story = long_story()
    made = Made(tmp_path, 60, first=20, story=story)
    with pytest.raises(NotArchivedError):
        await replay(made, Topic(with_losers(story), 50))


class Repeating(LocalSource):
    """A source that returns an epoch twice."""

    async def records(self, first: int, last: int) -> list[Archived]:
        found = await super().records(first, last)
        return [found[0], *found]


class OldReads(Topic):
    """Every second read returns nothing, as from a leader with an outdated end."""

    async def read(self, offset: int, limit: int) -> list[Record]:
        found = await super().read(offset, limit)
        return found if len(self.asked) % 2 == 0 else []


async def test_empty_reads_before_the_end_do_not_end_a_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_rules, "ASK_AGAIN_S", 0.0)
    story = long_story()
    topic = OldReads(with_losers(story))
    assert (await fold_topic(Fold(), topic, 0, topic.end)).image.epoch == LAST
    with pytest.raises(TimeoutError, match=f"ends at {topic.end + 1}, and gives nothing from"):
        await fold_topic(Fold(), topic, 0, topic.end + 1)


async def test_archive_with_a_repeated_epoch_is_refused(tmp_path: Path) -> None:
    made = Made(tmp_path, 40)
    topic = Topic(with_losers(made.story), 50)
    source = Repeating(made.archive, lambda: made.about)
    with pytest.raises(CorruptRecordError, match="epoch 1 of the archive does not follow"):
        await fold_archive_and_topic(source, topic, topic.begin, topic.end)


async def test_an_empty_topic_has_no_first_epoch() -> None:
    story = long_story()
    topic = Topic(with_losers(story), 1000)
    assert await first_epoch(topic, 1000) == 0
    assert (await fold_topic(Fold(), topic, topic.begin, topic.end)).image == EMPTY
