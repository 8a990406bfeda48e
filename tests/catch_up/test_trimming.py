"""A replica votes for a new beginning of the archive once it can serve it, then deletes earlier epochs."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from stele.catch_up.filling import gaps
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.keeper import Keeper, forgotten, resting
from stele.catch_up.trimming import Trimmer
from stele.domain.image import EMPTY
from stele.domain.model.archive import ArchiveImage, ArchiveTrimmed, TrimProposed
from stele.log.archive.archive import Archive
from stele.log.archive.container import EpochSpan, NotArchivedError
from stele.runtime.answers.catch_up import StoreAnswer
from tests.log.archive_store.made import SNAPSHOTS, Made, record_of

LAST = 80
AT = 41
"""An epoch with a snapshot, in the middle of a segment."""


class World:
    """The folder of one replica, and the state of the log."""

    def __init__(
        self, folder: Path, *, store: bool = False, first: int = 1, last: int = LAST
    ) -> None:
        self.made = Made(folder, last, first=first)
        self.keeper = Keeper(Archive(folder), 3, 0.01)
        self.says = ArchiveImage()
        self.store = StoreAnswer(url="s3://bucket")
        stored = (lambda: self.store) if store else None
        me = ReplicaIdentity("cu-1", "demo", "folder")
        self.epoch = LAST
        image = lambda: replace(EMPTY, epoch=self.epoch, archive=self.says)  # noqa: E731
        self.trimmer = Trimmer(self.keeper, image, me, stored)

    def state_id(self, epoch: int) -> str:
        return self.made.story.epochs[epoch - 1].state_id.hex()

    def propose(self, epoch: int) -> None:
        proposed = TrimProposed(
            replica_id="cu-2", epoch=epoch, state_id=self.state_id(epoch), at_ms=1
        )
        self.says = ArchiveImage(proposed=proposed)

    def trim(self, epoch: int, hash_: str) -> None:
        trimmed = ArchiveTrimmed(
            epoch=epoch, state_id=self.state_id(epoch), hash=hash_, members=("cu-2", "cu-3")
        )
        self.says = ArchiveImage(trimmed=trimmed)

    async def agreed(self, epoch: int) -> str:
        """Return the hash that the replica votes for."""
        self.propose(epoch)
        await self.trimmer.step()
        vote = self.trimmer.vote
        assert vote is not None
        assert vote.epoch == epoch
        return vote.hash

    @property
    def spans(self) -> list[EpochSpan]:
        return self.keeper.archive.segments.spans()

    @property
    def snapshots(self) -> list[int]:
        return sorted(kept.head.epoch for kept in self.keeper.archive.snapshots.all())


def bytes_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*.avro")}


async def test_trim_deletes_earlier_epochs_and_keeps_all_later_ones(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.trim(AT, await world.agreed(AT))
    await world.trimmer.step()
    assert (world.spans, world.snapshots) == ([EpochSpan(AT, LAST)], [AT, 60])
    again = Archive(tmp_path)
    assert again.segments.spans() == [EpochSpan(AT, LAST)]
    assert [*again.segments.read(AT)] == [
        record_of(e) for e in world.made.story.epochs[AT - 1 : LAST]
    ]
    start, _ = again.begin(decided=True, at_most=AT)
    assert again.fold_on(start, LAST).image.state_id.hex() == world.state_id(LAST)
    with pytest.raises(NotArchivedError):
        next(again.segments.read(AT - 1))
    before = bytes_in(tmp_path)
    await world.trimmer.step()
    assert bytes_in(tmp_path) == before


@pytest.mark.parametrize("at", [1, 2, 33, 50, 51, 79, 80])
async def test_missing_snapshot_is_computed_byte_for_byte(tmp_path: Path, at: int) -> None:
    """The computed snapshot has the bytes of that of other replicas."""
    one = World(tmp_path / "one")
    two = Made(tmp_path / "two", LAST, snapshots=(at,))
    found = await one.agreed(at)
    (theirs,) = two.archive.snapshots.all()
    assert two.archive.snapshots.hashed(theirs) == theirs
    assert theirs.hash == found
    mine = one.keeper.archive.snapshots.named(theirs.head.name)
    assert mine is not None
    assert mine.path.read_bytes() == theirs.path.read_bytes()
    assert mine.decided_path.read_bytes() == theirs.decided_path.read_bytes()
    one.trim(at, found)
    await one.trimmer.step()
    assert one.spans == [EpochSpan(at, LAST)]


async def test_trim_deletes_no_epoch_unless_replicas_agree_on_the_snapshot(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.agreed(AT)
    assert world.spans == [EpochSpan(1, LAST)]
    world.trim(AT, "ab" * 32)
    await world.trimmer.step()
    assert (world.spans, world.snapshots) == ([EpochSpan(1, LAST)], [*SNAPSHOTS])


async def test_vote_does_not_count_for_another_state_id(
    tmp_path: Path,
) -> None:
    """Otherwise a majority would agree to a state id that no replica has, and none could delete by it."""
    world = World(tmp_path)
    await world.agreed(AT)
    world.says = ArchiveImage(
        proposed=TrimProposed(replica_id="cu-2", epoch=AT, state_id="00" * 16, at_ms=2)
    )
    with pytest.raises(NotArchivedError):
        await world.trimmer.step()
    assert world.trimmer.vote is None


async def test_epochs_that_the_store_lacks_are_kept(tmp_path: Path) -> None:
    world = World(tmp_path, store=True)
    world.propose(AT)
    for behind in (
        StoreAnswer(url="s3://bucket", epoch=AT - 1),
        StoreAnswer(url="s3://bucket", epoch=AT, why="epochs 3 to 5: damaged"),
    ):
        world.store = behind
        await world.trimmer.step()
        assert world.trimmer.vote is None
    world.store = StoreAnswer(url="s3://bucket", epoch=AT)
    found = await world.agreed(AT)
    assert world.trimmer.vote is not None
    assert world.trimmer.vote.store == "s3://bucket"
    world.trim(AT, found)
    world.store = StoreAnswer(url="s3://bucket", epoch=AT - 1)
    await world.trimmer.step()
    assert world.spans == [EpochSpan(1, LAST)], "though all the others have agreed"
    world.store = StoreAnswer(url="s3://bucket", epoch=LAST)
    await world.trimmer.step()
    assert world.spans == [EpochSpan(AT, LAST)]


async def test_trim_deletes_no_epoch_before_the_decision_is_archived(tmp_path: Path) -> None:
    """Otherwise a log recovered from the archive would lack the decision, and request deleted epochs."""
    world = World(tmp_path, last=LAST - 1)
    world.trim(AT, await world.agreed(AT))
    await world.trimmer.step()
    assert world.spans == [EpochSpan(1, LAST - 1)]
    world.keeper.archive.segments.add(record_of(world.made.story.epochs[LAST - 1]))
    world.keeper.archive.segments.sync()
    world.epoch = LAST + 9
    await world.trimmer.step()
    assert world.spans == [EpochSpan(AT, LAST)]


async def test_replica_with_missing_epochs_does_not_vote(tmp_path: Path) -> None:
    world = World(tmp_path, first=50)
    world.propose(AT)
    await world.trimmer.step()
    assert world.trimmer.vote is None


async def test_damaged_snapshot_is_computed_again_before_a_vote(tmp_path: Path) -> None:
    """The file is read before a vote, since all later epochs depend on it."""
    world = World(tmp_path)
    right = await world.agreed(AT)
    world.says = ArchiveImage()
    await world.trimmer.step()
    (kept,) = (k for k in world.keeper.archive.snapshots.all() if k.head.epoch == AT)
    content = bytearray(kept.path.read_bytes())
    content[len(content) // 2] ^= 1
    kept.path.write_bytes(content)
    assert await world.agreed(AT) == right, "it follows from what is before it"
    assert world.keeper.archive.damaged


def test_trimmed_epochs_are_not_requested() -> None:
    assert [*gaps([EpochSpan(30, 50)], 50, 30)] == []
    assert next(gaps([EpochSpan(40, 50)], 50, 30)) == EpochSpan(30, 39)
    assert next(gaps([EpochSpan(1, 20), EpochSpan(40, 50)], 50, 30)) == EpochSpan(30, 39)
    assert next(gaps([EpochSpan(1, 33), EpochSpan(40, 50)], 50, 30)) == EpochSpan(34, 39)
    assert next(gaps([], 50, 30)) == EpochSpan(30, 50)


def test_needed_snapshots_are_kept() -> None:
    epochs = [*range(1, 200)]
    assert 50 in forgotten(epochs, 4)
    assert 50 not in forgotten(epochs, 4, needed={50})


def test_background_work_uses_its_share_of_time() -> None:
    now_s, slept_s = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s, slept_s
        slept_s += seconds
        now_s += seconds

    rest = resting(0.25, lambda: now_s, sleep)
    for _ in range(10_000):
        now_s += 0.001
        rest()
    assert slept_s / now_s == pytest.approx(0.75, abs=0.01)
