"""Snapshots of tables beside the topology: each is deleted when its time is over. Nothing waits for this."""

from stele.coordinator.desk import Desk
from stele.domain.table_snapshots.commands import ExpireTableSnapshot
from stele.domain.table_snapshots.decide import expired


def look_after_snapshots(desk: Desk) -> None:
    """Delete those whose time is over by this clock; the log looks at its own time once more."""
    for snapshot_id in expired(desk.seen.image, desk.seen.wall_ms):
        desk.submit(ExpireTableSnapshot(desk.seen.term, snapshot_id))
