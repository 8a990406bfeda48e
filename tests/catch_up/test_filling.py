"""What a replica takes from the others, and what it gives up for it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.catch_up import replica
from stele.catch_up.filling import Givers, fill, keep_beginning, reachable
from stele.catch_up.keeper import Keeper
from stele.domain.commands import FoundCluster, SetSetting
from stele.domain.image import EMPTY
from stele.log.archive.archive import Archive
from stele.log.archive.records import Archived
from stele.log.archive.snapshots import head_of
from stele.log.archive.spans import NotArchivedError, Span
from stele.log.chain import Anchor, digest_of
from stele.log.codec import encode_epoch
from stele.log.errors import AnchorLostError
from stele.log.memory import MemoryLog, MemoryPartition
from stele.log.port import Ends
from stele.runtime.answers.catch_up import ArchiveAnswer, Known, SnapshotAnswer, StartAnswer
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable
from tests.domain.epochs import LOG_ID
from tests.domain.epochs import History as Story

SHARED, LAST, LATER = 8, 20, 25
NEW = bytes([0xC0] * 16)


def story_of(epochs: int, colour: str) -> Story:
    """The first ones are the same whatever the colour."""
    story = Story(empty=EMPTY)
    assert story.apply(FoundCluster("demo/1", LOG_ID.hex())) is None
    while story.image.epoch < epochs:
        value = colour if story.image.epoch >= SHARED else "any"
        if story.image.epoch == SHARED:
            story.at_ms += 1 + len(colour)
        assert story.apply(SetSetting("colour", value)) is None
    return story


def archive_of(folder: Path, story: Story, snapshot: int = 0, losers: int = 0) -> Archive:
    archive = Archive(folder)
    records = [
        Archived(e.epoch, e.epoch - 1 + losers, e.at_ms, encode_epoch(e)) for e in story.epochs
    ]
    archive.segments.adopt(records)
    if snapshot:
        image, record = story.images[snapshot], records[snapshot - 1]
        anchor = Anchor(record.offset, digest_of(record.value))
        head = head_of(image, record.offset + 1, anchor, record.at_ms)
        archive.snapshots.write(image, head, ())
    return archive


class Others:
    """Replicas with these archives, by their addresses."""

    def __init__(self, **by_url: tuple[Story, Archive]) -> None:
        self._by_url = by_url

    async def archives(self) -> list[Any]:
        return [(url, self._told(story)) for url, (story, _) in self._by_url.items()]

    def _told(self, story: Story) -> Any:
        image = story.image
        return ArchiveAnswer(
            replica_id="",
            cluster="demo",
            cluster_id="",
            log_id=image.log_id.hex(),
            incarnations=image.founding.incarnations,
            epoch=image.epoch,
            trouble="",
            spans=(),
            size_bytes=0,
            snapshots=(),
            damaged=(),
        )

    async def starts(self, **_: object) -> list[Any]:
        found = list[Any]()
        for url, (story, archive) in self._by_url.items():
            kept = archive.snapshots.newest()
            assert kept is not None
            head = kept.head
            answer = StartAnswer(
                replica_id=url,
                log_id=story.image.log_id.hex(),
                known=Known.SAME,
                last=archive.segments.last,
                last_state_id="",
                tail_bytes=0,
                snapshot=SnapshotAnswer(
                    name=head.name,
                    epoch=head.epoch,
                    state_id=head.state_id,
                    log_id=head.log_id,
                    at_ms=0,
                    size_bytes=0,
                    decided_bytes=0,
                    next_offset=head.next_offset,
                    anchor_offset=head.anchor_offset,
                ),
            )
            found.append((url, answer))
        return found

    async def files(self, url: str, snapshot: SnapshotAnswer, *, decided: bool) -> list[bytes]:
        kept = self._by_url[url][1].snapshots.named(snapshot.name)
        assert kept is not None
        return [kept.path.read_bytes(), kept.decided_path.read_bytes()]

    async def records(self, first: int, last: int) -> list[Archived]:
        (archive,) = (each for _, each in self._by_url.values())
        found = [record for record in archive.segments.read(first) if record.epoch <= last]
        if not found or found[0].epoch != first:
            raise NotArchivedError(first)
        return found

    async def known(self, url: str, epoch: int, state_id: bytes) -> Known:
        there = self._by_url[url][1].state_id_of(epoch)
        if there is None:
            return Known.UNKNOWN
        return Known.SAME if there == state_id else Known.OTHER


def givers(others: "Others") -> Givers:
    """No store."""
    return Givers(cast(CatchUp, others), None, "demo")


async def begun(keeper: Keeper, begin: int, **others: tuple[Story, Archive]) -> Any:
    async def ends() -> Ends:
        return Ends(begin, 1000)

    return await reachable(keeper.begin(), keeper, givers(Others(**others)), ends)


async def test_what_nobody_has_keeps_nobody_from_getting_older_epochs(tmp_path: Path) -> None:
    story = story_of(LAST, "blue")
    all_of_it = [Archived(e.epoch, e.epoch - 1, e.at_ms, encode_epoch(e)) for e in story.epochs]
    source, archive = Archive(tmp_path / "other"), Archive(tmp_path / "own")
    source.segments.adopt(all_of_it[:10])
    for held in (all_of_it[:2], all_of_it[6:10], all_of_it[15:]):
        archive.segments.adopt(held)
    keeper = Keeper(archive, 3, 0.01)
    told = await fill(keeper, givers(Others(there=(story, source))), LAST)
    assert told == "epochs 11 to 15, which nobody has"
    assert archive.segments.spans() == [Span(1, 10), Span(16, LAST)]
    await keeper.close()


@pytest.mark.parametrize("how", ["recovered", "truncated"])
async def test_epochs_of_another_history_are_set_aside_and_never_given_out(
    tmp_path: Path, how: str
) -> None:
    """It had read what an unclean election lost, and the others have gone on since."""
    own, right = story_of(LAST, "blue"), story_of(LAST, "green and more")
    assert own.images[SHARED].state_id == right.images[SHARED].state_id
    if how == "recovered":
        right.recover(NEW, LAST)
    while right.image.epoch < LATER:
        assert right.apply(SetSetting("later", "1")) is None
    source = archive_of(tmp_path / "right", right, LATER)
    keeper = Keeper(archive_of(tmp_path / "own", own), 3, 0.01)
    begin = 0 if how == "recovered" else LATER - 1
    start = await begun(keeper, begin, right=(right, source))
    assert start.image.state_id == right.image.state_id
    assert keeper.archive.segments.spans() == [Span(1, SHARED)]


async def test_only_who_follows_the_recovered_log_gives_a_snapshot_of_it(tmp_path: Path) -> None:
    own = story_of(LATER, "blue")
    right = story_of(LATER, "blue")
    right.recover(NEW, LAST)
    one = archive_of(tmp_path / "own", own, LATER)
    stale = archive_of(tmp_path / "stale", own, LATER)
    source = archive_of(tmp_path / "right", right, LAST + 1)
    start = await begun(Keeper(one, 3, 0.01), 0, stale=(own, stale), right=(right, source))
    assert start.image.log_id == NEW
    assert one.segments.spans() == [Span(1, LAST)]
    assert [kept.head.log_id for kept in one.snapshots.all()] == [NEW.hex()]


class Hesitating(Others):
    """It is asked for a file once before it gives one, as by who cannot hear it for a moment."""

    asked = 0

    async def files(self, url: str, snapshot: SnapshotAnswer, *, decided: bool) -> list[bytes]:
        self.asked += 1
        if self.asked == 1:
            raise CatchUpUnavailable(f"{url}: no answer")
        return await super().files(url, snapshot, decided=decided)


@pytest.mark.parametrize("colour", ["blue", "green and more"])
async def test_what_a_recovery_gave_up_is_set_aside_whenever_its_log_is_taken_over(
    tmp_path: Path, colour: str
) -> None:
    """Its topic begins behind the recovery by the time that a snapshot is got, and who gives that is not as far
    as what was given up: it knows neither of that nor that it is another history.
    """
    own, right = story_of(LATER, "blue"), story_of(LATER, colour)
    right.recover(NEW, LAST)
    source = archive_of(tmp_path / "right", right, LAST + 1, losers=LATER)
    keeper = Keeper(archive_of(tmp_path / "own", own, LATER), 3, 0.01)

    async def ends() -> Ends:
        return Ends(LATER, 1000)

    others = givers(Hesitating(right=(right, source)))
    start = await reachable(keeper.begin(), keeper, others, ends)
    assert start.image.log_id == NEW
    shared = LAST if colour == "blue" else SHARED
    assert keeper.archive.segments.spans() == [Span(1, shared)]
    await keeper.close()


@pytest.mark.parametrize(("colour", "fits"), [("blue", True), ("green and more", False)])
async def test_a_gap_is_not_filled_with_another_history(
    tmp_path: Path, colour: str, fits: bool
) -> None:
    """A replica that has missed a recovery may answer first."""
    own, other = story_of(LAST, "blue"), story_of(LAST, colour)
    source = archive_of(tmp_path / "other", other)
    all_of_it = [Archived(e.epoch, e.epoch - 1, e.at_ms, encode_epoch(e)) for e in own.epochs]
    archive = Archive(tmp_path / "own")
    archive.segments.adopt(all_of_it[14:])
    keeper = Keeper(archive, 3, 0.01)
    told = await fill(keeper, givers(Others(there=(other, source))), LAST)
    assert ("another history" in told) is not fits
    assert archive.segments.first == (1 if fits else 15)
    await keeper.close()


@pytest.mark.parametrize("there", ["the record", "another one", "nothing"])
async def test_the_first_epoch_of_a_recovered_log_is_kept_from_the_topic(
    tmp_path: Path, there: str
) -> None:
    """Who recovered the log, and alone had it beside its snapshot, may die for good."""
    own, right = story_of(LAST, "blue"), story_of(LAST, "blue")
    right.recover(NEW, LAST)
    source = archive_of(tmp_path / "right", right, LAST + 1)
    keeper = Keeper(archive_of(tmp_path / "own", own), 3, 0.01)
    start = await begun(keeper, 0, right=(right, source))
    assert start.anchor is not None
    partition = MemoryPartition()
    for epoch in right.epochs[:LAST] if there != "nothing" else ():
        partition.append(encode_epoch(epoch))
    partition.append(encode_epoch(right.epochs[-1 if there == "the record" else 0]))
    await keep_beginning(keeper, MemoryLog(partition), start)
    is_kept = there == "the record"
    assert keeper.archive.segments.spans() == [Span(1, LAST + is_kept)]
    await keep_beginning(keeper, MemoryLog(partition), start)
    assert keeper.archive.segments.spans() == [Span(1, LAST + is_kept)]
    await keeper.close()


async def test_what_is_missing_is_asked_for_at_once_where_the_log_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator who recovers it waits for that; as long as all is well half a minute is soon enough."""
    asked, failed = asyncio.Semaphore(0), asyncio.Event()

    async def whole(*_: object) -> str:
        asked.release()
        return ""

    monkeypatch.setattr(replica, "fill", whole)
    monkeypatch.setattr(replica, "LOST_PAUSE_S", 0.001)
    archive = SimpleNamespace(segments=SimpleNamespace(spans=list))
    keeper = SimpleNamespace(last=3, archive=archive)
    jobs = SimpleNamespace(keeper=keeper, api=SimpleNamespace(), givers=None)
    follower = SimpleNamespace(failure=None, failed=failed, image=EMPTY)
    filling = asyncio.create_task(replica._fill(cast(Any, jobs), 0, cast(Any, follower)))
    await asked.acquire()
    await asyncio.sleep(0.02)
    assert asked.locked(), "it waits"
    follower.failure = AnchorLostError(3, "it is gone")
    failed.set()
    for _ in range(3):
        await asyncio.wait_for(asked.acquire(), 5)
    filling.cancel()
