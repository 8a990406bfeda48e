"""``python -m stele.metadata_log``"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stele.log.flows import flow_topic
from stele.log.kafka import KafkaLog
from stele.metadata_log.commands_topic import CommandsTopic
from stele.metadata_log.evidence import older_cluster
from stele.metadata_log.http import Api
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer
from stele.runtime.announce import announced
from stele.runtime.brokers import wait_for_topics
from stele.runtime.http import Health, build_app, serve
from stele.runtime.memory import settle
from stele.runtime.position import position_route
from stele.runtime.service import Stop, run_service
from stele.runtime.start import started

NAME = "metadata-log"


@asynccontextmanager
async def running(settings: MetadataLogSettings) -> AsyncIterator[tuple[Writer, CommandsTopic]]:
    """The writer on its way to the end of the log; then the commands topic is read too."""
    await wait_for_topics(settings)
    epochs = KafkaLog(settings.kafka_bootstrap, flow_topic(settings.cluster, "epochs"))
    writer = Writer(epochs, settings, older_cluster)
    commands = CommandsTopic(settings, writer)

    async def start() -> None:
        await writer.start()
        settle()
        if writer.failure is None:
            commands.start()

    starting = asyncio.create_task(start(), name="start")
    try:
        yield writer, commands
    finally:
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await commands.close()
        await writer.close()


def health_of(writer: Writer, commands: CommandsTopic) -> Health:
    reason = f"The log cannot be read any further: {writer.failure}" if writer.failure else ""
    reason = reason or commands.failure
    if not reason and not writer.ready:
        reason = "Reading the log; try again in a moment."
    reason = reason or writer.trouble
    return Health(
        ok=not reason,
        epoch=writer.image.epoch,
        state_id=writer.image.state_id.hex(),
        lag_epochs=writer.lag_records,
        reason=reason,
    )


async def main(stop: Stop) -> None:
    settings = started(NAME, MetadataLogSettings)
    async with (
        running(settings) as (writer, commands),
        announced(NAME, settings, lambda: writer.image, lambda: writer.ready),
    ):
        position = position_route(NAME, settings.instance_id, writer)
        api = Api(writer, settings)
        app = build_app(
            NAME,
            [position, *api.routes()],
            lambda: health_of(writer, commands),
            direct=api.direct(),
        )
        await serve(app, settings, NAME, stop)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
