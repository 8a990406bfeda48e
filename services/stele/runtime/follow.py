"""Follow the log from a service: topics, where to begin, reader, health.

async with following(settings) as followed: ...
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from typing import Final

from confluent_kafka import KafkaException

from stele.domain.not_taken import restricted_text
from stele.domain.registry import KNOWN_FEATURES
from stele.log.flows import flow_topic
from stele.log.follower import Floor, LogFollower
from stele.log.kafka import KafkaLog
from stele.log.port import Log
from stele.runtime.catch_up import CatchUp
from stele.runtime.http import Health
from stele.runtime.kafka import wait_for_topics
from stele.runtime.logs import get_logger
from stele.runtime.recent import Recent
from stele.runtime.retries import until_it_works
from stele.runtime.service import Stop, freeze_objects
from stele.runtime.settings import ServiceSettings
from stele.runtime.starting import begin, end_in_order, restart_after_failure

CATCH_UP_ATTEMPT_S: Final = 30.0
"""Limit of one wait for the end of the log, in seconds. A long log takes several."""

log = get_logger(__name__)


class Followed:
    """A process's reader of the log, and whether it has read what was there at the start."""

    def __init__(self, follower: LogFollower) -> None:
        self.follower = follower
        self.caught_up = asyncio.Event()
        self.recent = Recent()
        """The newest winners, for a recovery of the log."""

    def health(self) -> Health:
        """Return the health: well once the log was read to its end at the start, and while
        reading continues.
        """
        image, failure = self.follower.image, self.follower.failure
        reason = f"The log cannot be read any further: {failure}" if failure else ""
        if not reason and not self.caught_up.is_set():
            reason = "Reading the log; try again in a moment."
            if self.follower.image.epoch:
                reason = self.follower.trouble or reason
        reason = reason or self.follower.trouble
        return Health(
            ok=not reason,
            epoch=image.epoch,
            state_id=image.state_id.hex(),
            reason=reason or restricted_text(image.commits),
        )

    async def catch_up(self) -> None:
        """Wait until the present end of the log is read, without a time limit."""
        async for attempt in until_it_works(on=_is_passing):
            with attempt:
                await self.follower.wait_for_end(CATCH_UP_ATTEMPT_S)
        freeze_objects()
        self.caught_up.set()


def _is_passing(error: Exception) -> bool:
    """Return whether to ask for the log's end again after this error."""
    if not isinstance(error, TimeoutError | KafkaException):
        return False
    log.warning("still reading the log", why=repr(error))
    return True


def on_stray(offset: int, name: str) -> None:
    log.warning("a record of another log was skipped", offset=offset, writer=name)


@asynccontextmanager
async def following(
    settings: ServiceSettings, floor: Floor | None = None
) -> AsyncIterator[Followed]:
    """Follow the cluster's log inside the block, from a snapshot if that is shorter; see
    ``following_log``.

    Raises TopicsUnavailable when Kafka does not answer, OtherHistoryError.
    """
    await wait_for_topics(settings)
    kafka_log = KafkaLog(settings.brokers, flow_topic(settings.cluster, "epochs"))
    catch_up = CatchUp(settings.catch_up_urls)
    async with following_log(kafka_log, catch_up, settings.cluster, floor) as followed:
        yield followed


@asynccontextmanager
async def following_log(
    epochs: Log,
    catch_up: CatchUp,
    cluster: str,
    floor: Floor | None = None,
    end: Callable[[], None] = end_in_order,
    supported: Set[str] = KNOWN_FEATURES,
) -> AsyncIterator[Followed]:
    """Follow a log inside the block, and close it and ``catch_up`` afterwards.

    ``floor`` is what the process acknowledged in an earlier life. The reader is not caught up
    before it has read the floor, or without one what the catch-up replicas hold. ``end`` is called
    when the process must restart. A winner that needs features beyond ``supported`` stops the
    reader.

    Raises OtherHistoryError when the floor is of another history.
    """
    recent = Recent()
    start, least = await begin(catch_up, cluster, epochs.ends, floor, decided=False)
    follower = LogFollower(epochs, start, least, on_stray, recent.add, supported=supported)
    try:
        async with reading(follower, epochs, catch_up, end) as followed:
            followed.recent = recent
            yield followed
    finally:
        await catch_up.close()


@asynccontextmanager
async def reading(
    follower: LogFollower,
    epochs: Log,
    catch_up: CatchUp,
    end: Callable[[], None] = end_in_order,
    *,
    is_replica: bool = False,
) -> AsyncIterator[Followed]:
    """Run the follower inside the block, and close its log afterwards.

    ``is_replica``: this process is a catch-up replica.
    """
    followed = Followed(follower)
    follower.start()
    catching_up = asyncio.create_task(followed.catch_up(), name="catch-up")
    restarting = asyncio.create_task(
        restart_after_failure(
            follower.failed,
            lambda: follower.failure,
            lambda: follower.log_id,
            catch_up,
            end,
            followed.caught_up.is_set,
            is_replica=is_replica,
        ),
        name="restart",
    )
    try:
        yield followed
    finally:
        for task in (restarting, catching_up):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        follower.stop()
        await epochs.close()


@asynccontextmanager
async def run_beside(task: asyncio.Future[None], stop: Stop) -> AsyncIterator[None]:
    """Run the service's work inside the block.

    When the work fails, the service stops and reports why.
    """

    def on_end(_: asyncio.Future[None]) -> None:
        stop.request("the work ended")

    task.add_done_callback(on_end)
    try:
        yield
    finally:
        task.remove_done_callback(on_end)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
