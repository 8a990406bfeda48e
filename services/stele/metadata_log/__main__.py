"""``python -m stele.metadata_log``"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from stele.domain.not_taken import restricted_text
from stele.log.deliveries import refused_lately
from stele.log.flows import flow_topic
from stele.log.kafka import KafkaLog
from stele.metadata_log.commands_topic import CommandsTopic
from stele.metadata_log.founding import older_cluster
from stele.metadata_log.http import MetadataLogApi
from stele.metadata_log.schema_request import MARGIN_S, Guards
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.topic_settings import TopicSettings, differences_of
from stele.metadata_log.writer import Writer
from stele.metadata_log.writing import recent_records, taking_commands
from stele.runtime.announce import announced
from stele.runtime.answers.session_guard import LONGEST_AGREEMENT_S
from stele.runtime.callers import callers_of
from stele.runtime.catch_up import CatchUp
from stele.runtime.http import Health, build_app, listening
from stele.runtime.kafka import wait_for_topics
from stele.runtime.position import position_route
from stele.runtime.recent import recent_route
from stele.runtime.service import Stop, run_service, started
from stele.runtime.transport import HttpTransport

NAME = "metadata-log"


@asynccontextmanager
async def running(settings: MetadataLogSettings) -> AsyncIterator[tuple[Writer, CommandsTopic]]:
    """Run a writer that reads to the end of the log and then also consumes the commands topic."""
    await wait_for_topics(settings)
    topic, brokers = flow_topic(settings.cluster, "epochs"), settings.brokers
    epochs, past = KafkaLog(brokers, topic), KafkaLog(brokers, topic)
    catch_up = CatchUp(settings.catch_up_urls)
    async with taking_commands(settings, epochs, catch_up, older_cluster, past=past) as both:
        yield both


def health_of(writer: Writer, commands: CommandsTopic, *notices: str) -> Health:
    """Return the health: the reason why the writer is unhealthy, or else the ``notices`` for
    operators.
    """
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
        reason=reason or " ".join(filter(None, (restricted_text(writer.image.commits), *notices))),
    )


async def main(stop: Stop) -> None:
    settings = started(NAME, MetadataLogSettings)
    callers = callers_of(settings)
    topics = TopicSettings(flow_topic(settings.cluster, "epochs"), differences_of(settings))
    async with (
        listening(settings, NAME) as listener,
        running(settings) as (writer, commands),
        announced(NAME, settings, lambda: writer.image, lambda: writer.ready),
        topics.looked_at(),
    ):
        position = position_route(NAME, settings.instance_id, writer)
        # A session-guard is silent until the members agree, or its time is over.
        transport = HttpTransport(silent_s=LONGEST_AGREEMENT_S + MARGIN_S)
        api = MetadataLogApi(
            writer,
            settings,
            lambda: topics.trouble or refused_lately(),
            callers,
            Guards(settings.session_guard_urls, transport).agreement,
        )
        app = build_app(
            NAME,
            [position, recent_route(partial(recent_records, writer)), *api.routes()],
            lambda: health_of(
                writer, commands, topics.notice, callers.trouble() if callers else ""
            ),
            plain=api.plain(),
        )
        try:
            await listener.serve(app, stop)
        finally:
            await transport.close()


if __name__ == "__main__":
    raise SystemExit(run_service(main))
