"""``python -m stele.runtime.topics``: make the cluster's topics, and end.

A deployment runs it once, before the services; each of them would make the topics too, all at once.
"""

import asyncio

from stele.runtime.kafka import TopicsUnavailable, ensure_topics, topic_specs
from stele.runtime.logs import get_logger
from stele.runtime.service import Stop, run_service
from stele.runtime.settings import ConfigurationError, ServiceSettings
from stele.runtime.start import started

log = get_logger(__name__)


async def main(_: Stop) -> None:
    settings = started("topics", ServiceSettings)
    factor = settings.kafka_replication_factor
    try:
        await asyncio.to_thread(ensure_topics, settings.brokers, settings.cluster, factor)
    except TopicsUnavailable as error:
        raise ConfigurationError(f"{error} Is STELE_KAFKA_BOOTSTRAP right?") from error
    names = [str(topic) for topic in topic_specs(factor)]
    log.info("topics are there", cluster=settings.cluster, topics=names, replication_factor=factor)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
