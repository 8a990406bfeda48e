"""Snapshot of a table: every node writes its rows of the table to its backup folder, while it
serves.

snapshot -> (gone)
failure or cancel: snapshot -> end_snapshot -> (gone); nodes delete the files that they have written.

A write acknowledged before the request is on the disks of a quorum of its tablet's replicas. Every
member that is not excluded writes all its rows. So the write is in the snapshot as long as these
members form a read quorum of each tablet. The whole tablet map is locked meanwhile, so the replicas
stay. Concurrent writes may be in the snapshot or not.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, bad_name
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import SnapshotTable
from stele.domain.model.requests import Request
from stele.domain.model.table_snapshots import TableSnapshot, TableSnapshotTaken, WrittenPart
from stele.domain.model.transitions import Transition
from stele.domain.names import OrderKind, RequestKind, TransitionState
from stele.domain.ring.quorum import read_satisfied
from stele.domain.ring.ranges import Range
from stele.domain.ring.transition import WHOLE_RING, TransitionPlan
from stele.domain.rules.requests import new_request
from stele.domain.tablets.maps import of_excluded, row_of
from stele.domain.tablets.moves import no_tablets
from stele.domain.topology.operations.base import Operation, State, every_member, no_sets
from stele.domain.topology.operations.keyspaces import free_table

MAX_SNAPSHOTS: Final = 1024
"""Most snapshots of all tables together: each is a row in every process."""
MOST_EXPIRE_S: Final = 10 * 365 * 86_400
SECOND_MS: Final = 1000


def snapshot_table(context: Context, command: SnapshotTable) -> Decision:
    """Queue it for an existing table with tablets, under an unused tag."""
    image = context.image
    refused = bad_name("snapshot", command.snapshot) or _check_expiry(command.expire_s)
    if refused is not None:
        return refused
    table = free_table(image, command.name)
    if isinstance(table, Rejection):
        return table
    if not table.placement:
        return no_tablets(command.name)
    refused = _check_tag(image, command.snapshot)
    if refused is not None:
        return refused
    return (
        new_request(
            context,
            RequestKind.TABLE_SNAPSHOT,
            table_id=table.table_id,
            tag=command.snapshot,
            expire_s=command.expire_s,
        ),
    )


def _check_expiry(expire_s: int) -> Rejection | None:
    if 0 <= expire_s <= MOST_EXPIRE_S:
        return None
    return Rejection(
        "bad_expiry",
        f"A snapshot cannot expire after {str(expire_s)[:20]} s.",
        f"Give 0 to {MOST_EXPIRE_S} seconds; 0: it never expires.",
    )


def _check_tag(image: Image, tag: str) -> Rejection | None:
    taken = any(r.tag == tag and not r.restore_id for r in image.requests.open.values())
    if taken or image.table_snapshots.named(tag):
        return Rejection(
            "snapshot_exists",
            f"There is a snapshot '{tag}' already.",
            "Choose another tag, or delete that one: `stele table snapshot delete TAG`.",
        )
    if len(image.table_snapshots.snapshots) < MAX_SNAPSHOTS:
        return None
    return Rejection(
        "too_many_snapshots",
        f"There are {MAX_SNAPSHOTS} snapshots.",
        "Delete some: `stele table snapshots` shows them.",
    )


def plans(image: Image, requests: list[Request]) -> dict[str, TransitionPlan] | Rejection:
    """Return a plan that changes no rows and locks the whole map."""
    (request,) = requests
    table = image.schema.tables.get(request.table_id)
    if table is None or image.schema.data_of(table).dropped_version:
        return Rejection("table_dropped", "The table was dropped.", "There is nothing to keep.")
    lost = _unreadable(image, table.placement)
    if lost:
        return Rejection("no_quorum", lost, "Remove or replace the dead nodes first.")
    # The locks keep the replicas of every tablet while nodes write their rows.
    return {table.placement: TransitionPlan((), locks=(Range(*WHOLE_RING),))}


def spoiled(image: Image, transition: Transition) -> str:
    """Return why the snapshot is useless: an excluded node may have had the only copy of a row."""
    return next(filter(None, (_unreadable(image, name) for name in transition.plans)), "")


def _unreadable(image: Image, placement: str) -> str:
    """Return why the remaining replicas of a tablet may lack acknowledged writes; empty if they
    have all.
    """
    excluded = image.membership.excluded()
    if not excluded:
        return ""
    found = image.ring.placements[placement]
    for tablet in np.flatnonzero(of_excluded(image, placement).any(axis=1)).tolist():
        row = row_of(found, tablet)
        # A read quorum meets each acknowledged write (I4).
        if not read_satisfied({*row.reads} - excluded, row):
            return f"Of tablet {tablet} too many replicas are dead: {', '.join(row.reads)}."
    return ""


def on_written(
    image: Image, done: Transition, wrote: tuple[WrittenPart, ...], log_ms: int
) -> Iterable[AnyFact]:
    """Write the snapshot, unless the table was dropped meanwhile."""
    table = image.schema.tables.get(done.table_id)
    if table is None:
        return
    request = image.requests.requests[done.transition_id]
    yield TableSnapshotTaken(
        TableSnapshot(
            snapshot_id=request.request_id,
            name=request.tag,
            table=image.schema.full_name(table),
            table_id=table.table_id,
            data_id=table.data_id,
            tablets=len(image.ring.placements[table.placement]),
            options=table.options,
            replication=image.schema.by_id[table.keyspace_id].replication,
            epoch=done.entered_epoch,
            taken_ms=log_ms,
            expires_ms=log_ms + SECOND_MS * request.expire_s if request.expire_s else 0,
            parts=wrote,
            columns_digest=image.schema.columns_digest(table.table_id),
        )
    )


_STATE: Final = TransitionState
TABLE_SNAPSHOT: Final = Operation(
    kind=RequestKind.TABLE_SNAPSHOT,
    command=SnapshotTable,
    ask=snapshot_table,
    priority=5,
    needed=every_member,
    subjects_work=False,
    plans=plans,
    first=_STATE.SNAPSHOT,
    states={
        _STATE.SNAPSHOT: State(everybody_does=OrderKind.SNAPSHOT, on_failure=_STATE.END_SNAPSHOT),
        _STATE.END_SNAPSHOT: State(undoing=True),
    },
    touched=no_sets,
    spoiled=spoiled,
    on_written=on_written,
    cleans_up=False,
)
