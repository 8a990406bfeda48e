"""Detects a log that ends before the end that others hold, or whose history differs from theirs."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from confluent_kafka import KafkaException

from stele.domain.image import NO_LOG
from stele.log.clocks import ConditionTimer
from stele.log.errors import LostWinnersError
from stele.log.fold import Fold
from stele.log.follower import Floor
from stele.log.reader import SHORT_LOG_S, TopicReader

TICK_S: Final = 0.25
RECOVER: Final = "`stele recover` brings back what is left."


class KnownEnd:
    """Compares what is read with ``floor``, the newest epoch that others reported."""

    def __init__(self, reader: TopicReader, fold: Fold, floor: Floor | None) -> None:
        self._reader = reader
        self._fold = fold
        self._floor = floor
        self._end_below_floor = ConditionTimer()

    @property
    def log_id(self) -> bytes:
        """Id of the log that was read. Before anything is read, the id that the floor expects."""
        if self._fold.image.log_id == NO_LOG and self._floor is not None:
            return bytes.fromhex(self._floor.log_id)
        return self._fold.image.log_id

    def check_read(self, offset: int) -> None:
        """Compare the newest epoch that was read with the floor. Raises OtherHistoryError."""
        image, floor = self._fold.image, self._floor
        if floor is not None and image.epoch == floor.epoch:
            floor.check(offset, image.log_id, image.epoch, image.state_id)

    def check_end(self) -> None:
        """Check the log after reading to an end that the brokers reported.

        An end before the floor may come from a deposed leader. If it persists, winners are lost:
        LostWinnersError. Until then TimeoutError is raised.
        """
        image = self._fold.image
        short = "" if self._floor is None else self._floor.below(image.log_id, image.epoch)
        if not short:
            return
        if self._end_below_floor.sample(time.monotonic()) > SHORT_LOG_S:
            raise LostWinnersError(self._fold.next_offset, f"{short} {RECOVER}")
        raise TimeoutError(short)

    async def compare(
        self, ask: Callable[[], Awaitable[Floor | None]], is_over: Callable[[], bool]
    ) -> None:
        """Compare with a floor that others report now, after the log was read.

        While no broker reports the end, the log is not known to be shorter. Raises LogError when it
        is shorter, or has another history.
        """
        floor = await ask()
        self._floor = floor or self._floor
        at_end = ConditionTimer()
        while floor is not None and not is_over():
            image, chain = self._fold.image, self._fold.chain
            offset, short = self._fold.next_offset, floor.below(image.log_id, image.epoch)
            known = chain.state_id_of(floor.epoch)
            if not short and known is not None:
                floor.check(offset, image.log_id, floor.epoch, known)
            if not short:
                return
            is_end = await self._is_at_end()
            if is_end and at_end.sample(time.monotonic()) > SHORT_LOG_S:
                raise LostWinnersError(offset, f"{short} {RECOVER}")
            await asyncio.sleep(TICK_S)

    async def _is_at_end(self) -> bool:
        """Return whether all records that the brokers report now were read. Raises LogError."""
        try:
            end = (await self._reader.look()).end
        except (KafkaException, TimeoutError):
            return False
        return self._fold.next_offset >= end and not self._reader.is_suspended
