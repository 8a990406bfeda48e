"""A replica starts from a snapshot that the topic leads to, of the newest log that it knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from stele.catch_up import filling
from stele.catch_up.keeper import Keeper
from stele.log.archive.archive import Archive
from stele.log.archive.container import EpochSpan
from stele.log.errors import TruncatedError
from stele.log.port import Record
from tests.catch_up.others import (
    LAST,
    LATER,
    NEW,
    Others,
    Topic,
    archive_of,
    begun_with,
    records_of,
    story_of,
    topic_of,
)
from tests.domain.epochs import History as Story

OWN_LAST = LAST - 3
LATE_S = 0.9
TROUBLE = "its anchor is not there any more"
NEWER = bytes([0xD0] * 16)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "PAUSE_S", 0.001)


def own_of(folder: Path) -> Keeper:
    """Return a snapshot of the green history, from before the topic's beginning."""
    return Keeper(archive_of(folder / "own", story_of(OWN_LAST, "green and more"), OWN_LAST), 3, 1)


def right_of(folder: Path) -> tuple[Story, Archive]:
    right = story_of(LAST + 1, "green and more")
    return right, archive_of(folder / "right", right, LAST + 1)


def lost_of(folder: Path, last: int = LAST + 1) -> tuple[Story, Archive]:
    """Return a snapshot that an unclean election has lost."""
    lost = story_of(last, "blue")
    return lost, archive_of(folder / "lost", lost, last)


async def check_no_start(keeper: Keeper, topic: Topic, others: Others) -> None:
    """Check that the keeper does not start, and keeps its epochs."""
    spans = keeper.archive.segments.spans()
    names = [kept.head.name for kept in keeper.archive.snapshots.all()]
    with pytest.raises(TruncatedError):
        await begun_with(keeper, topic, others)
    assert keeper.archive.segments.spans() == spans
    assert [kept.head.name for kept in keeper.archive.snapshots.all()] == names


@pytest.mark.parametrize("last", [LAST + 1, LATER], ids=["as long", "longer than the topic"])
@pytest.mark.parametrize("how", ["stopped", "in doubt", "not noticed"])
async def test_replica_does_not_start_from_a_snapshot_lost_by_an_election(
    tmp_path: Path, how: str, last: int
) -> None:
    """No other source answers in time. The replica starts once the right snapshot is available."""
    right, lost = right_of(tmp_path), lost_of(tmp_path, last)
    keeper, topic = own_of(tmp_path), topic_of(right[0], LAST)
    alone, others = Others(lost=lost), Others(lost=lost, right=right)
    for each in (alone, others):
        each.trouble = {"lost": TROUBLE} if how != "not noticed" else {}
        each.stopped = {"lost": TROUBLE} if how == "stopped" else {}
    await check_no_start(keeper, topic, alone)
    start = await begun_with(keeper, topic, others)
    assert start.image.state_id == right[0].image.state_id
    assert keeper.archive.segments.spans() == [EpochSpan(1, OWN_LAST)]
    await keeper.close()


async def test_start_waits_for_a_replica_that_answers_a_moment_later(tmp_path: Path) -> None:
    right = right_of(tmp_path)
    keeper, others = own_of(tmp_path), Others(lost=lost_of(tmp_path), right=right)
    others.late_s["right"] = LATE_S
    start = await begun_with(keeper, topic_of(right[0], LAST), others)
    assert start.image.state_id == right[0].image.state_id
    await keeper.close()


class Silent(Topic):
    """A topic that returns no records for a while."""

    asked = 0
    silent = 0

    async def read(self, offset: int, limit: int) -> list[Record]:
        self.asked += 1
        if self.asked <= self.silent:
            raise TimeoutError("the topic gives nothing")
        return await super().read(offset, limit)


@pytest.mark.parametrize("silent", [1, filling.TRIES])
async def test_check_of_a_snapshot_against_the_topic_is_retried(
    tmp_path: Path, silent: int
) -> None:
    """A start retries while Kafka does not answer, and assumes no position."""
    right = right_of(tmp_path)
    keeper, others = own_of(tmp_path), Others(right=right)
    topic = Silent(records_of(right[0]), LAST)
    topic.silent = silent
    if silent == filling.TRIES:
        await check_no_start(keeper, topic, others)
    start = await begun_with(keeper, topic, others)
    assert start.image.state_id == right[0].image.state_id
    await keeper.close()


@pytest.mark.parametrize(
    ("reads", "has_one", "begins_with"),
    [(True, True, "right"), (True, False, ""), (False, False, "lost")],
)
async def test_unprovable_snapshot_is_taken_from_a_replica_that_reads_the_log(
    tmp_path: Path, reads: bool, has_one: bool, begins_with: str
) -> None:
    """The topic of the recovered log is truncated past each of its snapshots. When no running process reads
    that log, a stopped one is trusted: the archive leads to it, and the next start finds the rest.
    """
    lost, right = story_of(LAST, "blue"), story_of(LAST, "green and more")
    for story in (lost, right):
        story.recover(NEW, LAST)
    keeper, topic = own_of(tmp_path), topic_of(right, LATER, losers=LATER)
    topic.begin = topic.records[-1].offset + 1
    others = Others(
        lost=(lost, archive_of(tmp_path / "lost", lost, LAST + 1)),
        right=(right, archive_of(tmp_path / "right", right, (LAST + 1) * has_one)),
    )
    others.trouble = {"lost": TROUBLE} | ({} if reads else {"right": TROUBLE})
    if begins_with:
        start = await begun_with(keeper, topic, others)
        assert (start.image.state_id == right.image.state_id) is (begins_with == "right")
    else:
        await check_no_start(keeper, topic, others)
    await keeper.close()


def recovered_of(folder: Path, log_id: bytes = NEW) -> tuple[Story, Archive]:
    """Return a log that continues after the last of the blue epochs, behind ten losers."""
    story = story_of(LAST, "blue")
    story.recover(log_id, LAST)
    return story, archive_of(folder / log_id.hex(), story, LAST + 1, losers=10)


@pytest.mark.parametrize("own_epochs", [0, LAST - 5], ids=["empty", "of the earlier log"])
async def test_replica_that_knows_a_newer_log_does_not_start_from_an_older_one(
    tmp_path: Path, own_epochs: int
) -> None:
    """The topic contains the last epoch of the older snapshot, which the recovery gave up, and the older
    replica answers first.
    """
    old, new = story_of(LATER, "blue"), recovered_of(tmp_path)
    own = Archive(tmp_path / "own")
    if own_epochs:
        own = archive_of(tmp_path / "own", story_of(own_epochs, "blue"), own_epochs)
    keeper = Keeper(own, 3, 0.01)
    topic = Topic([*records_of(old), *records_of(new[0], 10)[-1:]], LATER - 1)
    others = Others(old=(old, archive_of(tmp_path / "old", old, LATER)), new=new)
    others.stopped["old"] = others.trouble["old"] = "it was recovered"
    others.late_s["new"] = 60
    await check_no_start(keeper, topic, others)
    others.late_s["new"] = 0
    assert (await begun_with(keeper, topic, others)).image.log_id == NEW
    await keeper.close()


async def test_log_of_another_cluster_is_not_a_newer_log(tmp_path: Path) -> None:
    """A misconfigured address leads to a replica of a log that was recovered later."""
    new, stranger = recovered_of(tmp_path), recovered_of(tmp_path, NEWER)
    keeper = Keeper(Archive(tmp_path / "own"), 3, 0.01)
    others = Others(stranger=stranger, new=new)
    others.clusters["stranger"] = "staging"
    start = await begun_with(keeper, topic_of(new[0], losers=10), others)
    assert start.image.log_id == NEW
    await keeper.close()
