"""Data that a replica fetches from the store when no other replica has it, and data that it rejects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from stele.catch_up.filling import ArchivePeers, fill, reachable
from stele.catch_up.keeper import Keeper
from stele.log.archive.archive import Archive
from stele.log.blobs.folder import FolderStore
from stele.log.errors import TruncatedError
from stele.log.fold import BEGINNING
from stele.log.port import Log
from stele.runtime.catch_up import CatchUp
from tests.catch_up.others import Others, Topic
from tests.domain.epochs import History as Story
from tests.log.archive.story import long_story
from tests.log.archive_store.made import Made, names, record_of, small_blocks

NEW_LOG = bytes([0xC0] * 16)
CLUSTER = "demo"


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store", timeout_s=60)


@pytest.fixture
async def keeper(tmp_path: Path) -> AsyncIterator[Keeper]:
    """Return the keeper of an empty folder."""
    made = Keeper(Archive(tmp_path / "own"), snapshots_kept=3, sync_interval_s=0.1)
    yield made
    await made.close()


def peers(store: FolderStore, cluster: str = CLUSTER) -> ArchivePeers:
    """Return sources with no other replica, and this store."""
    return ArchivePeers(CatchUp([]), store, cluster)


def topic_of(story: Story, begin: int) -> Log:
    """Return the log of a story, in a topic truncated up to this offset."""
    return Topic([record_of(epoch) for epoch in story.epochs], begin).as_log()


async def begins_with(keeper: Keeper, peers: ArchivePeers, begin: int) -> int:
    """Return the epoch of the start if the topic begins at this offset, or 0."""
    topic = topic_of(long_story(), begin)
    try:
        return (await reachable(BEGINNING, keeper, peers, topic)).image.epoch
    except TruncatedError:
        return 0


async def test_empty_replica_fetches_snapshot_and_epochs_from_the_store(
    tmp_path: Path, store: FolderStore, keeper: Keeper
) -> None:
    made = Made(tmp_path / "archive")
    await made.copy(store)
    began = await begins_with(keeper, peers(store), record_of(made.story.epochs[59]).offset)
    assert began == 60
    tries = 0
    while await fill(keeper, peers(store), began):
        tries += 1
        assert tries < 10
    assert [*keeper.archive.segments.read(1)] == [record_of(e) for e in made.story.epochs[:60]]


async def test_snapshot_before_the_beginning_of_the_topic_is_not_used(
    tmp_path: Path, store: FolderStore, keeper: Keeper
) -> None:
    made = Made(tmp_path / "archive")
    await made.copy(store)
    behind = record_of(made.story.epochs[59]).offset + 1
    assert await begins_with(keeper, peers(store), behind) == 0
    assert keeper.archive.snapshots.all() == []


async def test_earlier_snapshot_replaces_a_damaged_one(
    tmp_path: Path, store: FolderStore, keeper: Keeper
) -> None:
    made = Made(tmp_path / "archive")
    await made.copy(store)
    for name in await names(store):
        if "00060-" in name and "decided" in name:
            path = tmp_path / "store" / name
            path.write_bytes(path.read_bytes()[:-5])
    assert await begins_with(keeper, peers(store), 1) == 41


@pytest.mark.parametrize("what", ["empty", "another cluster", "away"])
async def test_empty_foreign_or_unavailable_store_is_not_an_error(
    tmp_path: Path, store: FolderStore, keeper: Keeper, what: str
) -> None:
    cluster = CLUSTER
    if what == "another cluster":
        await Made(tmp_path / "archive").copy(store)
        cluster = "books"
    elif what == "away":
        (tmp_path / "store").write_bytes(b"")
    assert await begins_with(keeper, peers(store, cluster), 1) == 0
    assert await fill(keeper, peers(store, cluster), 60) != ""
    assert keeper.archive.segments.spans() == []


async def test_stored_epochs_of_another_history_are_not_kept(
    tmp_path: Path, store: FolderStore, keeper: Keeper
) -> None:
    """The store has epochs that a recovery gave up, and nothing of the log since."""
    await Made(tmp_path / "old", snapshots=()).copy(store)
    story = long_story()
    story.recover(NEW_LOG, 30)
    made = Made(tmp_path / "new", last=31, first=31, snapshots=(31,), story=story)
    kept = made.archive.snapshots.newest()
    assert kept is not None
    keeper.archive.snapshots.adopt(kept.path.read_bytes(), kept.decided_path.read_bytes())
    told = await fill(keeper, peers(store), 31)
    assert "another history" in told
    assert keeper.archive.segments.spans() == []


@pytest.mark.parametrize(
    ("forked", "is_stranger", "left"), [(0, False, 30), (26, False, 26), (0, True, 0)]
)
async def test_epochs_that_are_not_in_the_log_of_the_snapshot_are_set_aside(
    tmp_path: Path, store: FolderStore, forked: int, is_stranger: bool, left: int
) -> None:
    """Epochs given up by a recovery, an earlier history, and an unrelated log."""
    story, own = long_story(), Made(tmp_path / "own", story=long_story(forked))
    story.recover(NEW_LOG, 30)
    made = Made(tmp_path / "new", last=31, snapshots=(31,), story=story)
    await made.copy(store)
    keeper = Keeper(own.archive, snapshots_kept=3, sync_interval_s=0.1)
    start = keeper.begin()
    assert start.anchor is not None
    image = start.image
    if is_stranger:
        founding = msgspec.structs.replace(image.founding, log_id=bytes(15) + b"7")
        image = msgspec.structs.replace(image, founding=founding)
    start = start._replace(image=image, anchor=start.anchor._replace(offset=0))
    anchor = record_of(story.epochs[-1]).offset
    began = await reachable(start, keeper, peers(store), topic_of(story, anchor))
    assert began.image.log_id == NEW_LOG
    assert own.archive.segments.last == left
    await keeper.close()


@pytest.mark.parametrize("is_recovered", [False, True])
@pytest.mark.parametrize(("forked", "left"), [(0, 28), (22, 22), (16, 16)])
async def test_epochs_kept_with_a_stored_snapshot_are_in_the_store(
    tmp_path: Path, store: FolderStore, is_recovered: bool, forked: int, left: int
) -> None:
    """The archive ends before the epochs named by the snapshot, with epochs that an election may have lost."""
    story, own = long_story(), Made(tmp_path / "own", 28, snapshots=(), story=long_story(forked))
    if is_recovered:
        story.recover(NEW_LOG, 60)
    last = story.image.epoch
    await Made(tmp_path / "right", last, snapshots=(last,), story=story).copy(store)
    keeper = Keeper(own.archive, snapshots_kept=3, sync_interval_s=0.1)
    anchor = record_of(story.epochs[-1]).offset
    began = await reachable(keeper.begin(), keeper, peers(store), topic_of(story, anchor))
    assert began.image.epoch == last
    assert own.archive.segments.last == left
    while await fill(keeper, peers(store), last):
        assert own.archive.segments.last == last
    assert [*own.archive.segments.read(1)] == [record_of(epoch) for epoch in story.epochs]
    await keeper.close()


async def test_damaged_stored_segment_does_not_prevent_a_start(
    tmp_path: Path, store: FolderStore
) -> None:
    """The content of the archive is set aside."""
    made = Made(tmp_path / "right")
    await made.copy(store)
    own = Made(tmp_path / "own", 28, snapshots=())
    for name in await names(store):
        if "/segments/" in name:
            (tmp_path / "store" / name).write_bytes(b"")
    keeper = Keeper(own.archive, snapshots_kept=3, sync_interval_s=0.1)
    topic = topic_of(made.story, record_of(made.story.epochs[59]).offset)
    began = await reachable(keeper.begin(), keeper, peers(store), topic)
    assert began.image.epoch == 60
    assert own.archive.segments.spans() == []
    await keeper.close()


async def test_recovered_log_is_not_replaced_by_an_older_store(
    tmp_path: Path, store: FolderStore
) -> None:
    """The offsets of the older snapshots are of another topic."""
    await Made(tmp_path / "old").copy(store)
    story = long_story()
    story.recover(NEW_LOG, 30)
    made = Made(tmp_path / "own", 31, snapshots=(31,), story=story)
    keeper = Keeper(made.archive, snapshots_kept=3, sync_interval_s=0.1)
    start = keeper.begin()
    assert start.anchor is not None
    start = start._replace(anchor=start.anchor._replace(offset=0))
    with pytest.raises(TruncatedError):
        await reachable(start, keeper, peers(store), topic_of(long_story(), 50))
    assert made.archive.segments.last == 31
    assert [kept.head.epoch for kept in made.archive.snapshots.all()] == [31]
    await keeper.close()


async def test_stored_snapshot_lost_by_an_election_is_not_used(
    tmp_path: Path, store: FolderStore
) -> None:
    """An earlier snapshot of the shared history is used if the topic still has the later epochs."""
    right = long_story()
    await Made(tmp_path / "lost", snapshots=(41, 60), story=long_story(50)).copy(store)
    own = Made(tmp_path / "own", 30, snapshots=())
    keeper = Keeper(own.archive, snapshots_kept=3, sync_interval_s=0.1)
    start = keeper.begin()
    behind = record_of(right.epochs[40]).offset + 1
    with pytest.raises(TruncatedError):
        await reachable(start, keeper, peers(store), topic_of(right, behind))
    assert own.archive.segments.last == 30
    assert own.archive.snapshots.all() == []
    began = await reachable(start, keeper, peers(store), topic_of(right, behind - 1))
    assert began.image.epoch == 41
    assert own.archive.segments.last == 30
    await keeper.close()


async def test_older_store_is_not_used_if_replicas_follow_a_newer_log(
    tmp_path: Path, store: FolderStore, keeper: Keeper
) -> None:
    old, new = long_story(), long_story()
    new.recover(NEW_LOG, 30)
    await Made(tmp_path / "old", story=old).copy(store)
    follows = Made(tmp_path / "new", 31, snapshots=(), story=new)
    others = cast(CatchUp, Others(new=(new, follows.archive)))
    topic = topic_of(old, record_of(old.epochs[59]).offset)
    with pytest.raises(TruncatedError):
        await reachable(BEGINNING, keeper, ArchivePeers(others, store, CLUSTER), topic)
    assert keeper.archive.snapshots.all() == []
    assert (await reachable(BEGINNING, keeper, peers(store), topic)).image.epoch == 60
