"""Who may have epochs that an archive lacks: other replicas, the store, and what it has set aside itself."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from stele.log.archive.archive import Archive
from stele.log.archive.records import Archived
from stele.log.archive.segment import Segment, up_to
from stele.log.archive.spans import Span
from stele.log.archive_store.stored import NoArchiveError, stored_archive
from stele.log.blobs.port import BlobStore
from stele.runtime.answers.catch_up import ArchiveAnswer
from stele.runtime.catch_up import CatchUp


class Givers(NamedTuple):
    """Who may have what this archive lacks: other replicas, and the store of the cluster, if there is one."""

    others: CatchUp
    store: BlobStore | None
    cluster: str


class Source(NamedTuple):
    """Epochs ``spans``. ``records`` gives those from one on up to another at most, at least one; it raises
    NotArchivedError, CatchUpUnavailable, DamagedFileError, StoreError.
    """

    spans: Sequence[Span]
    records: Callable[[int, int], Awaitable[list[Archived]]]


async def replicas(archive: Archive, givers: Givers) -> list[Source]:
    """Those that answer, the nearest first, but before all others those that read the own log."""
    newest = archive.snapshots.newest()
    log_id = "" if newest is None else newest.head.log_id
    answers = await givers.others.archives()
    ordered = sorted(answers, key=lambda each: each[1].log_id != log_id)
    return [_replica(givers.others, url, answer, log_id) for url, answer in ordered]


async def stored(_: Archive, givers: Givers) -> list[Source]:
    """The store, if there is one, and an archive in it. Raises StoreError."""
    if givers.store is None:
        return []
    try:
        found = await stored_archive(givers.store, givers.cluster)
    except NoArchiveError:
        return []
    return [Source(found.spans, found.records)]


async def set_aside(archive: Archive, _: Givers) -> list[Source]:
    """What nobody could tell of when it was set aside, or was not lost after all."""
    segments = await asyncio.to_thread(archive.segments.lost)
    return [Source([Span(each.first, each.last)], partial(_read, each)) for each in segments]


def _replica(others: CatchUp, url: str, answer: ArchiveAnswer, log_id: str) -> Source:
    """One that reads the own log is asked for that: it may be another one by then. Whoever has missed a
    recovery, or cannot read the log, may have the same epochs of before.
    """
    asked = log_id if answer.log_id == log_id and not answer.trouble else ""
    spans = [Span(each.first, each.last) for each in answer.spans]
    return Source(spans, partial(others.records, log_id=asked, among=(url,)))


async def _read(segment: Segment, first: int, last: int) -> list[Archived]:
    return await asyncio.to_thread(up_to, segment, first, last)
