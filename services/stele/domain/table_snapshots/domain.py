"""The domain of snapshots of tables, entered in the registry. Operations on tables write most of its facts."""

from collections.abc import Iterable

import msgspec
import numpy as np

from stele.domain.hashing import MODULUS, hash_of_facts, row_hash
from stele.domain.registry_entry import Domain
from stele.domain.repairs.domain import LITTLE_ENDIAN, TIMES_PER_FACT
from stele.domain.repairs.times import Times
from stele.domain.table_snapshots.commands import DeleteTableSnapshot, ExpireTableSnapshot
from stele.domain.table_snapshots.decide import delete_table_snapshot, expire_table_snapshot
from stele.domain.table_snapshots.facts import (
    RestoredTablets,
    RestoreSummary,
    TableRestoreBegun,
    TableRestoreEnded,
    TableRestoreResized,
    TableSnapshotDeleted,
    TableSnapshotsFact,
    TableSnapshotTaken,
    TabletRestored,
)
from stele.domain.table_snapshots.image import TableRestore, TableSnapshotsImage
from stele.domain.tables import Json, changed_rows, sorted_values

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
    """Of the snapshots' facts, and of each restore's head and its tablets as they are."""
    heads = [TableSnapshotTaken(each) for each in image.snapshots.values()]
    total = hash_of_facts([*heads, *(_head(each) for each in image.restores.values())])
    for name, each in image.restores.items():
        total += row_hash(name.encode() + each.epochs.all().astype(LITTLE_ENDIAN).tobytes())
    return total % MODULUS


def view(image: TableSnapshotsImage) -> Json:
    """Snapshots by tag; restores without each of their tablets."""
    found = sorted(image.snapshots.values(), key=lambda each: (each.name, each.snapshot_id))
    return {
        "table_snapshots": tuple(found),
        "table_restores": tuple(map(summary_of, sorted_values(image.restores))),
    }


def summary_of(restore: TableRestore) -> RestoreSummary:
    epochs = restore.epochs.all()
    return RestoreSummary(
        restore.restore_id,
        restore.table_id,
        restore.snapshot_id,
        len(epochs),
        int((epochs > 0).sum()),
    )


def diff(before: TableSnapshotsImage, after: TableSnapshotsImage) -> Json:
    return {
        "table_snapshots": changed_rows("snapshot_id", before.snapshots, after.snapshots),
        "table_restores": changed_rows("restore_id", _summaries(before), _summaries(after)),
    }


def _summaries(image: TableSnapshotsImage) -> dict[str, RestoreSummary]:
    return {name: summary_of(each) for name, each in image.restores.items()}


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
    view=view,
    diff=diff,
    hash=hash_of,
)
