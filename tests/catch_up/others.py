"""Two histories of one log, archives of them, and replicas that serve such archives."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, cast

from stele.catch_up.filling import ArchivePeers, reachable
from stele.catch_up.keeper import Keeper
from stele.domain.commands import FoundCluster, SetSetting
from stele.domain.image import EMPTY
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived, NotArchivedError
from stele.log.archive.snapshots import head_of
from stele.log.chain import Anchor, digest_of
from stele.log.codec import encode_epoch
from stele.log.errors import OffsetGoneError
from stele.log.port import Ends, Log, Record
from stele.runtime.answers.catch_up import (
    ArchiveAnswer,
    Known,
    SnapshotAnswer,
    SpanAnswer,
    StartAnswer,
)
from stele.runtime.catch_up import CatchUp
from tests.domain.epochs import LOG_ID
from tests.domain.epochs import History as Story

SHARED, LAST, LATER = 8, 20, 25
ANSWER_EPOCHS = 5
"""The maximum of epochs in an answer."""
NEW = bytes([0xC0] * 16)


def story_of(epochs: int, colour: str) -> Story:
    """Return a history. The first epochs do not depend on the colour."""
    story = Story(empty=EMPTY)
    assert story.apply(FoundCluster("demo/1", LOG_ID.hex())) is None
    while story.image.epoch < epochs:
        value = colour if story.image.epoch >= SHARED else "any"
        if story.image.epoch == SHARED:
            story.at_ms += 1 + len(colour)
        assert story.apply(SetSetting("colour", value)) is None
    return story


def records_of(story: Story, losers: int = 0) -> list[Archived]:
    """Return the records of a topic that begins with this number of losers."""
    return [Archived(e.epoch, e.epoch - 1 + losers, e.at_ms, encode_epoch(e)) for e in story.epochs]


def archive_of(folder: Path, story: Story, snapshot: int = 0, losers: int = 0) -> Archive:
    archive = Archive(folder)
    records = records_of(story, losers)
    archive.segments.adopt(records)
    if snapshot:
        add_snapshot(archive, story, snapshot, losers)
    return archive


def add_snapshot(archive: Archive, story: Story, epoch: int, losers: int = 0) -> None:
    """Add a snapshot of this epoch."""
    image, record = story.images[epoch], records_of(story, losers)[epoch - 1]
    anchor = Anchor(record.offset, digest_of(record.value))
    head = head_of(image, record.offset + 1, anchor, record.at_ms)
    archive.snapshots.write(image, head, ())


class Others:
    """Replicas with these archives, by their addresses."""

    def __init__(self, **by_url: tuple[Story, Archive]) -> None:
        self._by_url = by_url
        self.silent = dict[str, str]()
        self.trouble = dict[str, str]()
        self.stopped = dict[str, str]()
        self.clusters = dict[str, str]()
        self.gave = list[str]()
        self.late_s = dict[str, float]()
        """Delay of the answer of each replica after the first."""

    async def archives(self) -> list[Any]:
        return [(url, self._told(url, *each)) for url, each in self._by_url.items()]

    def _told(self, url: str, story: Story, archive: Archive) -> Any:
        image = story.image
        return ArchiveAnswer(
            replica_id="",
            cluster=self.clusters.get(url, "demo"),
            cluster_id="",
            log_id=image.log_id.hex(),
            incarnations=image.founding.incarnations,
            epoch=image.epoch,
            trouble=self.trouble.get(url, ""),
            spans=tuple(SpanAnswer(*span) for span in archive.segments.spans()),
            size_bytes=0,
            snapshots=(),
            damaged=(),
        )

    async def starts(self, grace_s: float = 0.05, **_: object) -> list[Any]:
        found = list[Any]()
        for url, (story, archive) in self._by_url.items():
            kept = archive.snapshots.newest()
            if kept is None or self.late_s.get(url, 0.0) > grace_s:
                continue
            head = kept.head
            answer = StartAnswer(
                replica_id=url,
                log_id=story.image.log_id.hex(),
                known=Known.SAME,
                last=archive.segments.last,
                last_state_id="",
                tail_bytes=0,
                stopped=self.stopped.get(url, ""),
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
        self.gave.append(url)
        kept = self._by_url[url][1].snapshots.named(snapshot.name)
        assert kept is not None
        return [kept.path.read_bytes(), kept.decided_path.read_bytes()]

    async def records(
        self, first: int, last: int, log_id: str = "", among: Collection[str] = ()
    ) -> list[Archived]:
        (url,) = among
        story, archive = self._by_url[url]
        assert log_id in ("", story.image.log_id.hex())
        found = [record for record in archive.segments.read(first) if record.epoch <= last]
        if not found or found[0].epoch != first:
            raise NotArchivedError(first)
        return found[:ANSWER_EPOCHS]

    async def known(self, url: str, epoch: int, state_id: bytes) -> Known:
        there = self._by_url[url][1].state_id_of(epoch)
        if there is None:
            return Known.UNKNOWN
        return Known.SAME if there == state_id else Known.OTHER


def peers(others: Others) -> ArchivePeers:
    """No archive store."""
    return ArchivePeers(cast(CatchUp, others), None, "demo")


class Topic:
    """A topic with these records from offset ``begin`` on."""

    def __init__(self, records: Iterable[Archived], begin: int = 0) -> None:
        self.records = [Record(each.offset, each.value) for each in records]
        self.begin = begin

    async def ends(self) -> Ends:
        return Ends(self.begin, self.records[-1].offset + 1)

    async def read(self, offset: int, limit: int) -> list[Record]:
        if offset < self.begin:
            raise OffsetGoneError(offset, f"the topic begins at {self.begin}.")
        return [each for each in self.records if offset <= each.offset < offset + limit]

    def as_log(self) -> Log:
        """Return the topic as a log for reading."""
        return cast(Log, self)


def topic_of(story: Story, begin: int = 0, losers: int = 0) -> Topic:
    """Return the log of a story in a topic with this number of losers first, truncated up to ``begin``."""
    return Topic(records_of(story, losers), begin)


async def begun(keeper: Keeper, topic: Topic, **others: tuple[Story, Archive]) -> Any:
    return await begun_with(keeper, topic, Others(**others))


async def begun_with(keeper: Keeper, topic: Topic, others: Others) -> Any:
    """Return where the replica starts. Raises TruncatedError."""
    return await reachable(keeper.begin(), keeper, peers(others), topic.as_log())
