"""Announce to each cluster how far this job has read its log, so that needed records are not
truncated.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from stele.domain.commands import Envelope
from stele.domain.model.archive import AnnounceReader
from stele.log.brokers import Brokers
from stele.runtime.announce import Announcer
from stele.runtime.request_ids import new_request_id

EVERY_EPOCHS: Final = 500
"""Epochs between announcements. An announcement is an epoch too, so a quiet log gets none.

Snapshots are ten thousand epochs apart.
"""
LOOK_S: Final = 10.0


def to_tell(reached: Mapping[str, int], told: Mapping[str, int]) -> dict[str, int]:
    """Return the clusters that need an announcement, and its epoch. Pure."""
    return {
        cluster: epoch
        for cluster, epoch in reached.items()
        if epoch and (cluster not in told or abs(epoch - told[cluster]) >= EVERY_EPOCHS)
    }


async def tell_readers(
    instance_id: str, brokers: Brokers, reached: Callable[[], Mapping[str, int]]
) -> None:
    """Send announcements, forever. One that was not accepted is sent again."""
    told = dict[str, int]()
    while True:
        for cluster, epoch in to_tell(reached(), told).items():
            make = partial(_announcement, instance_id, epoch)
            if await Announcer(make, brokers, cluster).say() is not None:
                told[cluster] = epoch
        await asyncio.sleep(LOOK_S)


def _announcement(
    instance_id: str, epoch: int, state_id: bytes | None, horizon_ms: int
) -> Envelope:
    return Envelope(
        request_id=new_request_id(state_id, horizon_ms),
        command=AnnounceReader(f"placements.{instance_id}"[:64], epoch),
        actor=f"service placements/{instance_id}",
        reason="reports its position",
    )
