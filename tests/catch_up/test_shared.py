"""Epochs that a replica keeps beside a fetched snapshot are in the log, whatever their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from stele.catch_up.filling import archive_first_record, fill
from stele.catch_up.keeper import Keeper
from stele.domain.commands import SetSetting
from stele.log.archive.archive import Archive
from stele.log.archive.container import EpochSpan
from stele.log.codec import encode_epoch
from stele.log.errors import TruncatedError
from stele.runtime.answers.catch_up import Known, SnapshotAnswer
from stele.runtime.catch_up import CatchUpUnavailable
from tests.catch_up.others import (
    LAST,
    LATER,
    NEW,
    SHARED,
    Others,
    add_snapshot,
    archive_of,
    begun,
    begun_with,
    peers,
    records_of,
    story_of,
    topic_of,
)
from tests.domain.epochs import History as Story
from tests.log.memory import MemoryLog, MemoryPartition

BEGIN = LAST
"""The topic begins after all offsets that a replica with fewer losers has read."""


def right_story(how: str) -> Story:
    """Return the log that continues the green history, one epoch longer."""
    right = story_of(LAST, "green and more")
    if how == "recovered":
        right.recover(NEW, LAST)
    else:
        assert right.apply(SetSetting("later", "1")) is None
    return right


def wiped_of(folder: Path, right: Story) -> Archive:
    """Return the archive of a replica with a new disk, which has only a snapshot."""
    archive = Archive(folder)
    add_snapshot(archive, right, right.image.epoch)
    archive.segments.adopt(records_of(right)[-1:])
    return archive


def wrong_in(archive: Archive, right: Story) -> list[int]:
    """Return epochs that the archive would serve and the log does not have."""
    return [
        epoch.epoch
        for epoch in right.epochs
        if archive.state_id_of(epoch.epoch) not in (None, epoch.state_id)
    ]


async def filled(keeper: Keeper, began: int, others: Others) -> str:
    for _ in range(5):
        left = await fill(keeper, peers(others), began)
        if not left:
            break
    return left


@pytest.mark.parametrize("own_last", [LAST - 3, LAST], ids=["shorter", "equal length"])
@pytest.mark.parametrize("how", ["recovered", "not recovered"])
async def test_wiped_replica_does_not_prove_older_epochs(
    tmp_path: Path, how: str, own_last: int
) -> None:
    own, right = story_of(own_last, "blue"), right_story(how)
    whole = archive_of(tmp_path / "whole", right, LAST + 1)
    keeper = Keeper(archive_of(tmp_path / "own", own), 3, 0.01)
    wiped = wiped_of(tmp_path / "wiped", right)
    start = await begun(keeper, topic_of(right, BEGIN), wiped=(right, wiped))
    assert start.image.state_id == right.image.state_id
    assert keeper.archive.segments.spans() == []
    assert await filled(keeper, LAST + 1, Others(whole=(right, whole))) == ""
    assert keeper.archive.segments.spans() == [EpochSpan(1, LAST + 1)]
    assert not wrong_in(keeper.archive, right)
    await keeper.close()


@pytest.mark.parametrize("how", ["recovered", "not recovered"])
async def test_another_replica_proves_epochs_that_the_source_lacks(
    tmp_path: Path, how: str
) -> None:
    own, right = story_of(LAST - 3, "blue"), right_story(how)
    keeper = Keeper(archive_of(tmp_path / "own", own), 3, 0.01)
    wiped = wiped_of(tmp_path / "wiped", right)
    whole = archive_of(tmp_path / "whole", right, LAST + 1)
    await begun(keeper, topic_of(right, BEGIN), wiped=(right, wiped), whole=(right, whole))
    assert keeper.archive.segments.spans() == [EpochSpan(1, SHARED)]
    await keeper.close()


async def test_replica_that_lost_the_log_does_not_prove_epochs(tmp_path: Path) -> None:
    """The replica cannot read the log, since an election lost its epochs or it missed a recovery."""
    own, right = story_of(LAST - 3, "blue"), right_story("not recovered")
    keeper = Keeper(archive_of(tmp_path / "own", own), 3, 0.01)
    wiped = wiped_of(tmp_path / "wiped", right)
    others = Others(wiped=(right, wiped), lost=(own, archive_of(tmp_path / "lost", own, LAST - 3)))
    others.trouble["lost"] = "its anchor is not there any more"
    await begun_with(keeper, topic_of(right, BEGIN), others)
    assert keeper.archive.segments.spans() == []
    await keeper.close()


class Unheard(Others):
    """Sources in which the replica ``whole`` does not report its epochs."""

    async def known(self, url: str, epoch: int, state_id: bytes) -> Known:
        if url == "whole":
            raise CatchUpUnavailable(f"{url}: no answer")
        return await super().known(url, epoch, state_id)


async def test_unproven_epochs_are_kept_again_once_the_log_leads_to_them(tmp_path: Path) -> None:
    """A replica with unproven epochs starts without them. It keeps them once others have their successors."""
    right = right_story("not recovered")
    own = archive_of(tmp_path / "own", story_of(LAST - 3, "green and more"), LAST - 5)
    keeper = Keeper(own, 3, 0.01)
    wiped = wiped_of(tmp_path / "wiped", right)
    whole = right, archive_of(tmp_path / "whole", right, LAST + 1)
    await begun_with(keeper, topic_of(right, BEGIN), Unheard(wiped=(right, wiped), whole=whole))
    assert own.segments.spans() == []
    assert [kept.head.epoch for kept in own.snapshots.all()] == [LAST + 1]
    late = Archive(tmp_path / "late")
    late.segments.adopt(records_of(right)[LAST - 3 :])
    assert await filled(keeper, LAST + 1, Others(late=(right, late))) == ""
    assert own.segments.spans() == [EpochSpan(1, LAST + 1)]
    assert not wrong_in(own, right)
    await keeper.close()


async def test_longer_lost_history_is_replaced_by_a_shorter_one(tmp_path: Path) -> None:
    own, right = story_of(LAST + 5, "blue"), right_story("not recovered")
    keeper = Keeper(archive_of(tmp_path / "own", own), 3, 0.01)
    whole = archive_of(tmp_path / "whole", right, LAST + 1, losers=LAST)
    await begun(keeper, topic_of(right, LAST + LAST, losers=LAST), whole=(right, whole))
    assert keeper.archive.segments.spans() == [EpochSpan(1, SHARED)]
    await keeper.close()


async def test_snapshots_without_epochs_are_compared(tmp_path: Path) -> None:
    own, right = story_of(LAST - 3, "blue"), right_story("not recovered")
    archive = Archive(tmp_path / "own")
    for epoch in (SHARED, LAST - 3):
        add_snapshot(archive, own, epoch)
    keeper = Keeper(archive, 3, 0.01)
    whole = archive_of(tmp_path / "whole", right, LAST + 1)
    await begun(keeper, topic_of(right, BEGIN), whole=(right, whole))
    assert [kept.head.epoch for kept in archive.snapshots.all()] == [LAST + 1, SHARED]
    await keeper.close()


async def test_epochs_that_do_not_lead_to_the_start_are_set_aside(tmp_path: Path) -> None:
    """The epochs to continue from are in the log. Records of an older process may lack it."""
    own, right = story_of(LAST, "blue"), right_story("not recovered")
    archive = archive_of(tmp_path / "own", own, LAST - 3)
    add_snapshot(archive, right, LAST + 1)
    keeper = Keeper(archive, 3, 0.01)
    partition = MemoryPartition()
    for epoch in right.epochs:
        partition.append(encode_epoch(epoch))
    await archive_first_record(keeper, MemoryLog(partition), keeper.begin())
    assert archive.segments.spans() == [EpochSpan(LAST + 1, LAST + 1)]
    assert [kept.head.epoch for kept in archive.snapshots.all()] == [LAST + 1]
    await keeper.close()


@pytest.mark.parametrize("is_given", [False, True], ids=["no newer replica", "older replica first"])
async def test_recovered_log_is_not_replaced_by_the_log_before_it(
    tmp_path: Path, is_given: bool
) -> None:
    """The offsets of its snapshots are of another topic, and may be greater. The replica with the newer log is
    the source.
    """
    old, own, newer = (story_of(LAST, "blue") for _ in range(3))
    for story in (own, newer):
        story.recover(NEW, LAST)
    while newer.image.epoch < LATER:
        assert newer.apply(SetSetting("later", "1")) is None
    keeper = Keeper(archive_of(tmp_path / "own", own, LAST + 1), 3, 0.01)
    others = {"old": (old, archive_of(tmp_path / "old", old, LAST, losers=500))}
    topic = topic_of(newer, LAST + 10, losers=100)
    if is_given:
        others["new"] = newer, archive_of(tmp_path / "new", newer, LATER, losers=100)
        start = await begun(keeper, topic, **others)
        assert (start.image.log_id, start.image.epoch) == (NEW, LATER)
    else:
        with pytest.raises(TruncatedError):
            await begun(keeper, topic, **others)
    assert keeper.archive.segments.spans() == [EpochSpan(1, LAST + 1)]
    assert {kept.head.log_id for kept in keeper.archive.snapshots.all()} == {NEW.hex()}
    await keeper.close()


async def test_newest_of_two_recovered_logs_is_adopted(tmp_path: Path) -> None:
    """The log was recovered twice from one epoch. This replica knows only the first recovery."""
    own, newer = story_of(LAST, "blue"), story_of(LAST, "blue")
    own.recover(NEW, LAST)
    newer.recover(bytes([0xD0] * 16), LAST)
    keeper = Keeper(archive_of(tmp_path / "own", own), 3, 0.01)
    others = {
        "near": (own, archive_of(tmp_path / "near", own, LAST + 1, losers=100)),
        "far": (newer, archive_of(tmp_path / "far", newer, LAST + 1, losers=100)),
    }
    topic = topic_of(newer, LAST + 10, losers=100)
    start = await begun(keeper, topic, **others)
    assert start.image.log_id == newer.image.log_id
    assert not wrong_in(keeper.archive, newer)
    await keeper.close()


class Damaging(Others):
    """Replicas that serve truncated files."""

    async def files(self, url: str, snapshot: SnapshotAnswer, *, decided: bool) -> list[bytes]:
        image, decided_file = await super().files(url, snapshot, decided=decided)
        return [image, decided_file[:-5]]


async def test_damaged_snapshot_replaces_nothing(tmp_path: Path) -> None:
    own, right = story_of(LAST - 3, "blue"), right_story("recovered")
    keeper = Keeper(archive_of(tmp_path / "own", own, LAST - 5), 3, 0.01)
    whole = archive_of(tmp_path / "whole", right, LAST + 1)
    with pytest.raises(TruncatedError):
        await begun_with(keeper, topic_of(right, BEGIN), Damaging(whole=(right, whole)))
    assert keeper.archive.segments.spans() == [EpochSpan(1, LAST - 3)]
    assert [kept.head.epoch for kept in keeper.archive.snapshots.all()] == [LAST - 5]
    await keeper.close()


async def test_snapshot_comes_from_a_replica_that_can_read_the_log(
    tmp_path: Path,
) -> None:
    """The other replica has a history that an election lost, and answers first."""
    lost, right = story_of(LAST + 1, "blue"), right_story("not recovered")
    keeper = Keeper(Archive(tmp_path / "own"), 3, 0.01)
    others = Others(
        lost=(lost, archive_of(tmp_path / "lost", lost, LAST + 1)),
        right=(right, archive_of(tmp_path / "right", right, LAST + 1)),
    )
    others.stopped["lost"] = "its anchor is not there any more"
    start = await begun_with(keeper, topic_of(right, BEGIN), others)
    assert start.image.state_id == right.image.state_id
    assert others.gave == ["right"]
    await keeper.close()
