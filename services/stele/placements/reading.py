"""Telling each cluster how far this job has read its log, so that nothing is truncated that it still needs."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import KafkaException

from stele.domain.archive.commands import AnnounceReader
from stele.domain.commands import Envelope
from stele.domain.requests.not_taken import horizon_of
from stele.log.brokers import Brokers
from stele.log.commander import NotTakenError
from stele.runtime.announce import announce
from stele.runtime.logs import get_logger
from stele.runtime.request_ids import new_request_id

EVERY_EPOCHS: Final = 500
"""What is told is an epoch too: a quiet log is left in peace. Snapshots are ten thousand epochs apart."""
LOOK_S: Final = 10.0

log = get_logger(__name__)


def to_tell(reached: Mapping[str, int], told: Mapping[str, int]) -> dict[str, int]:
    """The clusters that are to be told, and of which epoch. Pure."""
    return {
        cluster: epoch
        for cluster, epoch in reached.items()
        if epoch and (cluster not in told or abs(epoch - told[cluster]) >= EVERY_EPOCHS)
    }


async def tell_readers(
    instance_id: str, brokers: Brokers, reached: Callable[[], Mapping[str, int]]
) -> None:
    """Say it, for ever; what is not taken is said again."""
    told, reader = dict[str, int](), f"placements.{instance_id}"[:64]
    horizons_ms = dict[str, int]()
    while True:
        for cluster, epoch in to_tell(reached(), told).items():
            envelope = Envelope(
                request_id=new_request_id(horizon_ms=horizons_ms.pop(cluster, -1)),
                command=AnnounceReader(reader, epoch),
                actor=f"service placements/{instance_id}",
                reason="has read so far",
            )
            try:
                if await announce(envelope, brokers, cluster) is not None:
                    told[cluster] = epoch
            except (TimeoutError, KafkaException, NotTakenError, OSError) as error:
                if isinstance(error, NotTakenError):
                    horizons_ms[cluster] = horizon_of(error.rejection)
                log.warning(
                    "a cluster was not told how far it is read", cluster=cluster, why=str(error)
                )
        await asyncio.sleep(LOOK_S)
