"""Table snapshots beside the topology: each is deleted when its time is over. No request waits for
this.
"""

from stele.coordinator.desk import Desk
from stele.domain.table_snapshots.domain import expired
from stele.domain.table_snapshots.model import ExpireTableSnapshot


def look_after_snapshots(desk: Desk) -> None:
    """Delete the snapshots whose time is over by this clock. The log checks its own time again."""
    for snapshot_id in expired(desk.seen.image, desk.seen.wall_ms):
        desk.submit(ExpireTableSnapshot(desk.seen.term, snapshot_id))
