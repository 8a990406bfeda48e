"""A log is recovered once, even by concurrent operators: two histories never continue from it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from stele.catch_up.holdings import Holdings
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.keeper import Keeper
from stele.catch_up.recovering import NotRecoverable, RecoverQuestion, check, recover
from stele.catch_up.replica import Ports, check_recoverable, recover_and_end
from stele.domain.image import EMPTY
from stele.domain.recovery.histories import HistoryChoice, HistorySource, choose
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived, EpochSpan
from stele.log.codec import encode_epoch
from stele.log.errors import AnchorLostError, LaterLogError
from stele.log.follower import LogFollower
from stele.log.port import Ends, Record
from stele.runtime.answers.catch_up import RecoverableAnswer, RecoveredAnswer
from stele.runtime.follow import Followed
from tests.catch_up.stories import NEW, recovered_story, story_of
from tests.domain.epochs import History as Story
from tests.log.memory import MemoryLog, MemoryPartition

EPOCHS = 12
GONE = AnchorLostError(3, "it is gone")


@pytest.fixture(scope="module")
def story() -> Story:
    return story_of(EPOCHS)


def replica(folder: Path, story: Story) -> Keeper:
    """It has all of the story on its disk."""
    archive = Archive(folder)
    archive.segments.adopt(archive_records(story))
    return Keeper(archive, 3, 0.01)


def archive_records(story: Story) -> list[Archived]:
    return [Archived(e.epoch, e.epoch - 1, e.at_ms, encode_epoch(e)) for e in story.epochs]


def asked(story: Story) -> RecoverQuestion:
    image = story.image
    return RecoverQuestion(
        image.epoch, image.state_id, image.epoch, image.log_id, "ada", "why", force=False
    )


class SlowTopic(MemoryLog):
    """Reading what it holds takes until ``go``."""

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

    async def ends() -> tuple[int, int]:
        return 0, await topic.end_offset()

    return await recover(keeper, topic, ends, asked(story), [])


async def test_who_looks_through_the_topic_while_another_recovers_adopts_that(
    tmp_path: Path, story: Story
) -> None:
    one, two = replica(tmp_path / "1", story), replica(tmp_path / "2", story)
    partition = MemoryPartition()
    for epoch in story.epochs[:5]:
        partition.append(encode_epoch(epoch))
    topic = SlowTopic(partition)

    async def ends() -> tuple[int, int]:
        return 0, await topic.end_offset()

    slow = asyncio.create_task(recover(two, topic, ends, asked(story), []))
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


async def test_a_recovery_goes_on_where_the_brokers_do_not_answer_for_a_while(
    tmp_path: Path, story: Story
) -> None:
    """Its record is in flight: an operator that gives up leaves a log from which no process can start."""
    topic = MemoryLog(MemoryPartition())
    silent = iter([True, False, True, True])

    async def ends() -> tuple[int, int]:
        if next(silent, False):
            raise TimeoutError("no leader answers")
        return 0, await topic.end_offset()

    found = await recover(replica(tmp_path, story), topic, ends, asked(story), [])
    assert (found.epoch, found.was_there) == (EPOCHS + 1, False)


class OldReads(MemoryLog):
    """Its ends are current. ``read``, by another client, gets an outdated end ``times`` times."""

    def __init__(self, partition: MemoryPartition, old_end: int, times: int = 1) -> None:
        super().__init__(partition)
        self.times = times
        self._old_end = old_end

    async def ends(self) -> Ends:
        return Ends(0, await self.end_offset())

    async def read(self, offset: int, limit: int) -> list[Record]:
        found = await super().read(offset, limit)
        self.times -= 1
        return [r for r in found if r.offset < self._old_end] if self.times >= 0 else found


@pytest.mark.parametrize("left", [0, 5])
async def test_who_reads_an_old_end_adopts_the_recovery_that_stands_behind_it(
    left: int, tmp_path: Path, story: Story
) -> None:
    partition = MemoryPartition()
    for epoch in story.epochs[:left]:
        partition.append(encode_epoch(epoch))
    first = await recovered(replica(tmp_path / "1", story), partition, story)
    topic, two = OldReads(partition, left), replica(tmp_path / "2", story)
    second = await recover(two, topic, topic.ends, asked(story), [])
    assert (second.log_id, second.was_there) == (first.log_id, True)


async def test_a_check_that_reads_an_old_end_has_not_looked_at_the_topic(
    tmp_path: Path, story: Story
) -> None:
    keeper, partition = replica(tmp_path, story), MemoryPartition()
    partition.append(encode_epoch(story.epochs[0]))
    topic = OldReads(partition, 0)
    told = await check(keeper, topic, topic.ends, asked(story), [])
    assert "gives nothing from there on" in told.not_looked_at
    assert await check(keeper, topic, topic.ends, asked(story), []) == RecoverableAnswer()


async def test_what_a_recovery_went_on_from_may_be_lost_with_who_wrote_it(
    tmp_path: Path, story: Story
) -> None:
    """It died before its snapshot, and its disk is gone: once the topic is deleted, the log continues from what
    others have.
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


def later_log() -> MemoryPartition:
    """Return a topic in which the log continues as a later one, whose first record is truncated."""
    partition = MemoryPartition()
    partition.append(encode_epoch(recovered_story(EPOCHS, EPOCHS).epochs[-1]))
    return partition


async def test_a_topic_in_which_a_later_log_goes_on_is_left_alone(
    tmp_path: Path, story: Story
) -> None:
    """Its recovery may be truncated: another one would make a second history."""
    partition = later_log()
    with pytest.raises(LaterLogError, match=NEW.hex()):
        await recovered(replica(tmp_path, story), partition, story)
    assert len(partition.records) == 1


class EpochsInMemory(MemoryLog):
    leaderless = False

    async def ends(self) -> Ends:
        if self.leaderless:
            raise TimeoutError("no leader")
        return Ends(0, await self.end_offset())


class Reader(SimpleNamespace):
    """A follower that nothing may stop."""

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
    """As the replica checks it, whose reader has this failure."""

    async def is_topic_missing() -> bool:
        return missing

    follower = cast(LogFollower, Reader(image=EMPTY, failure=failure))
    ports = cast(Ports, SimpleNamespace(open_log=lambda: topic, is_topic_missing=is_topic_missing))
    return await check_recoverable(keeper, Followed(follower), ports, question, more)


async def test_what_a_recovery_would_be_refused_for_is_found_without_one(
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


async def test_a_later_log_in_the_topic_is_told_before_a_recovery_in_the_same_words(
    tmp_path: Path, story: Story
) -> None:
    partition = later_log()
    keeper = replica(tmp_path, story)
    with pytest.raises(LaterLogError) as told:
        await checked(keeper, EpochsInMemory(partition), asked(story), [], GONE)
    with pytest.raises(LaterLogError) as refused:
        await recovered(keeper, partition, story)
    assert str(told.value) == str(refused.value)
    assert f"log {NEW.hex()} is written here, which is later" in str(told.value)


async def test_a_recovery_from_elsewhere_is_told_before_another_one(
    tmp_path: Path, story: Story
) -> None:
    """Also where a process has what follows the archive, which a look does not keep."""
    partition, more = MemoryPartition(), archive_records(story)[9:]
    await recovered(
        replica(tmp_path / "first", story_of(EPOCHS - 1)), partition, story_of(EPOCHS - 1)
    )
    keeper = replica(tmp_path / "second", story_of(9))
    with pytest.raises(NotRecoverable, match="The log was recovered before, from another epoch"):
        await checked(keeper, EpochsInMemory(partition), asked(story), more, GONE)
    assert keeper.archive.segments.last == 9
    assert len(partition.records) == 1


async def test_what_stands_behind_a_gap_is_known_and_is_no_image(
    tmp_path: Path, story: Story
) -> None:
    """A damaged file was set aside, and no other replica has its epochs: the log continues before them."""
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


@pytest.mark.parametrize("epochs", [EPOCHS - 1, EPOCHS], ids=["too few", "another one"])
async def test_a_replica_that_does_not_have_what_is_asked_for_stays(
    tmp_path: Path, epochs: int, story: Story
) -> None:
    """It is not ended, to come back with what others hold: somebody may want what it has."""

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
        await recover_and_end(keeper, Followed(follower), ports, question, [])
    assert not done and not keeper.is_closed


async def test_one_recovery_waits_for_the_other(tmp_path: Path, story: Story) -> None:
    """They would write the same files."""
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
    keeper, followed = replica(tmp_path, story), Followed(follower)
    recoveries = (recover_and_end(keeper, followed, ports, asked(story), []) for _ in range(3))
    found = await asyncio.gather(*recoveries, return_exceptions=True)
    assert [str(each) for each in found] == ["there is no topic"] * 3
    assert most == 1


async def test_a_process_gives_what_stands_in_a_gap(tmp_path: Path, story: Story) -> None:
    records = archive_records(story)
    archive = Archive(tmp_path)
    archive.segments.adopt(records[:5])
    archive.segments.adopt(records[8:])
    topic = MemoryLog(MemoryPartition())

    async def ends() -> tuple[int, int]:
        return 0, await topic.end_offset()

    answer = await recover(Keeper(archive, 3, 0.01), topic, ends, asked(story), records[5:])
    assert answer.last_epoch == EPOCHS


async def test_epochs_that_came_after_a_replica_told_its_history_are_not_given_up(
    tmp_path: Path, story: Story
) -> None:
    """Giving them up was not chosen. Another recovery in the topic has given them up, and counts."""
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
        await recover(keeper, topic, topic.ends, question, [])
    assert not partition.records
    assert keeper.archive.segments.last == EPOCHS
    first = await recovered(replica(tmp_path / "2", shorter), partition, shorter)
    await checked(keeper, topic, question, [], GONE)
    second = await recover(keeper, topic, topic.ends, question, [])
    assert (second.log_id, second.was_there) == (first.log_id, True)


@pytest.mark.parametrize("how", ["told", "forced"])
async def test_epochs_that_somebody_chose_to_give_up_are_given_up(
    how: str, tmp_path: Path, story: Story
) -> None:
    """Another source had chosen to give them up, or they are of a working log that continues meanwhile."""
    shorter = story_of(EPOCHS - 3)
    keeper, topic = replica(tmp_path, story), EpochsInMemory(MemoryPartition())
    told = EPOCHS if how == "told" else EPOCHS - 3
    question = asked(shorter)._replace(told_epoch=told, force=how == "forced")
    found = await recover(keeper, topic, topic.ends, question, [])
    assert (found.last_epoch, keeper.archive.segments.last) == (EPOCHS - 3, EPOCHS - 2)
