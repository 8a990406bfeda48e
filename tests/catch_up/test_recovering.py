"""A log is recovered once, even by concurrent operators: two histories never continue from it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from stele.catch_up.filling import ArchivePeers
from stele.catch_up.holdings import Holdings
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.keeper import Keeper
from stele.catch_up.recovering import NotRecoverable, RecoverQuestion, check, recover
from stele.catch_up.replica import CatchUpReplica, Ports
from stele.catch_up.settings import CatchUpSettings
from stele.domain.image import EMPTY
from stele.domain.recovery import HistoryChoice, HistorySource, choose
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived, EpochSpan
from stele.log.codec import encode_epoch
from stele.log.errors import AnchorLostError, LaterLogError
from stele.log.follower import LogFollower
from stele.log.port import Ends, Record
from stele.runtime.answers.catch_up import RecoverableAnswer, RecoveredAnswer
from tests.catch_up.stories import NEW, recovered_story, story_of
from tests.domain.epochs import History as Story
from tests.log.memory import MemoryLog, MemoryPartition

EPOCHS = 12
GONE = AnchorLostError(3, "it is gone")


@pytest.fixture(scope="module")
def story() -> Story:
    return story_of(EPOCHS)


def replica(folder: Path, story: Story) -> Keeper:
    """Return the keeper of a replica with all of the story on its disk."""
    archive = Archive(folder)
    archive.segments.adopt(archive_records(story))
    return Keeper(archive, 3, 0.01)


def replica_of(keeper: Keeper, ports: Ports) -> CatchUpReplica:
    """Return the replica of this keeper."""
    identity, peers = ReplicaIdentity("cu-1", "demo", "folder"), cast(ArchivePeers, None)
    found = CatchUpReplica(CatchUpSettings(), identity, "", keeper.archive, peers, ports)
    found.keeper = keeper
    return found


def archive_records(story: Story) -> list[Archived]:
    return [Archived(e.epoch, e.epoch - 1, e.at_ms, encode_epoch(e)) for e in story.epochs]


def asked(story: Story) -> RecoverQuestion:
    image = story.image
    return RecoverQuestion(
        image.epoch, image.state_id, image.epoch, image.log_id, "ada", "why", force=False
    )


class SlowTopic(MemoryLog):
    """A topic whose reads block until ``go``."""

    def __init__(self, partition: MemoryPartition) -> None:
        super().__init__(partition)
        self.go, self.reading = asyncio.Event(), asyncio.Event()

    async def read(self, offset: int, limit: int) -> list[Record]:
        found = await super().read(offset, limit)
        self.reading.set()
        await self.go.wait()
        return found


async def recovered(keeper: Keeper, partition: MemoryPartition, story: Story) -> RecoveredAnswer:
    topic = MemoryLog(partition)

    return await recover(keeper, topic, asked(story), [])


async def test_concurrent_recovery_adopts_the_first_one(tmp_path: Path, story: Story) -> None:
    one, two = replica(tmp_path / "1", story), replica(tmp_path / "2", story)
    partition = MemoryPartition()
    for epoch in story.epochs[:5]:
        partition.append(encode_epoch(epoch))
    topic = SlowTopic(partition)
    slow = asyncio.create_task(recover(two, topic, asked(story), []))
    await topic.reading.wait()
    first = await recovered(one, partition, story)
    topic.go.set()
    second = await slow
    assert second.log_id == first.log_id
    assert (first.was_there, second.was_there) == (False, True)
    assert [k.head for k in one.archive.snapshots.all()] == [
        k.head for k in two.archive.snapshots.all()
    ]
    assert two.archive.segments.last == EPOCHS + 1


async def test_recovery_continues_after_brokers_were_briefly_unavailable(
    tmp_path: Path, story: Story
) -> None:
    """The record is in flight. An operator that gives up would leave a log from which no process can start."""
    silent = iter([True, False, True, True])

    class Silent(MemoryLog):
        async def ends(self) -> Ends:
            if next(silent, False):
                raise TimeoutError("no leader answers")
            return await super().ends()

    topic = Silent(MemoryPartition())
    found = await recover(replica(tmp_path, story), topic, asked(story), [])
    assert (found.epoch, found.was_there) == (EPOCHS + 1, False)


class OldReads(MemoryLog):
    """A topic with current ends, whose ``read`` uses a stale end ``times`` times."""

    def __init__(self, partition: MemoryPartition, old_end: int, times: int = 1) -> None:
        super().__init__(partition)
        self.times = times
        self._old_end = old_end

    async def read(self, offset: int, limit: int) -> list[Record]:
        found = await super().read(offset, limit)
        self.times -= 1
        return [r for r in found if r.offset < self._old_end] if self.times >= 0 else found


@pytest.mark.parametrize("left", [0, 5])
async def test_recovery_behind_a_stale_end_is_adopted(
    left: int, tmp_path: Path, story: Story
) -> None:
    partition = MemoryPartition()
    for epoch in story.epochs[:left]:
        partition.append(encode_epoch(epoch))
    first = await recovered(replica(tmp_path / "1", story), partition, story)
    topic, two = OldReads(partition, left), replica(tmp_path / "2", story)
    second = await recover(two, topic, asked(story), [])
    assert (second.log_id, second.was_there) == (first.log_id, True)


async def test_check_with_a_stale_end_reports_the_topic_as_unchecked(
    tmp_path: Path, story: Story
) -> None:
    keeper, partition = replica(tmp_path, story), MemoryPartition()
    partition.append(encode_epoch(story.epochs[0]))
    topic = OldReads(partition, 0)
    told = await check(keeper, topic, asked(story), [])
    assert "gives nothing from there on" in told.not_looked_at
    assert await check(keeper, topic, asked(story), []) == RecoverableAnswer()


async def test_recovery_without_its_writer_and_base_needs_a_deleted_topic(
    tmp_path: Path, story: Story
) -> None:
    """The writer died before its snapshot, and its disk is lost. Once the topic is deleted, the log continues
    from epochs of others.
    """
    behind = story_of(EPOCHS - 3)
    assert behind.epochs == story.epochs[: EPOCHS - 3], "the same history"
    partition = MemoryPartition()
    lost = await recovered(replica(tmp_path / "lost", story), partition, story)
    other = replica(tmp_path / "other", behind)
    with pytest.raises(NotRecoverable, match=f"log {lost.log_id} any more, delete the topic"):
        await recovered(other, partition, behind)
    assert len(partition.records) == 1
    partition.recreate()
    found = await recovered(other, partition, behind)
    assert (found.epoch, found.was_there) == (EPOCHS - 2, False)
    assert other.archive.snapshots.all()[0].head.log_id == found.log_id


def topic_of_a_later_log() -> MemoryPartition:
    """Return a topic in which the log continues as a later one, whose first record is truncated."""
    partition = MemoryPartition()
    partition.append(encode_epoch(recovered_story(EPOCHS, EPOCHS).epochs[-1]))
    return partition


class EpochsInMemory(MemoryLog):
    leaderless = False

    async def ends(self) -> Ends:
        if self.leaderless:
            raise TimeoutError("no leader")
        return await super().ends()


class Reader(SimpleNamespace):
    """A follower that must not be stopped."""

    def stop(self) -> None:
        raise AssertionError("it is stopped")


async def checked(
    keeper: Keeper,
    topic: EpochsInMemory,
    question: RecoverQuestion,
    more: list[Archived],
    failure: Exception | None,
    *,
    missing: bool = False,
) -> RecoverableAnswer:
    """Return the check by a replica whose reader has this failure."""

    async def is_topic_missing() -> bool:
        return missing

    follower = cast(LogFollower, Reader(image=EMPTY, failure=failure))
    ports = cast(Ports, SimpleNamespace(open_log=lambda: topic, is_topic_missing=is_topic_missing))
    return await replica_of(keeper, ports).check_recoverable(follower, question, more)


async def test_check_finds_the_reasons_that_would_refuse_a_recovery(
    tmp_path: Path, story: Story
) -> None:
    keeper, partition = replica(tmp_path, story), MemoryPartition()
    topic, question = EpochsInMemory(partition), asked(story)
    with pytest.raises(NotRecoverable, match="reads the log without trouble"):
        await checked(keeper, topic, question, [], None)
    await checked(keeper, topic, question._replace(force=True), [], None)
    assert (await checked(keeper, topic, question, [], GONE)).not_looked_at == ""
    with pytest.raises(NotRecoverable, match=r"leads to epoch 12 with .*, not to epoch 13"):
        await checked(keeper, topic, question._replace(epoch=13), [], GONE)
    assert (await checked(keeper, topic, question, [], None, missing=True)).not_looked_at == ""
    with pytest.raises(NotRecoverable, match=r"leads to epoch 12 with .*, not to epoch 13"):
        await checked(keeper, topic, question._replace(epoch=13), [], None, missing=True)
    topic.leaderless = True
    assert "no leader" in (await checked(keeper, topic, question, [], GONE)).not_looked_at
    assert not partition.records and not keeper.is_closed


async def test_check_and_recovery_report_a_later_log_with_one_message(
    tmp_path: Path, story: Story
) -> None:
    """The recovery may be truncated. Another one would create a second history."""
    partition = topic_of_a_later_log()
    keeper = replica(tmp_path, story)
    with pytest.raises(LaterLogError) as told:
        await checked(keeper, EpochsInMemory(partition), asked(story), [], GONE)
    with pytest.raises(LaterLogError) as refused:
        await recovered(keeper, partition, story)
    assert str(told.value) == str(refused.value)
    assert len(partition.records) == 1
    assert f"log {NEW.hex()} is written here, which is later" in str(told.value)


async def test_check_finds_an_earlier_recovery_from_another_epoch(
    tmp_path: Path, story: Story
) -> None:
    """A process may have the epochs after the archive. A check does not keep them."""
    partition, more = MemoryPartition(), archive_records(story)[9:]
    await recovered(
        replica(tmp_path / "first", story_of(EPOCHS - 1)), partition, story_of(EPOCHS - 1)
    )
    keeper = replica(tmp_path / "second", story_of(9))
    with pytest.raises(NotRecoverable, match="The log was recovered before, from another epoch"):
        await checked(keeper, EpochsInMemory(partition), asked(story), more, GONE)
    assert keeper.archive.segments.last == 9
    assert len(partition.records) == 1


async def test_epochs_after_a_gap_are_known_but_have_no_image(tmp_path: Path, story: Story) -> None:
    """A damaged file was set aside, and no other replica has its epochs. The log continues before the gap."""
    records = archive_records(story)
    archive = Archive(tmp_path)
    archive.segments.adopt(records[:5])
    archive.segments.adopt(records[8:])
    follower = cast(LogFollower, SimpleNamespace(image=story.image, failure=None, trouble=""))
    told = Holdings(ReplicaIdentity("cu-1", "demo", "folder"), archive, follower).history()
    assert (told.first_image, told.last_image, max(told.states)) == (1, 5, EPOCHS)
    states = {epoch: bytes.fromhex(state_id) for epoch, state_id in told.states.items()}
    source = HistorySource(
        name="cu-1", log_id=told.log_id, states=states, first_image=1, last_image=told.last_image
    )
    chosen = choose([source])
    assert isinstance(chosen, HistoryChoice)
    assert (chosen.epoch, chosen.known_epoch) == (5, EPOCHS)

    shorter = story_of(5)
    assert shorter.image.state_id == chosen.state_id
    keeper = Keeper(archive, 3, 0.01)
    answer = await recovered(keeper, MemoryPartition(), shorter)
    assert (answer.last_epoch, answer.epoch) == (5, 6)
    assert archive.segments.spans() == [EpochSpan(1, 6)]


@pytest.mark.parametrize("epochs", [EPOCHS - 1, EPOCHS], ids=["too few", "other history"])
async def test_replica_without_the_requested_epoch_keeps_running(
    tmp_path: Path, epochs: int, story: Story
) -> None:
    """A restart would replace its epochs by those of others, and they may be needed."""

    async def make_topic() -> bool:
        return False

    done = list[str]()
    follower = cast(
        LogFollower,
        SimpleNamespace(
            image=story.image, failure=OSError("gone"), stop=lambda: done.append("stop")
        ),
    )
    end = lambda: done.append("end")  # noqa: E731
    ports = cast(Ports, SimpleNamespace(make_topic=make_topic, open_log=end, end=end))
    keeper = replica(tmp_path, story_of(epochs))
    question = asked(story)._replace(state_id=NEW)
    with pytest.raises(NotRecoverable, match=f"leads to epoch {epochs} with .*, not to epoch 12"):
        await replica_of(keeper, ports).recover_and_end(follower, question, [])
    assert not done and not keeper.is_closed


async def test_recoveries_of_one_replica_run_one_at_a_time(tmp_path: Path, story: Story) -> None:
    """Concurrent recoveries would write the same files."""
    running, most = 0, 0

    async def make_topic() -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        raise NotRecoverable("there is no topic")

    follower = cast(LogFollower, SimpleNamespace(image=story.image, failure=None))
    ports = cast(Ports, SimpleNamespace(make_topic=make_topic))
    there = replica_of(replica(tmp_path, story), ports)
    recoveries = (there.recover_and_end(follower, asked(story), []) for _ in range(3))
    found = await asyncio.gather(*recoveries, return_exceptions=True)
    assert [str(each) for each in found] == ["there is no topic"] * 3
    assert most == 1


async def test_epochs_of_a_process_fill_a_gap_of_the_archive(tmp_path: Path, story: Story) -> None:
    records = archive_records(story)
    archive = Archive(tmp_path)
    archive.segments.adopt(records[:5])
    archive.segments.adopt(records[8:])
    topic = MemoryLog(MemoryPartition())
    answer = await recover(Keeper(archive, 3, 0.01), topic, asked(story), records[5:])
    assert answer.last_epoch == EPOCHS


async def test_recovery_is_refused_if_the_replica_got_epochs_after_its_report(
    tmp_path: Path, story: Story
) -> None:
    """These epochs were not chosen to be given up. The recovery in the topic that gave them up counts."""
    shorter, partition = story_of(EPOCHS - 3), MemoryPartition()
    keeper, topic = replica(tmp_path / "1", story), EpochsInMemory(partition)
    question = asked(shorter)._replace(told_epoch=shorter.image.epoch)
    with pytest.raises(
        NotRecoverable, match="now has epochs up to 12, and had reported 9: those after 9"
    ):
        await checked(keeper, topic, question, [], GONE)
    with pytest.raises(
        NotRecoverable, match="now has epochs up to 12, and had reported 9: those after 9"
    ):
        await recover(keeper, topic, question, [])
    assert not partition.records
    assert keeper.archive.segments.last == EPOCHS
    first = await recovered(replica(tmp_path / "2", shorter), partition, shorter)
    await checked(keeper, topic, question, [], GONE)
    second = await recover(keeper, topic, question, [])
    assert (second.log_id, second.was_there) == (first.log_id, True)


@pytest.mark.parametrize("how", ["told", "forced"])
async def test_recovery_gives_up_epochs_that_were_chosen_or_forced(
    how: str, tmp_path: Path, story: Story
) -> None:
    """The caller knew the epochs, or forces the recovery of a log that continues meanwhile."""
    shorter = story_of(EPOCHS - 3)
    keeper, topic = replica(tmp_path, story), EpochsInMemory(MemoryPartition())
    told = EPOCHS if how == "told" else EPOCHS - 3
    question = asked(shorter)._replace(told_epoch=told, force=how == "forced")
    found = await recover(keeper, topic, question, [])
    assert (found.last_epoch, keeper.archive.segments.last) == (EPOCHS - 3, EPOCHS - 2)
