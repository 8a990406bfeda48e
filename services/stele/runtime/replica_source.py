"""What catch-up replicas have, over HTTP, to be put into a store."""

import asyncio
import io
from collections.abc import Sequence

from stele.log.archive.records import Archived
from stele.log.archive.snapshots import start_of
from stele.log.archive.spans import NotArchivedError, Span, joined
from stele.log.archive_store.layout import Shot
from stele.log.archive_store.source import About
from stele.runtime.answers.catch_up import ArchiveAnswer, SnapshotAnswer
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable


class ReplicaSource:
    """All replicas that answered together: what one lacks another may have. Make it by ``replica_source``.
    Nobody else is asked: who keeps an older log may have what the recovery of that gave up.

    Calls raise CatchUpUnavailable beside what every source raises.
    """

    def __init__(self, catch_up: CatchUp, answers: Sequence[tuple[str, ArchiveAnswer]]) -> None:
        self._catch_up = catch_up
        self._answers = answers
        _, first = answers[0]
        self._about = About(first.cluster, first.cluster_id, first.log_id)
        self._snapshots = dict[Shot, tuple[str, SnapshotAnswer]]()
        for url, answer in answers:
            for found in answer.snapshots:
                shot = Shot(found.log_id, found.epoch, found.state_id)
                self._snapshots.setdefault(shot, (url, found))

    @property
    def urls(self) -> list[str]:
        """Who answered."""
        return [url for url, _ in self._answers]

    async def about(self) -> About:
        return self._about

    async def spans(self) -> Sequence[Span]:
        return joined(Span(s.first, s.last) for _, answer in self._answers for s in answer.spans)

    async def shots(self) -> Sequence[Shot]:
        return [*self._snapshots]

    async def state_id_of(self, epoch: int) -> str | None:
        try:
            (record, *_) = await self.records(epoch, epoch)
        except NotArchivedError:
            return None
        return record.links[1].hex()

    async def records(self, first: int, last: int) -> Sequence[Archived]:
        return await self._catch_up.records(first, last, among=self.urls)

    async def files(self, shot: Shot) -> tuple[bytes, bytes]:
        url, snapshot = self._snapshots[shot]
        image, decided = await self._catch_up.files(url, snapshot, decided=True)
        await asyncio.to_thread(start_of, io.BytesIO(image), io.BytesIO(decided))
        return image, decided


class DifferentLogsError(Exception):
    """The replicas that answer do not keep the same log."""


async def replica_source(catch_up: CatchUp) -> ReplicaSource:
    """The replicas that answer now, and keep the newest log.

    Raises CatchUpUnavailable when none does, DifferentLogsError when they are of different clusters.
    """
    answers = [found for found in await catch_up.archives() if found[1].cluster_id]
    if not answers:
        raise CatchUpUnavailable("No catch-up replica answers that has read its log.")
    clusters = {answer.cluster_id: url for url, answer in answers}
    if len(clusters) > 1:
        told = "; ".join(f"{url}: {cluster_id}" for cluster_id, url in clusters.items())
        raise DifferentLogsError(f"The replicas are of different clusters ({told}).")
    newest = max(answer.log_id for _, answer in answers)
    return ReplicaSource(catch_up, [found for found in answers if found[1].log_id == newest])
