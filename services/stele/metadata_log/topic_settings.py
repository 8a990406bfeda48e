"""Settings of the log's topic with which it takes no records, or loses some: anybody may change them any day.

They are looked at again and again, so that whoever waits for an answer is told the cause.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from stele.log.admin import answer_of
from stele.log.brokers import Brokers
from stele.runtime.kafka import EPOCH_MAX_MESSAGE_BYTES
from stele.runtime.logs import get_logger

LOOK_S: Final = 10.0
"""As long as a command waits for its outcome."""
ANSWER_S: Final = 5.0

Ask = Callable[[], Mapping[str, str]]
"""The topic's settings; it blocks. Raises KafkaException, TimeoutError."""

log = get_logger(__name__)


class TopicSettings:
    """``trouble`` says which settings do harm, how, and what they are to be; empty: none that is known."""

    def __init__(self, topic: str, ask: Ask) -> None:
        self.trouble = ""
        self._topic = topic
        self._ask = ask

    async def look(self) -> None:
        """What cannot be asked for, as where that is not allowed, changes nothing."""
        try:
            found = flaws(await asyncio.to_thread(self._ask))
        except (KafkaException, TimeoutError) as error:
            log.debug("the topic's settings are not told", topic=self._topic, why=str(error))
            return
        trouble = f"Topic {self._topic}: {'; '.join(found)}." if found else ""
        if trouble and trouble != self.trouble:
            log.error("the log's topic is set up wrongly", why=trouble)
        self.trouble = trouble

    @asynccontextmanager
    async def looked_at(self) -> AsyncIterator[None]:
        """Again and again inside the block."""

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


def flaws(settings: Mapping[str, str]) -> list[str]:
    """What is wrong, in words; a setting that is not told is none. Pure."""
    found = list[str]()
    policy = settings.get("cleanup.policy", "delete")
    if "compact" in policy:
        found.append(
            f"with cleanup.policy={policy} it takes no records of the log, which have no keys: set it to delete"
        )
    for name in ("retention.ms", "retention.bytes"):
        kept = settings.get(name, "-1")
        if kept != "-1":
            found.append(
                f"with {name}={kept} it deletes records that may be nowhere else: set it to -1"
            )
    if settings.get("unclean.leader.election.enable", "false") == "true":
        found.append(
            "with unclean.leader.election.enable=true it may lose records that were acknowledged: set it to"
            " false"
        )
    most = settings.get("max.message.bytes", "")
    if most.isdecimal() and int(most) < EPOCH_MAX_MESSAGE_BYTES:
        found.append(
            f"with max.message.bytes={most} it takes no large records: set it to {EPOCH_MAX_MESSAGE_BYTES}"
        )
    return found


def settings_of(brokers: Brokers, topic: str) -> Ask:
    """Asks the brokers, over a connection that is kept."""
    admin = AdminClient({**brokers.client(), "log_level": 0})
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def ask() -> Mapping[str, str]:
        asked = admin.describe_configs([resource], request_timeout=ANSWER_S)
        found = answer_of(asked[resource], ANSWER_S)
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    return ask
