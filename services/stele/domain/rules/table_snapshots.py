"""The rules of table snapshots: deletion by command and on expiry, folds and views."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.hashing import MODULUS, hash_of_facts, row_hash
from stele.domain.image import Image
from stele.domain.model.repairs import LITTLE_ENDIAN, TIMES_PER_FACT, Times
from stele.domain.model.table_restores import TableRestore, TableSnapshotsImage
from stele.domain.model.table_snapshots import (
    DeleteTableSnapshot,
    ExpireTableSnapshot,
    RestoredTablets,
    RestoreSummary,
    TableRestoreBegun,
    TableRestoreEnded,
    TableRestoreResized,
    TableSnapshot,
    TableSnapshotDeleted,
    TableSnapshotsFact,
    TableSnapshotTaken,
    TabletRestored,
)
from stele.domain.registry_entry import Domain
from stele.domain.rules.requests import check_term, overtaken
from stele.domain.tables import Json, in_order, sorted_values


def delete_table_snapshot(context: Context, command: DeleteTableSnapshot) -> Decision:
    snapshot = context.image.table_snapshots.named(command.snapshot)
    if snapshot is None:
        return unknown_snapshot(command.snapshot)
    return _check_unread(context.image, snapshot) or (TableSnapshotDeleted(snapshot.snapshot_id),)


def expire_table_snapshot(context: Context, command: ExpireTableSnapshot) -> Decision:
    """Decide the deletion of an expired snapshot.

    It must have expired by the time of the log, too.
    """
    required(check_term(context.image, command.term))
    snapshot = context.image.table_snapshots.snapshots.get(command.snapshot_id)
    # The coordinator's clock may be ahead, so its word alone does not delete data.
    if snapshot is None or not 0 < snapshot.expires_ms <= context.log_ms:
        return overtaken(context.image, "No such snapshot has expired.")
    return _check_unread(context.image, snapshot) or (TableSnapshotDeleted(snapshot.snapshot_id),)


def expired(image: Image, now_ms: int) -> list[str]:
    """Return the sorted ids of snapshots that have expired and that no restore reads."""
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
    # Nodes delete their files after this fact, so no restore may still read them.
    if not image.table_snapshots.is_read(snapshot.snapshot_id):
        return None
    return Rejection(
        "snapshot_in_use",
        f"A table is being restored from snapshot '{snapshot.name}'.",
        "Wait until that is done, or cancel it: `stele requests --unfinished`.",
    )


# The domain of table snapshots for the registry. Operations on tables write most of its facts.


replace = msgspec.structs.replace


def snapshot_taken(image: TableSnapshotsImage, fact: TableSnapshotTaken) -> TableSnapshotsImage:
    return replace(image, snapshots=image.snapshots.set(fact.snapshot.snapshot_id, fact.snapshot))


def snapshot_deleted(image: TableSnapshotsImage, fact: TableSnapshotDeleted) -> TableSnapshotsImage:
    return replace(image, snapshots=image.snapshots.delete(fact.snapshot_id))


def restore_begun(image: TableSnapshotsImage, fact: TableRestoreBegun) -> TableSnapshotsImage:
    never = Times.never(fact.tablets)
    return _with(image, TableRestore(fact.restore_id, fact.table_id, fact.snapshot_id, never))


def tablet_restored(image: TableSnapshotsImage, fact: TabletRestored) -> TableSnapshotsImage:
    before = image.restores[fact.restore_id]
    # A resize changes the restore in the same epoch, so the number of tablets always fits.
    assert len(before.epochs) == fact.of
    now = np.array([fact.epoch], np.int64)
    return _with(image, replace(before, epochs=before.epochs.with_times(fact.tablet, now)))


def restore_resized(image: TableSnapshotsImage, fact: TableRestoreResized) -> TableSnapshotsImage:
    before = image.restores[fact.restore_id]
    return _with(image, replace(before, epochs=before.epochs.resized(fact.tablets)))


def restore_ended(image: TableSnapshotsImage, fact: TableRestoreEnded) -> TableSnapshotsImage:
    return replace(image, restores=image.restores.delete(fact.restore_id))


def restored_tablets(image: TableSnapshotsImage, fact: RestoredTablets) -> TableSnapshotsImage:
    before, epochs = image.restores[fact.restore_id], np.frombuffer(fact.epochs, LITTLE_ENDIAN)
    return _with(image, replace(before, epochs=before.epochs.with_times(fact.first, epochs)))


def _with(image: TableSnapshotsImage, restore: TableRestore) -> TableSnapshotsImage:
    return replace(image, restores=image.restores.set(restore.restore_id, restore))


def to_facts(image: TableSnapshotsImage) -> Iterable[TableSnapshotsFact]:
    for snapshot in sorted_values(image.snapshots):
        yield TableSnapshotTaken(snapshot)
    for each in sorted_values(image.restores):
        # The head creates the restore to which the following epochs are applied.
        yield _head(each)
        epochs = each.epochs.all()
        for first in range(0, len(epochs), TIMES_PER_FACT):
            piece = epochs[first : first + TIMES_PER_FACT].astype(LITTLE_ENDIAN).tobytes()
            yield RestoredTablets(each.restore_id, first, piece)


def _head(restore: TableRestore) -> TableRestoreBegun:
    return TableRestoreBegun(
        restore.restore_id, restore.table_id, restore.snapshot_id, len(restore.epochs)
    )


def hash_of(image: TableSnapshotsImage) -> int:
    """Return the hash of the snapshots' facts, and of the restores' heads and present tablets."""
    heads = [TableSnapshotTaken(each) for each in image.snapshots.values()]
    total = hash_of_facts([*heads, *(_head(each) for each in image.restores.values())])
    for name, each in image.restores.items():
        # The hash uses the bytes of all epochs, so it does not depend on the size of pieces.
        total += row_hash(name.encode() + each.epochs.all().astype(LITTLE_ENDIAN).tobytes())
    return total % MODULUS


def rows(image: TableSnapshotsImage) -> Json:
    """Return the snapshots, and the restores without their individual tablets."""
    restores = {id_: summary_of(each) for id_, each in image.restores.items()}
    return {"table_snapshots": image.snapshots, "table_restores": restores}


def view(image: TableSnapshotsImage) -> Json:
    """Return the snapshots sorted by tag."""
    found = sorted(image.snapshots.values(), key=lambda each: (each.name, each.snapshot_id))
    return {**in_order(rows(image)), "table_snapshots": tuple(found)}


def summary_of(restore: TableRestore) -> RestoreSummary:
    epochs = restore.epochs.all()
    return RestoreSummary(
        restore.restore_id,
        restore.table_id,
        restore.snapshot_id,
        len(epochs),
        int((epochs > 0).sum()),
    )


DOMAIN = Domain(
    name="table_snapshots",
    empty=TableSnapshotsImage(),
    decide={
        DeleteTableSnapshot: delete_table_snapshot,
        ExpireTableSnapshot: expire_table_snapshot,
    },
    apply={
        TableSnapshotTaken: snapshot_taken,
        TableSnapshotDeleted: snapshot_deleted,
        TableRestoreBegun: restore_begun,
        TabletRestored: tablet_restored,
        TableRestoreResized: restore_resized,
        TableRestoreEnded: restore_ended,
        RestoredTablets: restored_tablets,
    },
    to_facts=to_facts,
    rows=rows,
    view=view,
    hash=hash_of,
)
