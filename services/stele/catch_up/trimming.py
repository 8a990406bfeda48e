"""Moves the beginning of the archive as the log states: the replica first agrees, and later
deletes.

Three conditions must hold. Its own snapshot of the epoch is checked, every epoch from there on is
here, and the store, if any, holds everything before. Deletion needs the same conditions, whatever
the others have agreed to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from stele.catch_up import metrics
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.keeper import Keeper, KeeperClosedError
from stele.domain.image import Image
from stele.domain.model.archive import AgreeToTrim, TrimProposed
from stele.log.archive.container import DamagedFileError, NotArchivedError
from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.log.brokers import Brokers
from stele.log.errors import LogError
from stele.log.kafka import answer_of
from stele.runtime.answers.catch_up import StoreAnswer
from stele.runtime.logs import get_logger
from stele.runtime.starting import AskEnds

LOOK_S: Final = 1.0
AGAIN_S: Final = 30.0
"""Pause after a read failure, in seconds."""

Store = Callable[[], StoreAnswer]
"""Returns the progress of the store."""

log = get_logger(__name__)


class Trimmer:
    """Agrees to trims and performs them.

    ``vote`` is this replica's agreement; None until it is certain.
    """

    def __init__(
        self,
        keeper: Keeper,
        image: Callable[[], Image],
        identity: ReplicaIdentity,
        store: Store | None,
    ) -> None:
        self.vote: AgreeToTrim | None = None
        self._voted_on: TrimProposed | None = None
        """The proposal that the vote answers.

        An epoch may be proposed again with another state id.
        """
        self._keeper = keeper
        self._image = image
        self._trimmed_epoch = 0
        """The archive's beginning in the log."""
        self._trim_read_at = 0
        """The newest epoch when that beginning was first read. The trim is in it or before it."""
        self._identity = identity
        self._store = store
        self._logged_reason = ""

    async def run(self) -> None:
        """Run forever. Read failures are logged and retried."""
        while True:
            try:
                await self.step()
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

    async def step(self) -> None:
        """Do one step. Raises the errors of reading and writing the archive."""
        image, keeper = self._image(), self._keeper
        archive = image.archive
        proposed, trimmed = archive.proposed, archive.trimmed
        keeper.needed = frozenset(each.epoch for each in (proposed, trimmed) if each is not None)
        if trimmed is not None and self._holds_older(trimmed.epoch):
            if self._trimmed_epoch != trimmed.epoch:
                self._trimmed_epoch, self._trim_read_at = trimmed.epoch, image.epoch
            # A recovery from this archive must preserve the trim itself.
            has_trim = keeper.archive.segments.last >= self._trim_read_at
            if self._is_complete_from(trimmed.epoch) and has_trim:
                await self._trim(trimmed.epoch, trimmed.state_id, trimmed.hash)
        if proposed is None:
            self.vote = None
        elif self.vote is None or self._voted_on != proposed:
            # Clear the old vote first. It must not stand for the new proposal if the snapshot
            # cannot be read.
            self.vote, self._voted_on = None, proposed
            if self._is_complete_from(proposed.epoch):
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
            self._log_reason(f"its snapshot of epoch {epoch} is not what the members agreed on")
            return
        gone = await self._keeper.trim(epoch)
        metrics.trimmed_epochs.inc(gone)
        log.info("the archive begins later", epoch=epoch, deleted=gone)

    def _holds_older(self, epoch: int) -> bool:
        archive = self._keeper.archive
        snapshots = (kept.head.epoch for kept in archive.snapshots.all())
        return any(e < epoch for e in (*snapshots, *(s.first for s in archive.segments.spans())))

    def _is_complete_from(self, epoch: int) -> bool:
        """Return whether every epoch from this one on is here, and the store has everything
        before it.
        """
        segments = self._keeper.archive.segments
        if not segments.first <= epoch <= segments.last:
            self._log_reason(f"epochs from {epoch} on are not all here yet")
            return False
        if self._store is not None:
            stored = self._store()
            if stored.why or stored.epoch < epoch:
                self._log_reason(f"the store has epochs up to {stored.epoch} yet, and not {epoch}")
                return False
        return True

    def _log_reason(self, why: str) -> None:
        """Log the reason, once until it changes."""
        if why != self._logged_reason:
            log.info("the archive is not trimmed yet", why=why)
        self._logged_reason = why


def older_in(image: Image) -> str:
    """Return where the deleted epochs of the archive can be found, as text; empty when none are
    deleted.
    """
    trimmed = image.archive.trimmed
    if trimmed is None:
        return ""
    where = f"; {', '.join(trimmed.stores)} has older ones" if trimmed.stores else ""
    return f"The archive begins at epoch {trimmed.epoch}{where}."


# Delete from the topic what the log permits to delete (``LogTruncated``).
#
# Every replica does it.


TRUNCATING_LOOK_S: Final = 2.0
DELETE_S: Final = 10.0


Delete = Callable[[int], None]
"""Deletes the topic's records before an offset. Blocks. Raises KafkaException, TimeoutError."""


async def truncate(
    delete: Delete,
    image: Callable[[], Image],
    ends: AskEnds,
    is_certain: Callable[[], bool],
) -> None:
    """Delete, forever, the records that the followed log marks as truncated.

    It deletes only while it is certain that the topic holds that log. Offsets of another log mean
    other records.
    """
    done = 0
    while True:
        truncated = image().archive.truncated
        if (
            truncated is not None
            and is_certain()
            and truncated.offset > done
            and truncated.log_id == image().log_id.hex()
        ):
            try:
                if (await ends()).begin < truncated.offset:
                    await asyncio.to_thread(delete, truncated.offset)
                    log.info(
                        "the topic is truncated", epoch=truncated.epoch, begin=truncated.offset
                    )
                done = truncated.offset
            except (KafkaException, TimeoutError) as error:
                log.warning("the topic is not truncated yet", why=str(error))
        await asyncio.sleep(TRUNCATING_LOOK_S)


def delete_records(brokers: Brokers, topic: str, offset: int) -> None:
    """A ``Delete`` of a topic's only partition. Raises KafkaException, TimeoutError."""
    admin = AdminClient(brokers.client())
    asked = admin.delete_records(
        [TopicPartition(topic, 0, offset)], request_timeout=DELETE_S, operation_timeout=DELETE_S
    )
    for answer in asked.values():
        answer_of(answer, DELETE_S + 1)
