"""Waiting for the brokers at the start: the log says so, and who is to end does not wait for them."""

import asyncio
from typing import Final

from stele.log.loops import beside
from stele.log.refusals import Refusals
from stele.runtime.kafka import ensure_topics
from stele.runtime.logs import get_logger
from stele.runtime.settings import ServiceSettings

SAY_AFTER_S: Final = 1.0
"""Brokers that are there answer sooner."""
SAY_AGAIN_S: Final = 10.0

log = get_logger(__name__)


async def wait_for_topics(settings: ServiceSettings) -> None:
    """Make the cluster's topics, or find them made. Raises TopicsUnavailable after a minute."""
    refusals = Refusals()
    making = beside(
        "brokers",
        lambda: ensure_topics(
            settings.brokers,
            settings.cluster,
            settings.kafka_replication_factor,
            refusals=refusals,
        ),
    )
    patience_s = SAY_AFTER_S
    while not (await asyncio.wait((making,), timeout=patience_s))[0]:
        if not refusals.newest:  # what is refused is logged where it is met
            log.warning(
                "Kafka has not answered yet",
                bootstrap=settings.kafka_bootstrap,
                protocol=settings.kafka_security_protocol,
                hint="Start it, or correct STELE_KAFKA_BOOTSTRAP or STELE_KAFKA_SECURITY_PROTOCOL.",
            )
        patience_s = SAY_AGAIN_S
    making.result()
