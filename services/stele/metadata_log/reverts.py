"""States of the past for commands that go back to them, read before such a command is decided."""

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec
from confluent_kafka import KafkaException
from structlog.stdlib import BoundLogger

from stele.domain.commands import Rejection, RevertState
from stele.domain.image import without_memory
from stele.domain.overrides.content import packed_state
from stele.domain.requests.not_taken import BUSY
from stele.domain.snapshot import image_to_facts
from stele.log.errors import LogError
from stele.log.history import EpochNotFoundError, History
from stele.runtime.logs import get_logger

log: BoundLogger = get_logger(__name__)

READ_TIMEOUT_S: Final = 30.0
KEPT: Final = 4
"""A command that lost its epoch is decided again; more than a few of these are not on their way at once."""


class Reverts:
    def __init__(self, history: History) -> None:
        self._history = history
        self._contents: OrderedDict[int, bytes] = OrderedDict()

    async def read(self, epoch: int) -> Rejection | None:
        """Afterwards ``fill`` knows the state at this epoch, if the log has it; else why that is not known."""
        if epoch in self._contents:
            return None
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                image = without_memory(await self._history.image_at(epoch))
        except EpochNotFoundError:
            return None
        except (LogError, KafkaException, TimeoutError) as error:
            log.warning("the state to go back to cannot be read", epoch=epoch, why=str(error))
            return Rejection(
                BUSY,
                f"The state of epoch {epoch} cannot be read now ({error}). Nothing was decided.",
                "Try again in a moment with the same request id.",
                {"epoch": str(epoch)},
            )
        content = await asyncio.to_thread(lambda: packed_state(image_to_facts(image)))
        self._contents[epoch] = content
        if len(self._contents) > KEPT:
            self._contents.popitem(last=False)
        return None

    def fill(self, command: RevertState) -> RevertState:
        """Whatever the caller sent as content is not believed."""
        content = self._contents.get(command.to_epoch, b"")
        return msgspec.structs.replace(command, content=content)
