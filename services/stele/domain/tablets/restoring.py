"""Choose the tablets to restore now, of tables that are being restored, while streams have room.

Restores come before repairs and after moves. Tablets that move or are under repair wait. Tablets of
a node that is down wait, and so do those on dead nodes only. A tablet whose restore failed waits
for a while. All of them wait while a node that wrote the snapshot is down, because each needs its
files.
"""

from collections.abc import Set

import numpy as np

from stele.domain.image import Image
from stele.domain.tablets.columns import Tablets
from stele.domain.tablets.conditions import Conditions
from stele.domain.tablets.repairing import RepairAssignments
from stele.domain.topology.operations.commands import TabletRestore
from stele.domain.topology.operations.tablet_restore import MAX_RESTORES


def restores(
    image: Image,
    what: Tablets,
    conditions: Conditions,
    assigned: RepairAssignments,
    resized: Set[str],
) -> list[TabletRestore]:
    """Return the restores to begin in one round. Tables that are ``resized`` in it wait."""
    found = list[TabletRestore]()
    for restore_id in sorted(image.table_snapshots.restores):
        restore = image.table_snapshots.restores[restore_id]
        table = image.schema.tables[restore.table_id]
        name = image.schema.full_name(table)
        owner = image.schema.full_name(image.schema.tables[table.base_table_id or table.table_id])
        snapshot = image.table_snapshots.snapshots[restore.snapshot_id]
        # A writer that has left or is excluded is not waited for: the others were a quorum.
        writers = {part.node_id for part in snapshot.parts} & {*image.membership.taking_part()}
        if owner not in what.names or owner in resized or writers & conditions.down:
            continue
        first, of = what.first[what.place[owner]], what.tablets_of(owner)
        paused = conditions.are_paused(restore.table_id, of)
        units = slice(first, first + of)
        due = (restore.epochs.all() == 0) & assigned.ready(units) & assigned.lives(units) & ~paused
        why = f"restored from {snapshot.name}"
        found += [
            TabletRestore(table=name, tablet=tablet, of=of, why=why)
            for tablet in np.flatnonzero(due).tolist()
            if assigned.takes(first + tablet, alone=True)
        ]
    return found[:MAX_RESTORES]
