"""Watches the settings of the cluster's topics, which may be changed at any time.

They are read every ``LOOK_S``. A caller without an answer then gets the cause, and operators are
warned of settings that may lose records.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stele.metadata_log import metrics
from stele.metadata_log.settings import MetadataLogSettings
from stele.runtime.kafka import (
    Harm,
    SettingDifference,
    differences,
    named_specs,
    read_topics,
    sentences,
)
from stele.runtime.logs import get_logger

LOOK_S: Final = 10.0
"""Interval in seconds: as long as a command waits for its outcome."""

Ask = Callable[[], Sequence[SettingDifference]]
"""Returns how the topics differ from Stele's needs. Blocks. Raises KafkaException, TimeoutError."""

log = get_logger(__name__)


class TopicSettings:
    """Result of the last look. ``log_topic`` is the name of the log's topic.

    ``trouble`` is the reason why the log's topic rejects or loses records; empty when none is
    known. ``notice`` lists every difference, in any topic.
    """

    def __init__(self, log_topic: str, ask: Ask) -> None:
        self.trouble = ""
        self.notice = ""
        self._log_topic = log_topic
        self._ask = ask

    async def look(self) -> None:
        """Read the settings.

        If they cannot be read, for example without permission, nothing changes.
        """
        try:
            found = await asyncio.to_thread(self._ask)
        except (KafkaException, TimeoutError) as error:
            log.debug("the topics' settings are unknown", why=str(error))
            return
        harmful = (e for e in found if e.topic == self._log_topic and e.harm is Harm.LOSS)
        notice = " ".join(sentences(found))
        if notice and notice != self.notice:
            log.warning("topics are not set up as Stele needs them", why=notice)
        self.trouble, self.notice = " ".join(sentences(harmful)), notice
        metrics.topic_differences.clear()
        for (topic, harm), count in Counter((each.topic, each.harm) for each in found).items():
            metrics.topic_differences.labels(topic, harm).set(count)

    @asynccontextmanager
    async def looked_at(self) -> AsyncIterator[None]:
        """Read them repeatedly inside the block."""

        async def look_on() -> None:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S)

        task = asyncio.create_task(look_on(), name="topic-settings")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def differences_of(settings: MetadataLogSettings) -> Ask:
    """Return a function that queries the brokers over one connection."""
    admin = AdminClient({**settings.brokers.client(), "log_level": 0})
    specs = named_specs(settings.cluster, settings.kafka_replication_factor)

    def ask() -> Sequence[SettingDifference]:
        return differences(specs, read_topics(admin, specs), development=settings.development)

    return ask
