"""A recovered log: which readers stop at its first record, which continue, and where new readers begin."""

from __future__ import annotations

import msgspec
import pytest

from stele.domain.commands import SetSetting
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY_FOR_FOLLOWERS
from stele.log.chain import FROZEN_BYTES
from stele.log.codec import encode_epoch
from stele.log.errors import (
    CorruptRecordError,
    LogError,
    NoBeginningError,
    RecoveredError,
    UnknownSchemaError,
)
from stele.log.fold import Fold, Start
from stele.log.follower import LogFollower
from stele.log.history import History
from stele.log.port import Record
from stele.log.recovery import first_recovery, start_after, states_of
from stele.placements.fold import FRESH, RecordJudge
from tests.domain.epochs import History as Story
from tests.domain.history import three_nodes
from tests.log.memory import MemoryLog, MemoryPartition
from tests.polling import until

OLDER, NEW, NEWER = (bytes([number] * 16) for number in (0x00, 0xC0, 0xC1))
KEPT = 6
"""Epochs that are left when the log is lost."""

replace = msgspec.structs.replace


class Recovered:
    """A log that was recovered after its first epochs.

    ``old`` has all its records, ``first`` begins the recovered log, and ``later`` follow it.
    """

    def __init__(self, last_epoch: int = KEPT) -> None:
        self.story: Story = three_nodes()[0]
        self.images = [*self.story.images]
        self.old = [encode_epoch(epoch) for epoch in self.story.epochs]
        self.epoch: Epoch = self.story.recover(NEW, last_epoch)
        self.first = encode_epoch(self.epoch)
        for number in range(3):
            assert self.story.apply(SetSetting("colour", str(number))) is None
        self.later = [encode_epoch(epoch) for epoch in self.story.epochs[last_epoch + 1 :]]

    def fold(self, epochs: int, across_recoveries: bool = False) -> Fold:
        """Return a fold of this number of epochs of the old log."""
        fold = Fold(EMPTY_FOR_FOLLOWERS, across_recoveries=across_recoveries)
        for offset, value in enumerate(self.old[:epochs]):
            fold.offer(offset, value)
        return fold


@pytest.fixture(scope="module")
def log() -> Recovered:
    return Recovered()


# A reader of the old log.


def test_reader_stops_at_a_recovery_and_names_its_extra_epochs(
    log: Recovered,
) -> None:
    fold = log.fold(KEPT + 2)
    with pytest.raises(RecoveredError) as caught:
        fold.offer(KEPT + 2, log.first)
    text, image = str(caught.value), log.images[KEPT]
    assert f"log {image.log_id.hex()} was recovered here, and continues after epoch {KEPT}" in text
    assert f"as log {NEW.hex()}" in text
    assert f"Epochs {KEPT + 1} to {KEPT + 2}, which this process had read, are not in it" in text
    assert "start from a snapshot: restart this process" in text
    assert caught.value.recovered == log.epoch.facts[0]
    assert (fold.image.epoch, fold.next_offset, fold.chain.strays) == (KEPT + 2, KEPT + 2, 0)


@pytest.mark.parametrize("read", [KEPT - 2, KEPT])
def test_reader_without_extra_epochs_stops_at_a_recovery(log: Recovered, read: int) -> None:
    with pytest.raises(RecoveredError) as caught:
        log.fold(read).offer(read, log.first)
    assert "had read" not in str(caught.value)


def test_recovery_error_names_a_different_epoch_of_the_same_number(log: Recovered) -> None:
    fold = log.fold(KEPT - 1)
    other = replace(log.story.epochs[KEPT - 1], state_id=bytes([1] * 16))
    assert fold.offer(KEPT - 1, encode_epoch(other)) is not None
    with pytest.raises(
        RecoveredError, match=f"Its epoch {KEPT} is another one than this process had"
    ):
        fold.offer(KEPT, log.first)


def test_only_a_log_recovered_fact_makes_a_recovery(log: Recovered) -> None:
    """Records of later and older logs without the fact, and a recovery of a log from before this one."""
    fold = log.fold(KEPT)
    for record in (
        replace(log.epoch, facts=()),
        replace(log.epoch, log_id=NEWER),
        replace(log.epoch, log_id=OLDER),
    ):
        assert fold.offer(fold.next_offset, encode_epoch(record)) is None
    (fact,) = log.epoch.facts
    of_another = replace(log.epoch, facts=(replace(fact, from_log_id=OLDER.hex()),))
    assert fold.offer(fold.next_offset, encode_epoch(of_another)) is None
    assert fold.chain.strays == 4
    assert fold.offer(fold.next_offset, log.old[KEPT]) is not None


def test_recovery_of_a_descendant_log_stops_a_reader(log: Recovered) -> None:
    """The record that links the two logs is lost."""
    (fact,) = log.epoch.facts
    next_one = replace(
        log.epoch,
        log_id=NEWER,
        facts=(replace(fact, from_log_id=NEW.hex(), log_id=NEWER.hex()),),
    )
    with pytest.raises(RecoveredError, match=f"log {NEW.hex()} was recovered here"):
        log.fold(KEPT).offer(KEPT, encode_epoch(next_one))


def test_unreadable_later_log_may_be_a_recovery(log: Recovered) -> None:
    unknown = b"\xc3\x01" + bytes(8) + log.first[10:]
    with pytest.raises(UnknownSchemaError, match=f"of log {NEW.hex()}, a later one.* Upgrade"):
        log.fold(KEPT).offer(KEPT, unknown)
    older = encode_epoch(replace(log.epoch, log_id=OLDER))
    assert log.fold(KEPT).offer(KEPT, b"\xc3\x01" + bytes(8) + older[10:]) is None
    founding = b"\xc3\x01" + bytes(8) + encode_epoch(replace(log.epoch, epoch=1))[10:]
    assert log.fold(KEPT).offer(KEPT, founding) is None
    assert log.fold(KEPT).offer(KEPT, log.first[:FROZEN_BYTES]) is None


def test_new_reader_does_not_begin_at_a_later_epoch(log: Recovered) -> None:
    for value in (log.first, log.later[0], log.old[4]):
        fold = Fold()
        with pytest.raises(NoBeginningError, match=r"log should begin\. Begin with a snapshot"):
            fold.offer(0, value)
        assert fold.next_offset == 0


def test_spark_job_continues_only_from_the_recovered_state(log: Recovered) -> None:
    judge = RecordJudge(FRESH, certain=100)
    for offset, value in enumerate((*log.old[:KEPT], log.first, log.old[KEPT], *log.later)):
        judge.offer(offset, value)
    assert judge.stopped is None
    assert (judge.head.epoch, judge.head.log_id, judge.head.strays) == (
        log.story.image.epoch,
        NEW,
        1,
    )
    unproven = RecordJudge(FRESH, certain=KEPT)
    for offset, value in enumerate((*log.old[:KEPT], log.first)):
        unproven.offer(offset, value)
    assert unproven.stray is not None and unproven.stray.log_id == NEW
    behind = RecordJudge(FRESH, certain=100)
    for offset, value in enumerate((*log.old[: KEPT + 1], log.first, *log.later)):
        behind.offer(offset, value)
    assert isinstance(behind.stopped, RecoveredError)
    assert "continues with a snapshot" in str(behind.stopped)
    assert (behind.head.epoch, behind.head.next_offset) == (KEPT + 1, KEPT + 1)
    fresh = RecordJudge(FRESH)
    fresh.offer(0, log.first)
    assert isinstance(fresh.stopped, NoBeginningError)


# Readers in their event loop: first the anchor, then the record.


def follower_of(partition: MemoryPartition, start: Start | None = None) -> LogFollower:
    log = MemoryLog(partition)
    follower = LogFollower(log) if start is None else LogFollower(log, start)
    follower.start()
    return follower


async def test_a_running_reader_of_the_old_log_stops_at_its_recovery(log: Recovered) -> None:
    """Its own log ended there, in the same topic. Later records of an old writer are ignored."""
    partition = MemoryPartition()
    for value in log.old[: KEPT + 1]:
        partition.append(value)
    follower = follower_of(partition)
    assert (await follower.wait_for_end()).epoch == KEPT + 1
    writer = MemoryLog(partition)
    writer.append(log.first)
    writer.append(log.old[KEPT + 1])
    await until(lambda: follower.failure, "the reader to stop")
    assert isinstance(follower.failure, RecoveredError)
    assert (follower.image.epoch, follower.fold.chain.strays) == (KEPT + 1, 0)
    with pytest.raises(RecoveredError):
        await follower.wait_for_end()
    from_the_beginning = follower_of(partition)
    await until(lambda: from_the_beginning.failure, "a reader of the whole topic to stop")
    assert isinstance(from_the_beginning.failure, RecoveredError)
    assert from_the_beginning.image.epoch == KEPT + 1


async def test_reader_without_a_snapshot_stops_at_a_recovered_log(log: Recovered) -> None:
    partition = MemoryPartition()
    partition.append(log.first)
    follower = follower_of(partition)
    await until(lambda: follower.failure, "the reader to stop")
    assert isinstance(follower.failure, NoBeginningError)


@pytest.mark.parametrize("anew", [True, False], ids=["new topic", "in place"])
async def test_reader_of_a_recovered_log_skips_old_records(log: Recovered, *, anew: bool) -> None:
    partition = MemoryPartition()
    for value in () if anew else log.old[: KEPT + 3]:
        partition.append(value)
    recovery = partition.append(log.first)
    start = start_after(log.images[KEPT], recovery)
    assert (start.image.epoch, start.image.log_id) == (KEPT + 1, NEW)
    assert start.anchor is not None and start.anchor.offset == recovery.offset
    assert start.next_offset == recovery.offset + 1
    follower = follower_of(partition, start)
    writer = MemoryLog(partition)
    for value in (log.old[KEPT], log.later[0], log.old[KEPT + 1], log.old[KEPT], *log.later[1:]):
        writer.append(value)
    image = await follower.wait_for_end()
    assert (image.epoch, image.state_id) == (log.story.image.epoch, log.story.image.state_id)
    assert (follower.fold.chain.strays, follower.failure) == (3, None)


async def test_recovered_log_is_read_only_in_its_own_topic(log: Recovered) -> None:
    partition = MemoryPartition()
    story = three_nodes()[0]
    first = story.recover(NEW, KEPT, partition.topic_id)
    start = start_after(log.images[KEPT], partition.append(encode_epoch(first)))
    assert start.image.topic_id == partition.topic_id
    assert (await follower_of(partition, start).wait_for_end()).epoch == KEPT + 1
    elsewhere = MemoryPartition()
    elsewhere.append(encode_epoch(first))
    with pytest.raises(LogError, match="the topic is another one"):
        await follower_of(elsewhere, start).wait_for_end()


# Replays of the past cross a recovery.


def test_replay_crosses_a_recovery_from_its_own_state(log: Recovered) -> None:
    fold = log.fold(KEPT, across_recoveries=True)
    for value in (log.first, *log.later):
        assert fold.offer(fold.next_offset, value) is not None
    assert fold.image == log.story.image
    for read in (KEPT - 1, KEPT + 1):
        with pytest.raises(RecoveredError):
            log.fold(read, across_recoveries=True).offer(read, log.first)


async def test_past_of_a_recovered_log_is_readable(log: Recovered) -> None:
    partition = MemoryPartition()
    history = History(MemoryLog(partition))
    values = (*log.old[:KEPT], log.first, *log.later)
    for value, image in zip(values, log.story.images[1:], strict=True):
        history.add(partition.append(value).offset, value, image)
    history._recent.clear()
    for epoch in (KEPT - 1, KEPT, KEPT + 1, KEPT + 2):
        found = await history.image_at(epoch)
        assert found.log_id == (NEW if epoch > KEPT else log.images[1].log_id)
        assert found.state_id == log.story.images[epoch].state_id
    found_epochs = await history.epochs(1, 100)
    assert [epoch.epoch for epoch in found_epochs] == [*range(1, len(values) + 1)]


# Functions of the recovery itself.


def test_first_recovery_in_the_log_counts(log: Recovered) -> None:
    second = encode_epoch(Recovered(KEPT + 1).story.epochs[KEPT + 1])
    values = (*log.old[: KEPT + 1], log.first, second)
    records = [Record(offset, value) for offset, value in enumerate(values)]
    log_id = log.images[1].log_id
    assert first_recovery(records, log_id) == records[KEPT + 1]
    assert first_recovery(records[: KEPT + 1], log_id) is None
    assert first_recovery(records, NEW) is None


def test_start_after_a_recovery_needs_the_last_image(log: Recovered) -> None:
    recovery = Record(9, log.first)
    with pytest.raises(RecoveredError):
        start_after(log.images[KEPT - 1], recovery)
    with pytest.raises(ValueError, match="offset 9 is no recovery"):
        start_after(log.images[KEPT], Record(9, log.old[KEPT]))
    with pytest.raises(ValueError, match="offset 9 is no recovery"):
        start_after(log.story.image, recovery)


def test_states_of_winners_include_the_epoch_before_them(log: Recovered) -> None:
    records = [Record(offset, value) for offset, value in enumerate(log.old)]
    states = states_of(records[3:6])
    assert states == {epoch: log.images[epoch].state_id for epoch in (3, 4, 5, 6)}
    with pytest.raises(CorruptRecordError, match="epoch 6 does not follow"):
        states_of((records[3], records[5]))
    with pytest.raises(CorruptRecordError, match="epoch 4 does not follow"):
        states_of((records[3], records[3]))
