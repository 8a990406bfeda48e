"""The union of several replicas, for a backup."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Collection, Mapping

import msgspec
import pytest

from stele.log.archive.container import (
    Archived,
    DamagedFileError,
    EpochSpan,
    NotArchivedError,
    as_container,
)
from stele.log.archive_store.layout import StoredSnapshot
from stele.runtime.answers.catch_up import ArchiveAnswer, SnapshotAnswer, SpanAnswer
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable, DifferentLogsError, replica_source
from stele.runtime.transport import OnPiece
from tests.log.archive.story import long_story
from tests.log.archive_store.made import record_of

OLD, NEW = "01" * 16, "02" * 16
STATE = "ab" * 16
FAR_S = 0.02
"""Additional delay of the answer of a more distant replica."""


def snapshot(epoch: int) -> SnapshotAnswer:
    return SnapshotAnswer(
        name=f"{epoch:020}-{STATE}",
        epoch=epoch,
        state_id=STATE,
        log_id=NEW,
        at_ms=1,
        size_bytes=1,
        decided_bytes=1,
        next_offset=1,
        anchor_offset=0,
    )


def answer(
    *spans: tuple[int, int],
    cluster_id: str = "books/1",
    log_id: str = NEW,
    shots: tuple[int, ...] = (),
) -> ArchiveAnswer:
    return ArchiveAnswer(
        replica_id="cu",
        cluster="books",
        cluster_id=cluster_id,
        log_id=log_id,
        incarnations=(),
        epoch=100,
        trouble="",
        spans=tuple(SpanAnswer(*span) for span in spans),
        size_bytes=1,
        snapshots=tuple(snapshot(epoch) for epoch in shots),
        damaged=(),
    )


class Canned(CatchUp):
    """Replicas with these answers and one record."""

    def __init__(self, *answers: ArchiveAnswer, record: Archived | None = None) -> None:
        super().__init__([])
        self._answers = answers
        self._record = record

    async def archives(self) -> list[tuple[str, ArchiveAnswer]]:
        return [(f"http://{number}", found) for number, found in enumerate(self._answers)]

    async def records(
        self, first: int, last: int, log_id: str = "", among: Collection[str] = ()
    ) -> list[Archived]:
        del log_id, among
        if self._record is None or not first <= self._record.epoch <= last:
            raise NotArchivedError(first)
        return [self._record]

    async def files(self, url: str, snapshot: SnapshotAnswer, *, decided: bool) -> list[bytes]:
        return [f"{url} {snapshot.epoch} {decided}".encode()] * 2


async def test_source_is_the_union_of_all_replicas() -> None:
    source = await replica_source(
        Canned(answer((1, 10), (30, 40), shots=(10,)), answer((8, 35), shots=(10, 20)))
    )
    assert source.about == ("books", "books/1", NEW)
    assert source.spans == [EpochSpan(1, 40)]
    assert source.shots == [StoredSnapshot(NEW, 10, STATE), StoredSnapshot(NEW, 20, STATE)]
    assert source.urls == ["http://0", "http://1"]


async def test_replicas_of_an_earlier_log_are_ignored() -> None:
    source = await replica_source(Canned(answer((1, 90), log_id=OLD), answer((1, 50))))
    assert source.about.log_id == NEW
    assert source.spans == [EpochSpan(1, 50)]
    assert source.urls == ["http://1"]


class Wire:
    """Two replicas with the same epochs, by host. The nearer one still has the earlier log."""

    def __init__(self) -> None:
        self.asked = list[str]()

    async def ask(
        self,
        url: str,
        on_piece: OnPiece,
        total_s: float | None,
        params: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
        method: str = "GET",
        body: bytes | None = None,
    ) -> int:
        host, _, path = url.removeprefix("http://").partition("/")
        if path == "v1/archive":
            log_id = OLD if host == "stale" else NEW
            await asyncio.sleep(0 if host == "stale" else FAR_S)
            on_piece(200, msgspec.json.encode(answer((1, 40), log_id=log_id)))
            return 200
        self.asked.append(host)
        out = io.BytesIO()
        as_container(out, [record_of(long_story().epochs[6])])
        on_piece(200, out.getvalue())
        return 200

    async def close(self) -> None: ...


async def test_epochs_are_read_only_from_replicas_of_the_newest_log() -> None:
    """The nearest replica may still have epochs with the same numbers that a recovery gave up."""
    wire = Wire()
    source = await replica_source(CatchUp(["http://stale", "http://new"], wire))
    await source.records(7, 7)
    await source.state_id_of(7)
    assert wire.asked == ["new", "new"]


async def test_replicas_of_two_clusters_are_refused() -> None:
    with pytest.raises(DifferentLogsError, match="different clusters"):
        await replica_source(Canned(answer((1, 9)), answer((1, 9), cluster_id="films/1")))


async def test_replicas_without_a_log_are_ignored() -> None:
    empty = msgspec.structs.replace(answer(), cluster="", cluster_id="", log_id="")
    for canned in (Canned(), Canned(empty)):
        with pytest.raises(CatchUpUnavailable):
            await replica_source(canned)


async def test_unreadable_snapshot_is_an_error() -> None:
    source = await replica_source(Canned(answer((1, 40), shots=(20,))))
    with pytest.raises(DamagedFileError):
        await source.files(StoredSnapshot(NEW, 20, STATE))


async def test_state_id_is_read_from_the_record_of_the_epoch() -> None:
    record = record_of(long_story().epochs[6])
    source = await replica_source(Canned(answer((1, 40)), record=record))
    assert await source.state_id_of(7) == record.links[1].hex()
    assert await source.state_id_of(8) is None
    assert await source.records(7, 9) == [record]
