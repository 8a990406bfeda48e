"""The beginning of the archive moves as the log says: this replica agrees to it once it can, and then deletes.

It agrees once it has checked its own snapshot of the epoch, has every epoch from there on, and has put what is
before it into its store, if it has one. It deletes by the same conditions, whatever the others have agreed to.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from stele.catch_up import metrics
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.keeper import Keeper, KeeperClosedError
from stele.domain.archive.commands import AgreeToTrim
from stele.domain.archive.facts import TrimProposed
from stele.domain.image import Image
from stele.log.archive.container import DamagedFileError
from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.log.archive.spans import NotArchivedError
from stele.log.errors import LogError
from stele.runtime.answers.catch_up import StoreAnswer
from stele.runtime.logs import get_logger

LOOK_S: Final = 1.0
AGAIN_S: Final = 30.0
"""After something that could not be read."""

Store = Callable[[], StoreAnswer]
"""How far the store is."""

log = get_logger(__name__)


class Trimmer:
    """``vote`` is what this replica has to say to what is proposed; None until it is certain."""

    def __init__(
        self,
        keeper: Keeper,
        image: Callable[[], Image],
        identity: ReplicaIdentity,
        store: Store | None,
    ) -> None:
        self.vote: AgreeToTrim | None = None
        self._voted_on: TrimProposed | None = None
        """One epoch may be proposed twice, and the second time with another state id."""
        self._keeper = keeper
        self._image = image
        self._seen = (0, 0)
        """The beginning that the log says, and the newest epoch when that was seen first."""
        self._identity = identity
        self._store = store
        self._last_told = ""

    async def run(self) -> None:
        """For ever. What cannot be read is logged, and tried again."""
        while True:
            try:
                await self.look()
                await asyncio.sleep(LOOK_S)
            except (
                LogError,
                DamagedFileError,
                NotArchivedError,
                UnreadableSnapshotError,
                KeeperClosedError,
                OSError,
            ) as error:
                log.warning("the archive is not trimmed now", why=str(error))
                await asyncio.sleep(AGAIN_S)

    async def look(self) -> None:
        """Do what can be done. Raises what reading and writing the archive does."""
        image, keeper = self._image(), self._keeper
        archive = image.archive
        proposed, trimmed = archive.proposed, archive.trimmed
        keeper.needed = frozenset(each.epoch for each in (proposed, trimmed) if each is not None)
        if trimmed is not None and self._is_to_go(trimmed.epoch):
            if self._seen[0] != trimmed.epoch:
                self._seen = trimmed.epoch, image.epoch
            if self._is_there(trimmed.epoch) and self._is_certain():
                await self._trim(trimmed.epoch, trimmed.state_id, trimmed.hash)
        if proposed is None:
            self.vote = None
        elif self.vote is None or self._voted_on != proposed:
            self.vote, self._voted_on = None, proposed
            if self._is_there(proposed.epoch):
                state_id = bytes.fromhex(proposed.state_id)
                kept = await keeper.snapshot_at(proposed.epoch, state_id)
                self.vote = AgreeToTrim(
                    replica_id=self._identity.replica_id,
                    epoch=proposed.epoch,
                    hash=kept.hash,
                    store="" if self._store is None else self._store().url,
                    folder_id=self._identity.folder_id,
                )

    async def _trim(self, epoch: int, state_id: str, hash_: str) -> None:
        kept = await self._keeper.snapshot_at(epoch, bytes.fromhex(state_id))
        if kept.hash != hash_:
            self._tell(f"its snapshot of epoch {epoch} is not what the members agreed on")
            return
        gone = await self._keeper.trim(epoch)
        metrics.trimmed_epochs.inc(gone)
        log.info("the archive begins later", epoch=epoch, deleted=gone)

    def _is_certain(self) -> bool:
        """What the log says is in this archive too: a recovery of the log from here knows of it."""
        return self._keeper.archive.segments.last >= self._seen[1]

    def _is_to_go(self, epoch: int) -> bool:
        archive = self._keeper.archive
        snapshots = (kept.head.epoch for kept in archive.snapshots.all())
        return any(e < epoch for e in (*snapshots, *(s.first for s in archive.segments.spans())))

    def _is_there(self, epoch: int) -> bool:
        """Every epoch from this one on is here, and what is before it is in the store."""
        segments = self._keeper.archive.segments
        if not segments.first <= epoch <= segments.last:
            self._tell(f"epochs from {epoch} on are not all here yet")
            return False
        if self._store is not None:
            stored = self._store()
            if stored.why or stored.epoch < epoch:
                self._tell(f"the store has epochs up to {stored.epoch} yet, and not {epoch}")
                return False
        return True

    def _tell(self, why: str) -> None:
        """Once."""
        if why != self._last_told:
            log.info("the archive is not trimmed yet", why=why)
        self._last_told = why


def older_in(image: Image) -> str:
    """Where the epochs are that were deleted from the archive, for people; empty when none were."""
    trimmed = image.archive.trimmed
    if trimmed is None:
        return ""
    where = f"; {', '.join(trimmed.stores)} has older ones" if trimmed.stores else ""
    return f"The archive begins at epoch {trimmed.epoch}{where}."
