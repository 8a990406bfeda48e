"""A reader detects what it missed, and acknowledges nothing while in doubt (docs/design.md, rule 11)."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from stele.domain.image import Image
from stele.domain.model.cluster import ClusterImage
from stele.log import reader as rules
from stele.log.archive.archive import archived, folded, with_places
from stele.log.codec import encode_epoch
from stele.log.errors import (
    AnchorLostError,
    LostWinnersError,
    OffsetGoneError,
    OtherHistoryError,
)
from stele.log.fold import BEGINNING
from stele.log.follower import Floor, LogFollower
from stele.log.port import Record, TopicProbe
from tests.domain.history import three_nodes
from tests.log.memory import MemoryLog, MemoryPartition
from tests.polling import until

TIMEOUT_S = 240.0
OTHER_LOG = bytes([5] * 16)


def records() -> list[bytes]:
    return [encode_epoch(epoch) for epoch in three_nodes()[0].epochs]


class SlowLooks(MemoryLog):
    """Looks wait until the test lets them go, and may fail."""

    def __init__(self, partition: MemoryPartition) -> None:
        super().__init__(partition)
        self.looks = 0
        self.may_look = asyncio.Event()
        self.may_look.set()
        self.error: Exception | None = None
        self.end_told: int | None = None
        self.end_read: int | None = None

    async def read(self, offset: int, limit: int) -> list[Record]:
        found = await super().read(offset, limit)
        return [r for r in found if self.end_read is None or r.offset < self.end_read]

    async def look(self, offset: int | None) -> TopicProbe:
        self.looks += 1
        await self.may_look.wait()
        if self.error is not None:
            raise self.error
        found = await super().look(offset)
        if self.end_told is not None:
            return found._replace(end=self.end_told, value=None)
        return found


class Following:
    """A follower of a partition that holds the first records of a history."""

    def __init__(self, held: int = 6) -> None:
        self.values = records()
        self.partition = MemoryPartition()
        for value in self.values[:held]:
            self.partition.append(value)
        self.log = SlowLooks(self.partition)
        self.strays = list[str]()
        self.follower = LogFollower(self.log, on_stray=lambda _, name: self.strays.append(name))
        self.follower.start()

    async def begin(self) -> LogFollower:
        await self.follower.wait_for_end(TIMEOUT_S)
        return self.follower

    def deliver(self, *records: Record) -> None:
        self.follower._reader._on_records([*records])


async def test_offset_hole_is_read_again() -> None:
    here = Following(held=3)
    follower = await here.begin()
    for value in here.values[3:8]:
        here.partition.records.append(Record(len(here.partition.records), value))
    here.deliver(*here.partition.records[5:8])
    assert follower.image.epoch == 3
    assert (await follower.wait_for_end(TIMEOUT_S)).epoch == 8
    assert follower.failure is None


async def test_permanent_offset_hole_is_skipped() -> None:
    here = Following(held=3)
    follower = await here.begin()
    here.partition.records.append(Record(5, here.values[3]))
    here.deliver(here.partition.records[-1])
    await until(lambda: follower.image.epoch == 4, "the record after the hole to be applied")
    assert follower.fold.next_offset == 6


async def test_offset_hole_is_not_skipped_while_the_reported_end_is_old() -> None:
    """The missing record may be the winner, and the one that was delivered its loser."""
    here = Following(held=3)
    follower = await here.begin()
    for value in here.values[3:5]:
        here.partition.records.append(Record(len(here.partition.records), value))
    here.log.end_read = 3
    here.deliver(here.partition.records[4])
    await until(
        lambda: "not read again" in follower._reader._failed_look or follower.fold.next_offset > 3,
        "the old end to be noticed, or believed",
    )
    assert (follower.fold.next_offset, follower.image.epoch) == (3, 3)
    assert follower.is_suspended
    here.log.end_read = None
    await until(lambda: follower.image.epoch == 5, "both records to be applied")


async def test_different_record_behind_a_hole_stops_the_reader() -> None:
    here = Following(held=3)
    follower = await here.begin()
    for value in here.values[3:5]:
        here.partition.records.append(Record(len(here.partition.records), value))
    here.deliver(Record(4, here.values[3]))
    await until(lambda: follower.failure, "the reader to stop")
    assert "another record stands at offset 4" in str(follower.failure)


async def test_records_are_held_back_during_a_doubt() -> None:
    here = Following(held=3)
    follower = await here.begin()
    here.log.may_look.clear()
    follower._reader.suspect("a test")
    here.log.append(here.values[3])
    waiting = asyncio.create_task(follower.wait_for_end(TIMEOUT_S))
    await until(lambda: follower._reader._held, "the record to be held back")
    assert follower.image.epoch == 3
    assert not waiting.done()
    here.log.may_look.set()
    assert (await waiting).epoch == 4


async def test_new_doubt_is_not_reported_as_trouble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise every doubt would make the process unhealthy, and supervisors would restart it."""
    monkeypatch.setattr(rules, "QUIET_S", 60.0)
    here = Following()
    follower = await here.begin()
    here.log.may_look.clear()
    follower._reader.suspect("a test")
    assert (follower.is_suspended, follower.trouble) == (True, "")
    monkeypatch.setattr(rules, "QUIET_S", 0.0)
    assert "(a test)" in follower.trouble


async def test_certain_waits_for_the_end_of_a_doubt() -> None:
    here = Following()
    follower = await here.begin()
    await follower._reader.wait_until_resolved()
    here.log.may_look.clear()
    follower._reader.suspect("a test")
    waiting = asyncio.create_task(follower._reader.wait_until_resolved())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    here.log.may_look.set()
    await waiting
    assert not follower.is_suspended


async def test_recreated_topic_stops_the_reader_with_log_epoch_and_offset() -> None:
    here = Following()
    follower = await here.begin()
    here.partition.recreate()
    with pytest.raises(AnchorLostError) as caught:
        await follower.wait_for_end(TIMEOUT_S)
    text = str(caught.value)
    assert "offset 5" in text
    assert "epoch 6" in text
    assert follower.log_id.hex() in text
    assert follower.failure is caught.value


async def test_other_bytes_at_the_anchor_stop_the_reader() -> None:
    here = Following()
    follower = await here.begin()
    here.partition.records[5] = Record(5, here.values[4])
    with pytest.raises(AnchorLostError, match="another record is there"):
        await follower.wait_for_end(TIMEOUT_S)


async def test_lost_last_winner_is_noticed_on_a_quiet_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(rules, "SHORT_LOG_S", 0.3)
    monkeypatch.setattr(rules, "RETRY_S", 0.05)
    monkeypatch.setattr(rules, "TICK_S", 0.05)
    monkeypatch.setattr(rules, "LONGEST_WITHOUT_LOOK_S", 600.0)
    here = Following()
    follower = await here.begin()
    here.partition.truncate(5)
    await until(lambda: follower.failure, "the reader to stop")
    assert isinstance(follower.failure, AnchorLostError)
    assert "it is gone" in str(follower.failure)


def test_loss_is_noticed_within_ten_seconds() -> None:
    assert rules.LOOK_EVERY_S + rules.TICK_S + rules.QUIET_S < 10
    assert rules.LONGEST_WITHOUT_LOOK_S + rules.QUIET_S < 10


async def test_old_end_of_a_replaced_leader_is_a_doubt_and_not_a_loss() -> None:
    here = Following()
    follower = await here.begin()
    here.log.end_told = 3
    with pytest.raises(TimeoutError, match="before the last winner"):
        await follower.wait_for_end(TIMEOUT_S)
    assert follower.failure is None
    assert follower._reader.is_suspended
    here.log.end_told = None
    assert (await follower.wait_for_end(TIMEOUT_S)).epoch == 6
    await until(lambda: not follower._reader.is_suspended, "the doubt to end")


async def test_old_end_counts_as_a_loss_only_after_steady_observation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In between, this process was stopped, or no broker answered."""
    here = Following()
    follower = await here.begin()
    reader, anchor = follower._reader, follower.fold.chain.anchor
    assert anchor is not None
    now_s = 1000.0
    monkeypatch.setattr(rules, "time", SimpleNamespace(monotonic=lambda: now_s))
    look = TopicProbe(reader.topic_id, anchor.offset, None)
    for away_s in (0.0, 60.0, 60.0):
        now_s += away_s
        with pytest.raises(TimeoutError, match="before the last winner"):
            reader._compare(anchor, look)
    for _ in range(8):
        with pytest.raises(TimeoutError, match="before the last winner"):
            reader._compare(anchor, look)
        now_s += 0.5
    with pytest.raises(AnchorLostError):
        reader._compare(anchor, look)


def _stray(value: bytes) -> bytes:
    return value[:42] + OTHER_LOG + value[58:]


async def test_strays_do_not_stop_the_reader_and_share_one_look() -> None:
    here = Following(held=3)
    follower = await here.begin()
    looks = here.log.looks
    here.log.may_look.clear()
    for value in (*map(_stray, here.values[3:8]), here.values[3]):
        here.log.append(value)
    await until(lambda: len(follower._reader._held) == 6, "all records to be held back")
    here.log.may_look.set()
    assert (await follower.wait_for_epoch(4, TIMEOUT_S)).epoch == 4
    assert (follower.fold.chain.strays, follower.failure) == (5, None)
    assert here.strays == ["ada from -"] * 2 + ["coordinator from -"] * 3
    assert here.log.looks - looks <= 2


async def test_stray_in_a_recreated_topic_stops_the_reader() -> None:
    here = Following(held=3)
    follower = await here.begin()
    here.partition.recreate()
    for value in here.values[:5]:
        here.log.append(_stray(value))
    await until(lambda: follower.failure, "the reader to stop")
    assert isinstance(follower.failure, AnchorLostError)
    assert (follower.image.epoch, follower.fold.chain.strays) == (3, 0)


async def test_stray_that_came_during_a_look_is_skipped_by_the_next_look() -> None:
    """The broker's answer may be older than the record."""
    here = Following(held=3)
    follower = await here.begin()
    here.log.may_look.clear()
    looks = here.log.looks
    follower._reader.suspect("a test")
    await until(lambda: here.log.looks > looks, "the look to begin")
    here.log.append(_stray(here.values[3]))
    await until(lambda: follower._reader._held, "the stray to be held back")
    here.log.may_look.set()
    await until(lambda: follower.fold.chain.strays, "the stray to be skipped")
    assert here.log.looks - looks == 2


async def test_winners_hidden_by_an_old_end_keep_the_reader_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "RETRY_S", 0.01)
    monkeypatch.setattr(rules, "SHORT_LOG_S", 0.02)
    here = Following()
    follower = await here.begin()
    here.log.end_read, here.log.looks = 3, 0
    follower._reader.suspect("the leader has changed")
    await until(lambda: here.log.looks > 9, "further looks")
    assert follower.is_suspended and follower.failure is None
    here.log.end_read = None
    await until(lambda: not follower.is_suspended, "the doubt to end")
    assert follower.failure is None


async def test_different_record_hidden_by_an_old_end_is_found_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look shows the last winner, appended again at its place, behind records that were lost."""
    monkeypatch.setattr(rules, "RETRY_S", 0.01)
    monkeypatch.setattr(rules, "LOOK_EVERY_S", 600.0)
    here = Following()
    follower = await here.begin()
    held = len(here.partition.records)
    here.log.end_read = held - 2
    here.partition.truncate(held - 2)
    for value in (here.values[0], here.values[held - 1]):
        here.log.append(value)
    await follower._reader._look_regularly()
    assert follower.is_suspended and follower.failure is None
    here.log.end_read = None
    await asyncio.wait_for(follower.failed.wait(), TIMEOUT_S)
    assert isinstance(follower.failure, AnchorLostError)


async def test_hidden_losers_are_waited_for_while_a_leader_may_be_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record in place of a lost one may have won, and an outdated leader hides it."""
    monkeypatch.setattr(rules, "RETRY_S", 0.01)
    monkeypatch.setattr(rules, "LOOK_EVERY_S", 600.0)
    monkeypatch.setattr(rules, "SHORT_LOG_S", 600.0)
    here = Following()
    held = len(here.partition.records)
    here.log.append(here.values[1])
    follower = await here.begin()
    here.log.end_read, here.log.looks = held, 0
    follower._reader.suspect("the leader has changed")
    await until(lambda: here.log.looks > 9, "further looks")
    assert follower.is_suspended and follower.failure is None
    monkeypatch.setattr(rules, "SHORT_LOG_S", 0.02)
    await until(lambda: not follower.is_suspended, "the doubt to end")
    assert follower.failure is None


async def test_witness_of_a_lost_winner_stops_the_reader() -> None:
    here = Following(held=3)
    follower = await here.begin()
    here.log.append(here.values[5])  # its writer had read epochs 4 and 5, which are not there
    await until(lambda: follower.failure, "the reader to stop")
    assert isinstance(follower.failure, LostWinnersError)
    assert "Restore the topic" in str(follower.failure)


async def test_process_that_was_paused_looks_before_it_applies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Following(held=3)
    follower = await here.begin()
    here.log.may_look.clear()
    monkeypatch.setattr(follower._reader._clocks, "elapsed_s", lambda: 1.5)
    here.deliver(Record(3, here.values[3]))
    monkeypatch.undo()
    assert follower.image.epoch == 3
    assert follower._reader.suspicion == "this process was away for 1.5 s"
    here.partition.append(here.values[3])
    here.log.may_look.set()
    await until(lambda: follower.image.epoch == 4, "the record to be applied after the look")


async def test_no_look_for_ten_seconds_is_a_doubt_shown_by_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Following(held=3)
    follower = await here.begin()
    monkeypatch.setattr(rules, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(rules, "LONGEST_WITHOUT_LOOK_S", 0.2)
    monkeypatch.setattr(rules, "QUIET_S", 0.0)
    monkeypatch.setattr(rules, "RETRY_S", 0.02)
    here.log.error = TimeoutError("no leader")
    await until(lambda: "no leader" in follower.trouble, "the trouble to be told")
    assert follower.image.epoch == 3
    assert follower.failure is None
    here.log.error = None
    await until(lambda: not follower.trouble, "the trouble to end")


async def test_steady_reader_does_not_look_for_each_record() -> None:
    here = Following(held=1)
    follower = await here.begin()
    looks = here.log.looks
    for value in here.values[1:]:
        here.log.append(value)
    await follower.wait_for_epoch(len(here.values), TIMEOUT_S)
    assert here.log.looks - looks <= 1


async def test_expired_waiters_are_removed_without_new_records() -> None:
    here = Following()
    follower = await here.begin()
    waits = [follower.wait_for_epoch(10**6, 0.01) for _ in range(100)]
    ends = await asyncio.gather(*waits, return_exceptions=True)
    assert all(isinstance(end, TimeoutError) for end in ends)
    assert not follower._waiters


async def test_restarted_process_waits_for_its_acknowledged_epoch() -> None:
    here = Following(held=4)
    epochs = three_nodes()[0].epochs
    floor = Floor(6, epochs[5].state_id)
    follower = LogFollower(here.log, floor=floor)
    follower.start()
    with pytest.raises(TimeoutError):
        await follower.wait_for_end(0.05)
    assert "acknowledged epoch 6" in follower.trouble
    for value in here.values[4:6]:
        here.log.append(value)
    assert (await follower.wait_for_end(TIMEOUT_S)).epoch == 6
    assert follower.trouble == ""


async def test_process_stops_where_the_log_differs_from_its_acknowledgement() -> None:
    here = Following(held=6)
    follower = LogFollower(here.log, floor=Floor(4, bytes(16)))
    follower.start()
    with pytest.raises(OtherHistoryError, match="epoch 4"):
        await follower.wait_for_end(TIMEOUT_S)


async def test_log_in_another_topic_than_its_founding_is_not_read() -> None:
    here = Following(held=3)
    follower = await here.begin()
    follower.fold.image = Image(founding=ClusterImage(topic_id="the first"), epoch=3)
    with pytest.raises(AnchorLostError, match="not the first"):
        follower._reader.topic_id = ""
        await follower.wait_for_end(TIMEOUT_S)


async def test_reader_without_records_stops_on_a_recreated_topic() -> None:
    """Nothing can be lost, and there is no recovery to wait for."""
    here = Following(held=0)
    follower = await here.begin()
    assert follower._reader.topic_id
    here.partition.recreate()
    with pytest.raises(OffsetGoneError, match="the topic is another one"):
        await follower.wait_for_end(TIMEOUT_S)
    assert isinstance(follower.failure, OffsetGoneError)


@pytest.mark.parametrize("left", [6, 5, 0], ids=["a loser", "a winner", "all"])
async def test_gone_offset_ends_reading_once_the_anchor_shows_the_loss(
    left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the topic still has the last winner, nothing is lost. The process restarts without a recovery."""
    monkeypatch.setattr(rules, "SHORT_LOG_S", 0.2)
    monkeypatch.setattr(rules, "RETRY_S", 0.01)
    following = Following()
    loser = following.values[3]
    following.log.append(loser)
    follower = await following.begin()
    following.partition.truncate(left)
    following.log.error = TimeoutError("no leader")
    follower._reader._on_error(OffsetGoneError(7, "the topic has 0 to 6"))
    await asyncio.sleep(0.1)
    assert follower.failure is None  # the fate of the log is unknown
    following.log.error = None
    await asyncio.wait_for(follower.failed.wait(), TIMEOUT_S)
    expected = OffsetGoneError if left == 6 else AnchorLostError
    assert isinstance(follower.failure, expected)


@pytest.mark.parametrize("noticed_by", ["a look in passing", "an offset that is gone", "a doubt"])
async def test_last_winner_at_its_place_does_not_prove_an_unchanged_log(
    noticed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic lost its end, and the newest record was appended again at its old place."""
    monkeypatch.setattr(rules, "RETRY_S", 0.01)
    monkeypatch.setattr(rules, "LOOK_EVERY_S", 600.0)
    following = Following()
    follower = await following.begin()
    held = len(following.partition.records)
    newest, loser = following.values[held - 1], following.values[0]
    following.partition.truncate(held - 3)
    for value in (loser, loser, newest):
        following.log.append(value)
    reader = follower._reader
    if noticed_by == "a doubt":
        reader.suspect("the leader has changed")
    elif noticed_by == "a look in passing":
        reader._spawn(reader._look_regularly())
    else:
        reader._on_error(OffsetGoneError(held + 1, f"the topic has 0 to {held}"))
    await asyncio.wait_for(follower.failed.wait(), TIMEOUT_S)
    assert isinstance(follower.failure, AnchorLostError)
    assert "a winner before it" in str(follower.failure)


@pytest.mark.parametrize("behind", ["a winner", "a loser", "nothing"])
async def test_topic_that_lost_only_a_loser_is_not_the_same_log(
    behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A winner that earlier readers never read may be in its place. Their later winners may then differ."""
    monkeypatch.setattr(rules, "LOOK_EVERY_S", 600.0)
    following = Following()
    held = len(following.partition.records)
    loser, other, winner = following.values[1], following.values[2], following.values[held]
    following.log.append(loser)
    follower = await following.begin()
    assert follower.fold.next_offset == held + 1
    following.partition.truncate(held)
    following.log.append(other if behind != "nothing" else winner)
    if behind != "nothing":
        following.log.append(winner if behind == "a winner" else other)
        await until(lambda: follower.fold.next_offset == held + 2, "what is behind it to be read")
    following.log.looks = 0
    await asyncio.wait_for(follower._reader._look_regularly(), TIMEOUT_S)
    assert follower.is_suspended or follower.failure is not None
    await asyncio.wait_for(follower.failed.wait(), TIMEOUT_S)
    expected = AnchorLostError if behind == "a winner" else OffsetGoneError
    assert isinstance(follower.failure, expected)
    assert f"another record stands at offset {held}, which was not read" in str(follower.failure)


async def test_unchanged_losers_cause_no_doubt_at_any_distance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "LOOK_EVERY_S", 600.0)
    monkeypatch.setattr(rules, "NEAR", 2)
    following = Following(held=6)
    for value in (*following.values[:5] * 8, following.values[6], following.values[0]):
        following.log.append(value)
    follower = await following.begin()
    await until(lambda: follower.fold.next_offset == 48, "all to be read")
    await follower._reader._look_regularly()
    assert follower.failure is None and not follower.is_suspended
    assert follower.image.epoch == 7


def test_nearby_offsets_are_read_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "NEAR", 3)
    assert rules._runs([9, 1, 4, 20, 5]) == [(1, 5), (9, 9), (20, 20)]
    assert rules._runs([]) == []


async def test_held_back_records_are_applied_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a process paused during a long replay would not answer, and would seem paused again."""
    monkeypatch.setattr(rules, "DRAINED_AT_ONCE", 2)
    monkeypatch.setattr(rules, "QUIET_S", 0)
    being_read = "that were held back in a doubt about the log are being read"
    here = Following(held=3)
    follower = await here.begin()
    seen, here.log.looks = list[int](), 0
    here.log.may_look.clear()
    follower._reader.suspect("the test says so")
    for value in here.values[3:10]:
        here.log.append(value)
    await until(lambda: len(follower._reader._held) == 7, "all to be held back")
    assert follower.image.epoch == 3
    here.log.may_look.set()
    while follower.image.epoch < 10:
        await asyncio.sleep(0)
        seen.append(follower.image.epoch)
        assert follower.is_suspended or follower.image.epoch == 10
        if 3 < follower.image.epoch < 10:
            assert follower.trouble == f"{10 - follower.image.epoch} records {being_read}"
    assert sorted({3, *seen}) == [3, 5, 7, 9, 10]


async def beginning_behind(epoch: int, topic: list[bytes], truncated: int = 0) -> LogFollower:
    """Return a reader that starts from the image of ``epoch``, and knows the offsets of earlier winners.

    The first ``truncated`` records of the topic are gone.
    """
    values = records()
    start = folded(
        BEGINNING, [archived(at, values[at], three_nodes()[0].epochs[at]) for at in range(epoch)]
    )
    partition = MemoryPartition()
    for value in topic:
        partition.append(value)
    follower = LogFollower(TruncatedLog(partition, truncated), start)
    follower.start()
    return follower


class TruncatedLog(MemoryLog):
    """Its first records are gone."""

    def __init__(self, partition: MemoryPartition, begin: int) -> None:
        super().__init__(partition)
        self._begin = begin

    async def read(self, offset: int, limit: int) -> list[Record]:
        if offset < self._begin:
            raise OffsetGoneError(offset, f"the topic begins at {self._begin}")
        return await super().read(offset, limit)

    async def look(self, offset: int | None) -> TopicProbe:
        look = await super().look(offset)
        if offset is not None and offset < self._begin:
            return look._replace(value=None, begin=self._begin)
        return look


async def test_reader_after_a_snapshot_stops_at_a_changed_earlier_winner() -> None:
    """The topic lost its end. Records on their way landed at their old places, except one."""
    values = records()
    follower = await beginning_behind(6, [*values[:4], values[3], values[5], values[5]])
    with pytest.raises(AnchorLostError, match="stands at offset 4, where a winner before it was"):
        await follower.wait_for_end(TIMEOUT_S)
    assert follower.image.epoch == 6, "and what follows was not read"


async def test_winners_behind_a_truncation_are_compared() -> None:
    """It was truncated and lost its end. The last winner landed at its old place behind another record."""
    values = records()
    follower = await beginning_behind(6, [*values[:4], values[3], values[5], values[5]], 3)
    with pytest.raises(AnchorLostError, match="stands at offset 4, where a winner before it was"):
        await follower.wait_for_end(TIMEOUT_S)
    assert follower.image.epoch == 6, "and what follows was not read"


async def test_reader_after_a_snapshot_continues_with_unchanged_earlier_winners() -> None:
    values = records()
    follower = await beginning_behind(4, values[:6])
    assert len(follower.fold.chain.recent) == 4
    assert (await follower.wait_for_end(TIMEOUT_S)).epoch == 6


def test_offsets_of_an_older_log_are_not_compared() -> None:
    """Its records may have been lost, which is why it was recovered."""
    epochs = three_nodes()[0].epochs[:6]
    winners = [archived(at, encode_epoch(epoch), epoch) for at, epoch in enumerate(epochs)]
    start = folded(BEGINNING, winners)._replace(before=())
    assert len(with_places(start, winners).before) == 5
    other = msgspec.structs.replace(epochs[2], log_id=OTHER_LOG)
    winners[2] = archived(2, encode_epoch(other), other)
    assert [each.offset for each in with_places(start, winners).before] == [0, 1, 3, 4]


def test_floor_of_a_later_log_is_not_reached_by_an_older_log() -> None:
    epoch = three_nodes()[0].epochs[5]
    floor = Floor(6, bytes(16), log_id="ff" * 16)
    floor.check(5, epoch.log_id, epoch.epoch, epoch.state_id)
    assert f"of log {'ff' * 16} before" in floor.below(epoch.log_id, 90)
    assert floor.below(bytes([255] * 16), 6) == ""
