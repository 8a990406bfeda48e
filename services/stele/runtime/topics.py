"""``python -m stele.runtime.topics``: make the cluster's topics, and end.

A deployment runs it once, before the services; each of them would make the topics too, all at once.
"""

import asyncio

from stele.runtime.kafka import TopicsUnavailable, ensure_topics, topic_specs
from stele.runtime.logs import configure_logs, get_logger
from stele.runtime.service import Stop, run_service
from stele.runtime.settings import ConfigurationError, ServiceSettings, load_settings

log = get_logger(__name__)


async def main(_: Stop) -> None:
    settings = load_settings(ServiceSettings)
    configure_logs(
        service="topics",
        instance=settings.instance_id,
        level=settings.log_level,
        json=settings.log_json,
    )
    factor = settings.kafka_replication_factor
    try:
        await asyncio.to_thread(ensure_topics, settings.kafka_bootstrap, settings.cluster, factor)
    except TopicsUnavailable as error:
        raise ConfigurationError(f"{error} Is STELE_KAFKA_BOOTSTRAP right?") from error
    names = [str(topic) for topic in topic_specs(factor)]
    log.info("topics are there", cluster=settings.cluster, topics=names, replication_factor=factor)


if __name__ == "__main__":
    raise SystemExit(run_service(main))
