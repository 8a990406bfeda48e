"""The past state of a command that reverts to it, read before the command is decided."""

import asyncio
from typing import Final

from confluent_kafka import KafkaException
from structlog.stdlib import BoundLogger

from stele.domain.commands import Rejection
from stele.domain.image import without_memory
from stele.domain.overrides.domain import packed_state
from stele.domain.requests.not_taken import BUSY
from stele.domain.snapshot import image_to_facts
from stele.log.errors import LogError
from stele.log.history import EpochNotFoundError, History
from stele.runtime.logs import get_logger

log: BoundLogger = get_logger(__name__)

READ_TIMEOUT_S: Final = 30.0


async def content_at(history: History, epoch: int) -> bytes | Rejection:
    """Return the content of the state at this epoch, or a rejection when it cannot be read now.

    An epoch that the log does not have has no content; ``decide`` rejects it.
    """
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
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
