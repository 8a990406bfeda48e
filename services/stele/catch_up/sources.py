"""Sources of missing epochs: other replicas, the store, and segments that were set aside here."""

import asyncio
from typing import NamedTuple

from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived, EpochSpan
from stele.log.archive.segments import Segment, up_to
from stele.log.archive_store.source import EpochSource
from stele.log.archive_store.stored import NoArchiveError, stored_archive
from stele.log.blobs.port import BlobStore
from stele.runtime.catch_up import CatchUp, ReplicaSource


class Givers(NamedTuple):
    """The other replicas, and the store of the cluster, if there is one."""

    others: CatchUp
    store: BlobStore | None
    cluster: str


class _SetAside:
    """A segment that was set aside, as a source."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.spans = (EpochSpan(segment.first, segment.last),)

    async def records(self, first: int, last: int) -> list[Archived]:
        return await asyncio.to_thread(up_to, self._segment, first, last)


async def replicas(archive: Archive, givers: Givers) -> list[EpochSource]:
    """Return the replicas that answer: those that read the own log first, then the nearest.

    A replica that reads the own log must answer from that log, since it may have switched to
    another log in between. A replica that missed a recovery, or cannot read the log, may still have
    the same older epochs. Its requests carry no log id.
    """
    newest = archive.snapshots.newest()
    log_id = "" if newest is None else newest.head.log_id
    answers = await givers.others.archives()
    ordered = sorted(answers, key=lambda each: each[1].log_id != log_id)
    return [
        ReplicaSource(
            givers.others,
            [(url, answer)],
            log_id if answer.log_id == log_id and not answer.trouble else "",
        )
        for url, answer in ordered
    ]


async def stored(_: Archive, givers: Givers) -> list[EpochSource]:
    """Return the store's archive, if there is one. Raises BlobStoreError."""
    if givers.store is None:
        return []
    try:
        return [await stored_archive(givers.store, givers.cluster)]
    except NoArchiveError:
        return []


async def set_aside(archive: Archive, _: Givers) -> list[EpochSource]:
    """Return the segments set aside because no source could confirm them, or that turned out not
    to be lost.
    """
    segments = await asyncio.to_thread(archive.segments.lost)
    return [_SetAside(each) for each in segments]
