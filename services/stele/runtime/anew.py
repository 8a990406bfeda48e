"""When a process ends so that it begins anew: at its next start it begins with a snapshot.

A reader that was left behind by a truncation ends at once; so does one that stands behind the topic's end
although its last winner is there: what was lost there was no winner. One that stopped because its log is gone,
or is another one by now, stays: it says why, and what it has read last may be all that is left. It ends once
the log was recovered, which a catch-up replica tells; a replica that can finishes a recovery itself. One that
meets a recovery ends at once, but stays where it met that before it had read to the log's end: it has just
begun, without a snapshot of what the log goes on as, and would come to the same place again. Who knows no
replica that could tell begins again all the same.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from stele.log.errors import NoBeginningError, OffsetGoneError, RecoveredError
from stele.runtime.catch_up import CatchUp
from stele.runtime.logs import get_logger

LOOK_S: Final = 2.0

Finish = Callable[[], Awaitable[bool]]
"""Has the log go on from what this process holds, if it can; whether it does."""

log = get_logger(__name__)


def end_in_order() -> None:
    """As if a supervisor asked this process to end."""
    signal.raise_signal(signal.SIGTERM)


async def cannot() -> bool:
    """Of those that are no replica."""
    return False


def is_lasting(failure: Exception | None) -> bool:
    """Whether a reader that stopped so stays stopped until somebody recovers the log."""
    return not isinstance(failure, OffsetGoneError | RecoveredError | NoBeginningError)


async def begin_anew(
    failed: asyncio.Event,
    failure: Callable[[], Exception | None],
    log_id: Callable[[], bytes],
    catch_up: CatchUp,
    end: Callable[[], None] = end_in_order,
    finish: Finish = cannot,
    has_read: Callable[[], bool] = lambda: True,
) -> None:
    """Wait for such a failure, and end the process in order. ``has_read``: the log, to its end."""
    await failed.wait()
    why = failure()
    if is_lasting(why):
        log.error("the log cannot be read any further, until it is recovered", why=str(why))
        await recovered(log_id().hex(), catch_up, finish)
    elif isinstance(why, RecoveredError) and not (
        await finish() or has_read() or (finish is cannot and not catch_up.replicas)
    ):
        log.error("the log was recovered, and nobody gives a snapshot of it yet", why=str(why))
        await recovered(log_id().hex(), catch_up, finish)
    log.error(
        "the log goes on elsewhere: this process ends, and begins with a snapshot", why=str(why)
    )
    end()


async def recovered(log_id: str, catch_up: CatchUp, finish: Finish) -> None:
    """Return once a replica follows a log that was recovered from this one, or this process will."""
    while True:
        for _, answer in await catch_up.archives():
            if any(before.log_id == log_id for before in answer.incarnations):
                return
        if await finish():
            return
        await asyncio.sleep(LOOK_S)
