"""Whether the topic has the winner that a snapshot ends with. One that an unclean election took back is
still the end of some: of a replica that has stopped since, or does not know it yet, and of the store.
"""

import asyncio
from typing import Final

from confluent_kafka import KafkaException

from stele.log.archive.snapshots import SnapshotHead
from stele.log.chain import digest_of
from stele.log.port import LogPast
from stele.runtime.answers.catch_up import Known
from stele.runtime.logs import get_logger

TRIES: Final = 3
PAUSE_S: Final = 0.5
"""A new leader is mostly there within a second; whoever begins asks again later where it is not."""

log = get_logger(__name__)


async def anchored(topic: LogPast, head: SnapshotHead) -> Known:
    """Whether the topic has this winner at its offset, or another record. Unknown: Kafka does not answer, or
    the topic ends before it, which an old leader may say too.

    Raises OffsetGoneError where the topic begins behind it.
    """
    why = f"the topic ends before offset {head.anchor_offset}"
    for tried in range(TRIES):
        if tried:
            await asyncio.sleep(PAUSE_S)
        try:
            records = await topic.read(head.anchor_offset, 1)
        except (TimeoutError, KafkaException) as error:
            why = str(error)
            continue
        if records:
            offset, value = records[0]
            found = offset, digest_of(value).hex()
            is_same = found == (head.anchor_offset, head.anchor_digest)
            return Known.SAME if is_same else Known.OTHER
    log.warning("whether a snapshot is of the log is unknown", epoch=head.epoch, why=why)
    return Known.UNKNOWN
