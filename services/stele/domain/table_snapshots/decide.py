"""Deleting snapshots of tables: by hand, and when their time is over."""

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.table_snapshots.commands import DeleteTableSnapshot, ExpireTableSnapshot
from stele.domain.table_snapshots.facts import TableSnapshot, TableSnapshotDeleted
from stele.domain.topology.guards import check_term, overtaken


def delete_table_snapshot(context: Context, command: DeleteTableSnapshot) -> Decision:
    snapshot = context.image.table_snapshots.named(command.snapshot)
    if snapshot is None:
        return unknown_snapshot(command.snapshot)
    return _check_unread(context.image, snapshot) or (TableSnapshotDeleted(snapshot.snapshot_id),)


def expire_table_snapshot(context: Context, command: ExpireTableSnapshot) -> Decision:
    """Only when the log's own time says so too."""
    refused = check_term(context.image, command.term)
    if refused is not None:
        return refused
    snapshot = context.image.table_snapshots.snapshots.get(command.snapshot_id)
    if snapshot is None or not 0 < snapshot.expires_ms <= context.log_ms:
        return overtaken(context.image, "No such snapshot has expired.")
    return _check_unread(context.image, snapshot) or (TableSnapshotDeleted(snapshot.snapshot_id),)


def expired(image: Image, now_ms: int) -> list[str]:
    """Ids of snapshots whose time is over and that no restore reads, sorted."""
    found = image.table_snapshots
    return sorted(
        name
        for name, each in found.snapshots.items()
        if 0 < each.expires_ms <= now_ms and not found.is_read(name)
    )


def unknown_snapshot(tag: str) -> Rejection:
    return Rejection(
        "unknown_snapshot",
        f"There is no snapshot '{tag[:80]}'.",
        "`stele table snapshots` shows them.",
    )


def _check_unread(image: Image, snapshot: TableSnapshot) -> Rejection | None:
    if not image.table_snapshots.is_read(snapshot.snapshot_id):
        return None
    return Rejection(
        "snapshot_in_use",
        f"A table is being restored from snapshot '{snapshot.name}'.",
        "Wait until that is done, or cancel it: `stele requests --unfinished`.",
    )
