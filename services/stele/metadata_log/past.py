"""What epochs of the past decided, for those who ask again under a request id of theirs."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException
from structlog.stdlib import BoundLogger

from stele.domain.requests.decisions import decisions_of
from stele.log.errors import LogError
from stele.log.history import EpochNotFoundError, History
from stele.log.pipeline import Decisions
from stele.runtime.logs import get_logger

log: BoundLogger = get_logger(__name__)

BLOCK: Final = 256
"""Epochs read at once: a topic that is read anew asks for one after the other."""
BLOCKS: Final = 16
"""Blocks kept; what they decided takes a few hundred bytes an epoch."""
READ_TIMEOUT_S: Final = 10.0

Answer = Callable[[Decisions | None], None]


class Past:
    """Reads what is not in memory any more; those who ask for the same block share one reading."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._blocks: OrderedDict[int, dict[int, Decisions]] = OrderedDict()
        self._waiting: dict[int, list[tuple[int, Answer]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def recall(self, epoch: int, answer: Answer) -> None:
        """Answers at once when it can; with None when the epoch cannot be read now."""
        recent = self._history.recent(epoch)
        if recent is not None:
            answer(decisions_of(recent))
            return
        block = (epoch - 1) // BLOCK
        known = self._blocks.get(block)
        if known is not None:
            self._blocks.move_to_end(block)
            answer(known[epoch])
            return
        waiting = self._waiting.setdefault(block, [])
        waiting.append((epoch, answer))
        if len(waiting) == 1:
            task = asyncio.create_task(self._read(block), name=f"recall-{block}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _read(self, block: int) -> None:
        found = dict[int, Decisions]()
        first = max(block * BLOCK, self._history.oldest) + 1
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                epochs = await self._history.epochs(first, (block + 1) * BLOCK + 1 - first)
            found = {epoch.epoch: decisions_of(epoch) for epoch in epochs}
        except (KafkaException, TimeoutError, EpochNotFoundError, LogError) as error:
            log.warning("what was decided cannot be read", first_epoch=first, why=str(error))
        if len(found) == BLOCK:
            self._blocks[block] = found
            if len(self._blocks) > BLOCKS:
                self._blocks.popitem(last=False)
        for epoch, answer in self._waiting.pop(block):
            answer(found.get(epoch))
