"""Decisions of past epochs for repeated request ids, and past states for commands that revert."""

import asyncio
import contextlib
from collections import OrderedDict
from typing import Final

from confluent_kafka import KafkaException
from structlog.stdlib import BoundLogger

from stele.domain.base import Rejection
from stele.domain.image import without_memory
from stele.domain.not_taken import BUSY
from stele.domain.overrides import packed_state
from stele.domain.request_memory import decisions_of
from stele.domain.snapshot import image_to_facts
from stele.log.errors import LogError
from stele.log.history import EpochNotFoundError, History
from stele.log.pipeline import Decisions
from stele.runtime.logs import get_logger

log: BoundLogger = get_logger(__name__)

BLOCK: Final = 256
"""Epochs read at once. Reading a topic again fetches them one after the other."""
BLOCKS: Final = 16
"""Most blocks kept in memory. Their decisions take a few hundred bytes per epoch."""
READ_TIMEOUT_S: Final = 10.0
"""Limit for the epochs of a block."""
STATE_TIMEOUT_S: Final = 30.0
"""Limit for a past state: a snapshot, and the epochs after it."""


class PastDecisions:
    """Reads decisions that are no longer in memory.

    Callers that need the same block share one read.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._blocks: OrderedDict[int, dict[int, Decisions]] = OrderedDict()
        self._reading: dict[int, asyncio.Task[dict[int, Decisions]]] = {}
        """The reads of blocks at present, by block."""

    async def recall(self, epoch: int) -> Decisions | None:
        """Return the epoch's decisions; None if they cannot be read now."""
        recent = self._history.recent(epoch)
        if recent is not None:
            return decisions_of(recent)
        block = (epoch - 1) // BLOCK
        known = self._blocks.get(block)
        if known is not None:
            self._blocks.move_to_end(block)
            return known[epoch]
        reading = self._reading.get(block)
        if reading is None:
            reading = asyncio.create_task(self._read(block), name=f"recall-{block}")
            self._reading[block] = reading
        return (await asyncio.shield(reading)).get(epoch)

    async def close(self) -> None:
        for task in [*self._reading.values()]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _read(self, block: int) -> dict[int, Decisions]:
        found = dict[int, Decisions]()
        first = max(block * BLOCK, self._history.oldest) + 1
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                epochs = await self._history.epochs(first, (block + 1) * BLOCK + 1 - first)
            found = {epoch.epoch: decisions_of(epoch) for epoch in epochs}
        except (KafkaException, TimeoutError, EpochNotFoundError, LogError) as error:
            log.warning("what was decided cannot be read", first_epoch=first, why=str(error))
        # Keep complete blocks only. A partial one may be read again later with success.
        if len(found) == BLOCK:
            self._blocks[block] = found
            if len(self._blocks) > BLOCKS:
                self._blocks.popitem(last=False)
        del self._reading[block]
        return found


async def content_at(history: History, epoch: int) -> bytes | Rejection:
    """Return the content of the state at this epoch, or a rejection when it cannot be read now.

    An epoch that the log does not have has no content; ``decide`` rejects it.
    """
    try:
        async with asyncio.timeout(STATE_TIMEOUT_S):
            image = without_memory(await history.image_at(epoch))
    except EpochNotFoundError:
        return b""
    except (LogError, KafkaException, TimeoutError) as error:
        log.warning("the state to go back to cannot be read", epoch=epoch, why=str(error))
        return Rejection(
            BUSY,
            f"The state of epoch {epoch} cannot be read now ({error}). Nothing was decided.",
            "Try again in a moment with the same request id.",
            {"epoch": str(epoch)},
        )
    return await asyncio.to_thread(lambda: packed_state(image_to_facts(image)))
