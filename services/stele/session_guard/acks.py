"""The acks of all nodes, by Faust: one agent that reads raw records inside the service's event loop."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import faust

from stele.log.flows import flow_topic
from stele.runtime.settings import ServiceSettings

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 6.0
"""Below the service's own deadline."""
WATCH_S: Final = 0.5
SESSION_TIMEOUT_S: Final = 6.0
HEARTBEAT_S: Final = 1.5
REQUEST_TIMEOUT_S: Final = 10.0
"""Must be above the session's time-out, which the broker may use up to answer a join."""

OnValue = Callable[[bytes], None]


def ack_app(settings: ServiceSettings, boot_id: str, datadir: str, on_value: OnValue) -> Any:
    """The Faust application. Each run is a consumer group of its own and begins at the end.

    Every guard answers for the whole cluster, so every guard reads all acks. What is older than the
    process tells nothing about who is up, so committed offsets would be of no use.
    """
    app = faust.App(
        f"stele.{settings.cluster}.session-guard.{settings.instance_id}.{boot_id}",
        broker=[f"kafka://{server}" for server in settings.kafka_bootstrap.split(",")],
        autodiscover=False,
        broker_heartbeat_interval=HEARTBEAT_S,
        broker_request_timeout=REQUEST_TIMEOUT_S,
        broker_session_timeout=SESSION_TIMEOUT_S,
        consumer_auto_offset_reset="latest",
        datadir=datadir,
        key_serializer="raw",
        store="memory://",
        topic_allow_declare=False,
        topic_disable_leader=True,
        value_serializer="raw",
        web_enabled=False,
        worker_redirect_stdouts=False,
    )
    topic = app.topic(
        flow_topic(settings.cluster, "acks"),
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
    )

    async def read(stream: Any) -> None:
        async for value in stream:
            on_value(value)

    app.agent(topic, concurrency=1, name="acks")(read)
    return app


class AcksLost(Exception):
    """The reader of acks has ended; without it nobody can be told who is up."""


async def watch(app: Any) -> None:
    """Return never, raise AcksLost when the application has crashed or stopped."""
    while not (app.crashed or app.should_stop):  # noqa: ASYNC110  (Faust has no event for both)
        await asyncio.sleep(WATCH_S)
    raise AcksLost(f"The reader of acks has ended: {app.crash_reason!r}")


@asynccontextmanager
async def reading_acks(
    settings: ServiceSettings, boot_id: str, on_value: OnValue
) -> AsyncIterator[Any]:
    """Read acks inside the block; ``on_value`` must not raise. Yields the application."""
    with tempfile.TemporaryDirectory(prefix="stele-session-guard-") as datadir:
        app = ack_app(settings, boot_id, datadir, on_value)
        await asyncio.wait_for(app.start(), START_TIMEOUT_S)
        try:
            yield app
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(app.stop(), STOP_TIMEOUT_S)
