"""A log that ends before what others have of it, or is another history than theirs."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from confluent_kafka import KafkaException

from stele.domain.image import NO_LOG
from stele.log.errors import LostWinnersError
from stele.log.fold import Fold
from stele.log.follower import Floor
from stele.log.lasting import Lasting
from stele.log.reader import SHORT_LOG_S, LogReader

TICK_S: Final = 0.25
RECOVER: Final = "`stele recover` brings back what is left."


class KnownEnd:
    """Holds what is read against ``floor``, of which others have told."""

    def __init__(self, reader: LogReader, fold: Fold, floor: Floor | None) -> None:
        self._reader = reader
        self._fold = fold
        self._floor = floor
        self._short = Lasting()

    @property
    def log_id(self) -> bytes:
        """The log that was read; of one who has read nothing yet, the one that it should have found."""
        if self._fold.image.log_id == NO_LOG and self._floor is not None:
            return bytes.fromhex(self._floor.log_id)
        return self._fold.image.log_id

    def check_read(self, offset: int) -> None:
        """The newest epoch that was read. Raises OtherHistoryError."""
        image, floor = self._fold.image, self._floor
        if floor is not None and image.epoch == floor.epoch:
            floor.check(offset, image.log_id, image.epoch, image.state_id)

    def check_end(self) -> None:
        """At an end that the brokers showed. One before the floor may be shown by a leader that was replaced;
        when it stays so, winners are lost. Raises LostWinnersError then, and TimeoutError in between.
        """
        image = self._fold.image
        short = "" if self._floor is None else self._floor.below(image.log_id, image.epoch)
        if not short:
            return
        if self._short.seen(time.monotonic()) > SHORT_LOG_S:
            raise LostWinnersError(self._fold.next_offset, f"{short} {RECOVER}")
        raise TimeoutError(short)

    async def compare(
        self, ask: Callable[[], Awaitable[Floor | None]], is_over: Callable[[], bool]
    ) -> None:
        """With what others say by now, once the log was read. While nobody tells where it ends it is not known
        to be shorter. Raises LogError where it is, or is another history.
        """
        floor = await ask()
        self._floor = floor or self._floor
        lasting = Lasting()
        while floor is not None and not is_over():
            image, chain = self._fold.image, self._fold.chain
            offset, short = self._fold.next_offset, floor.below(image.log_id, image.epoch)
            known = chain.state_id_of(floor.epoch)
            if not short and known is not None:
                floor.check(offset, image.log_id, floor.epoch, known)
            if not short:
                return
            is_end = await self._is_at_end()
            if is_end and lasting.seen(time.monotonic()) > SHORT_LOG_S:
                raise LostWinnersError(offset, f"{short} {RECOVER}")
            await asyncio.sleep(TICK_S)

    async def _is_at_end(self) -> bool:
        """All that the brokers show now was read. Raises LogError."""
        try:
            end = (await self._reader.look()).end
        except (KafkaException, TimeoutError):
            return False
        return self._fold.next_offset >= end and not self._reader.in_doubt
