"""Following the log from a service: topics, reader, health, and the shell of one that only follows.

async with following(settings) as followed: ...     # a service with work of its own
run_follower_service("catch-up", Settings)          # a service that has none yet
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from confluent_kafka import KafkaException
from starlette.routing import BaseRoute

from stele.log.flows import flow_topic
from stele.log.follower import Floor, LogFollower
from stele.log.kafka import KafkaLog
from stele.runtime.announce import announced
from stele.runtime.brokers import wait_for_topics
from stele.runtime.http import Health, build_app, serve
from stele.runtime.logs import get_logger
from stele.runtime.memory import settle
from stele.runtime.position import position_route
from stele.runtime.retries import until_it_works
from stele.runtime.service import Stop, run_service
from stele.runtime.settings import ServiceSettings
from stele.runtime.start import started

CATCH_UP_ATTEMPT_S: Final = 30.0
"""One look whether the end of the log has been reached; a long log takes several."""

log = get_logger(__name__)


class Followed:
    """A process's reader of the log, and whether it has seen what was there at the start."""

    def __init__(self, follower: LogFollower) -> None:
        self.follower = follower
        self.caught_up = asyncio.Event()

    def health(self) -> Health:
        """Well once the log was read to the end that it had at the start, and while it is read on."""
        image, failure = self.follower.image, self.follower.failure
        reason = f"The log cannot be read any further: {failure}" if failure else ""
        if not reason and not self.caught_up.is_set():
            reason = "Reading the log; try again in a moment."
            if self.follower.image.epoch:
                reason = self.follower.trouble or reason
        reason = reason or self.follower.trouble
        return Health(
            ok=not reason, epoch=image.epoch, state_id=image.state_id.hex(), reason=reason
        )

    async def catch_up(self) -> None:
        """Wait for the end of the log as it is now, however long that takes."""
        async for attempt in until_it_works(on=_is_passing):
            with attempt:
                await self.follower.wait_for_end(CATCH_UP_ATTEMPT_S)
        settle()
        self.caught_up.set()


def _is_passing(error: Exception) -> bool:
    """Whether it is worth asking for the log's end again."""
    if not isinstance(error, TimeoutError | KafkaException):
        return False
    log.warning("still reading the log", why=repr(error))
    return True


def _on_stray(offset: int, name: str) -> None:
    log.warning("a record of another log was skipped", offset=offset, writer=name)


@asynccontextmanager
async def following(
    settings: ServiceSettings, floor: Floor | None = None
) -> AsyncIterator[Followed]:
    """Follow the cluster's log inside the block. Raises TopicsUnavailable when Kafka is not there.

    ``floor`` is what the process acknowledged in an earlier life: it is not caught up below it.
    """
    await wait_for_topics(settings)
    kafka_log = KafkaLog(settings.kafka_bootstrap, flow_topic(settings.cluster, "epochs"))
    followed = Followed(LogFollower(kafka_log, floor=floor, on_stray=_on_stray))
    followed.follower.start()
    catching_up = asyncio.create_task(followed.catch_up(), name="catch-up")
    try:
        yield followed
    finally:
        catching_up.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await catching_up
        followed.follower.stop()
        await kafka_log.close()


@asynccontextmanager
async def run_beside(task: asyncio.Future[None], stop: Stop) -> AsyncIterator[None]:
    """Run the service's work inside the block. When it fails, the service stops, and so says why."""

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


async def serve_follower(
    name: str, settings: ServiceSettings, stop: Stop, routes: Sequence[BaseRoute] = ()
) -> None:
    """Follow the log and answer /healthz, /metrics, /v1/position and ``routes`` until ``stop``."""
    async with (
        following(settings) as followed,
        announced(name, settings, lambda: followed.follower.image, followed.caught_up.is_set),
    ):
        position = position_route(name, settings.instance_id, followed.follower)
        app = build_app(name, [position, *routes], followed.health)
        await serve(app, settings, name, stop)


def run_follower_service(name: str, kind: type[ServiceSettings] = ServiceSettings) -> int:
    """The whole process of a service that follows the log and has no other work; its exit code."""

    async def main(stop: Stop) -> None:
        settings = started(name, kind)
        await serve_follower(name, settings, stop)

    return run_service(main)
