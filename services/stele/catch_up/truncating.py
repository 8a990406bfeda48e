"""Deleting from the topic what the log says may be deleted (``LogTruncated``). Every replica does it."""

import asyncio
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from stele.domain.image import Image
from stele.log.admin import answer_of
from stele.log.brokers import Brokers
from stele.runtime.logs import get_logger
from stele.runtime.starting import AskEnds

LOOK_S: Final = 2.0
DELETE_S: Final = 10.0

log = get_logger(__name__)


Delete = Callable[[int], None]
"""Deletes the topic's records before an offset; blocks. Raises KafkaException, TimeoutError."""


async def truncate(
    delete: Delete,
    image: Callable[[], Image],
    ends: AskEnds,
    is_certain: Callable[[], bool],
) -> None:
    """Delete, for ever, what was said to be deleted from the log that is followed, and only while it is certain
    that the topic is that log: the offsets of another one are others.
    """
    done = 0
    while True:
        truncated = image().archive.truncated
        if (
            truncated is not None
            and is_certain()
            and truncated.offset > done
            and truncated.log_id == image().log_id.hex()
        ):
            try:
                if (await ends()).begin < truncated.offset:
                    await asyncio.to_thread(delete, truncated.offset)
                    log.info(
                        "the topic is truncated", epoch=truncated.epoch, begin=truncated.offset
                    )
                done = truncated.offset
            except (KafkaException, TimeoutError) as error:
                log.warning("the topic is not truncated yet", why=str(error))
        await asyncio.sleep(LOOK_S)


def delete_records(brokers: Brokers, topic: str, offset: int) -> None:
    """A ``Delete`` of a topic's only partition. Raises KafkaException, TimeoutError."""
    admin = AdminClient(brokers.client())
    asked = admin.delete_records(
        [TopicPartition(topic, 0, offset)], request_timeout=DELETE_S, operation_timeout=DELETE_S
    )
    for answer in asked.values():
        answer_of(answer, DELETE_S + 1)
