"""``python -m stele.runtime.topics``: create the cluster's topics, and end.

A deployment runs it once before the services. Otherwise each service would create the topics, all
at once.
"""

import asyncio

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stele.runtime.kafka import (
    TopicsUnavailable,
    differences,
    ensure_topics,
    named_specs,
    read_topics,
    sentences,
    topic_specs,
)
from stele.runtime.logs import get_logger
from stele.runtime.service import Stop, run_service, started
from stele.runtime.settings import ConfigurationError, ServiceSettings

log = get_logger(__name__)


def _differences(settings: ServiceSettings) -> list[str]:
    specs = named_specs(settings.cluster, settings.kafka_replication_factor)
    admin = AdminClient({**settings.brokers.client(), "log_level": 0})
    try:
        found = read_topics(admin, specs)
    except (KafkaException, TimeoutError) as error:
        return [f"Their settings could not be read: {error}."]
    return sentences(differences(specs, found, development=settings.development))


async def main(_: Stop) -> None:
    settings = started("topics", ServiceSettings)
    factor = settings.kafka_replication_factor
    try:
        await asyncio.to_thread(ensure_topics, settings.brokers, settings.cluster, factor)
    except TopicsUnavailable as error:
        raise ConfigurationError(str(error)) from error
    for text in await asyncio.to_thread(_differences, settings):
        log.warning("topics are not set up as Stele needs them", why=text)
    names = [str(topic) for topic in topic_specs(factor)]
    log.info("topics are there", cluster=settings.cluster, topics=names, replication_factor=factor)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
