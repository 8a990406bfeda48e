"""Finishing a recovery: the log goes on in the topic from what this archive holds, and perhaps nobody within
reach has a snapshot to begin with: whoever wrote the record died before it had one, or before others had it.

What ``stele recover`` would do here is done, but for the record, which is there. It is the first one in the
topic, so it counts. Yet while nothing follows it nobody has relied on it; where somebody holds later epochs of
the old log then, people say which of them the log goes on with.
"""

import asyncio
import struct
import time
from typing import Final

from confluent_kafka import KafkaException

from stele.catch_up.keeper import Keeper
from stele.catch_up.recovering import READ_RECORDS, NotRecoverable, image_at, keep, recovery_in
from stele.domain.cluster.facts import LogRecovered
from stele.log.archive.container import DamagedFileError
from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.log.archive.spans import NotArchivedError
from stele.log.chain import FROZEN
from stele.log.errors import LogError
from stele.log.follower import LogFollower
from stele.log.incarnations import recovered_from
from stele.log.port import EpochsLog, Record
from stele.log.recovery import start_after
from stele.runtime.catch_up import CatchUp
from stele.runtime.logs import get_logger

FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 30.0
"""A look reads the topic up to the recovery, or all of it."""
UNKNOWN: Final = (
    KafkaException,
    TimeoutError,
    OSError,
    DamagedFileError,
    UnreadableSnapshotError,
    struct.error,  # something in the topic is no record
)

log = get_logger(__name__)


class Finisher:
    """For the log that ``follower`` has stopped reading."""

    def __init__(
        self, keeper: Keeper, follower: LogFollower, epochs: EpochsLog, others: CatchUp
    ) -> None:
        self._keeper = keeper
        self._follower = follower
        self._epochs = epochs
        self._others = others
        self._pause_s = FIRST_PAUSE_S
        self._next_s = 0.0

    async def finish(self) -> bool:
        """Whether this archive is of the log that goes on now, or cannot be kept: either way the process must
        begin anew. Looks at the topic seldom, however often it is called.
        """
        if time.monotonic() < self._next_s or self._keeper.is_closed:
            return False
        try:
            if await self._finish():
                return True
        except (LogError, NotRecoverable, NotArchivedError) as error:
            log.warning("the log is not gone on with from here", why=str(error))
        except UNKNOWN as error:
            log.warning("whether the log goes on from here is unknown", why=str(error))
        self._next_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        return False

    async def _finish(self) -> bool:
        log_id = self._follower.image.log_id
        begin, end = await self._epochs.ends()
        there = await recovery_in(self._epochs, log_id, begin, end)
        fact = None if there is None else recovered_from(log_id, *there)
        if there is None or fact is None or fact.from_log_id != log_id.hex():
            return False
        if not await self._is_followed(fact, there.offset + 1, end) and await self._is_longer(fact):
            return False
        return await self._keep(fact, there)

    async def _is_followed(self, fact: LogRecovered, begin: int, end: int) -> bool:
        """Somebody has begun behind it, and may have relied on it. That it landed twice says nothing."""
        if begin >= end:
            return False
        found = await self._epochs.read(begin, min(READ_RECORDS, end - begin))
        heads = (FROZEN.unpack_from(value) for _, value in found)
        first = fact.last_epoch + 1
        return any(
            log_id.hex() == fact.log_id and epoch > first for _, _, log_id, _, epoch, _ in heads
        )

    async def _is_longer(self, fact: LogRecovered) -> bool:
        """This replica or another one that answers holds epochs that the recovery gives up."""
        archives = [answer for _, answer in await self._others.archives()]
        held = [
            max(answer.epoch, *(span.last for span in answer.spans), 0)
            for answer in archives
            if answer.log_id == fact.from_log_id
        ]
        own = self._follower.image.epoch, self._keeper.archive.segments.last
        return max(*held, *own) > fact.last_epoch

    async def _keep(self, fact: LogRecovered, there: Record) -> bool:
        keeper, state_id = self._keeper, bytes.fromhex(fact.state_id)
        async with keeper.recovering:
            if keeper.is_closed:
                return False  # somebody recovers the log from here, and ends the process
            start = await asyncio.to_thread(image_at, keeper.archive, fact.last_epoch, state_id)
            after = start_after(start.image, there)
            self._follower.stop()
            try:
                await keeper.close()
                await asyncio.to_thread(keep, keeper.archive, start, after, there)
            except (OSError, DamagedFileError) as error:
                log.error("what the log goes on with cannot be kept", why=str(error))
                return True
        log.warning(
            "the log was recovered from an epoch that is here: this archive goes on behind it",
            log_id=fact.log_id,
            epoch=after.image.epoch,
            offset=there.offset,
        )
        return True
