"""Snapshot of a table, and its restore tablet by tablet."""

from collections.abc import Iterable, Set
from typing import Final

import numpy as np
import numpy.typing as npt

from stele.domain.base import Rejected, Rejection, required
from stele.domain.context import Context, Decision, bad_name, unknown_table
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import RestoreTable, RestoreTablets, SnapshotTable, TabletRestore
from stele.domain.model.requests import Request, RequestChanged, RequestForgotten
from stele.domain.model.schema import Table
from stele.domain.model.table_snapshots import (
    TableRestoreBegun,
    TableRestoreEnded,
    TableSnapshot,
    TableSnapshotTaken,
    TabletRestored,
    WrittenPart,
)
from stele.domain.model.transitions import Transition
from stele.domain.names import BALANCER, OrderKind, RequestKind, RequestStatus, TransitionState
from stele.domain.ring.quorum import read_satisfied
from stele.domain.ring.transition import WHOLE_RING, TransitionPlan, TransitionRow
from stele.domain.rules.requests import (
    each_once,
    ended,
    new_request,
    of_tablet,
    open_tablets,
    started,
)
from stele.domain.rules.table_snapshots import unknown_snapshot
from stele.domain.tablets.maps import of_dead_alone, row_of
from stele.domain.tablets.moves import check_tablet, no_tablets
from stele.domain.topology.operations.base import (
    MissingCondition,
    Operation,
    Served,
    Sources,
    State,
    every_member,
    requested_table,
)
from stele.domain.topology.operations.keyspaces import free_table
from stele.domain.topology.operations.repairs import needed, plans

# Snapshot of a table: every node writes its rows of the table to its backup folder, while it
# serves.
#
# snapshot -> (gone)
# failure or cancel: snapshot -> end_snapshot -> (gone); nodes delete the files that they have written.
#
# A write acknowledged before the request is on the disks of a quorum of its tablet's replicas.
# Every member that is not excluded writes all its rows. So the write is in the snapshot as long as
# these members form a read quorum of each tablet. The whole tablet map is locked meanwhile, so the
# replicas stay. Concurrent writes may be in the snapshot or not.


MAX_SNAPSHOTS: Final = 1024
"""Most snapshots of all tables together: each is a row in every process."""
MOST_EXPIRE_S: Final = 10 * 365 * 86_400
SECOND_MS: Final = 1000


def snapshot_table(context: Context, command: SnapshotTable) -> Decision:
    """Queue it for an existing table with tablets, under an unused tag."""
    image = context.image
    required(bad_name("snapshot", command.snapshot) or _check_expiry(command.expire_s))
    table = required(free_table(image, command.name))
    if not table.placement:
        return no_tablets(command.name)
    required(_check_tag(image, command.snapshot))
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
    taken = any(r.tag == tag and not r.restore_id for r in image.requests.unfinished_by_id.values())
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


def snapshot_plans(image: Image, requests: list[Request]) -> dict[str, TransitionPlan]:
    """Return a plan that changes no rows and locks the whole map."""
    (request,) = requests
    table = requested_table(image, request)
    lost = _unreadable(image, table.placement)
    if lost:
        raise Rejected("no_quorum", lost, "Remove or replace the dead nodes first.")
    # The locks keep the replicas of every tablet while nodes write their rows.
    return {table.placement: TransitionPlan((), locks=(WHOLE_RING,))}


def invalidated(image: Image, transition: Transition) -> str:
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
    for tablet in np.flatnonzero(found.read_on(excluded).any(axis=1)).tolist():
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
    plans=snapshot_plans,
    first=_STATE.SNAPSHOT,
    states={
        _STATE.SNAPSHOT: State(work_of_members=OrderKind.SNAPSHOT, on_failure=_STATE.END_SNAPSHOT),
        _STATE.END_SNAPSHOT: State(undoing=True),
    },
    invalidated=invalidated,
    on_written=on_written,
    cleans_up=False,
)


# Restore of a table from a snapshot: all of its tablets, as streams have room.
#
# The request is the goal. While it is open, the balancer asks for restores of tablets that are not
# restored yet (``balancer.repairing.restores``). It is done when none is left, and fails when one
# of them has failed ``TRIES`` times. A cancel ends it at once, with the requests on its behalf.
#
# Meanwhile the table can be neither dropped nor truncated. So truncated data cannot return after a
# later truncation.


TRIES: Final = 3
"""Number of failures of one tablet after which the restore fails: nodes may return, damaged files
stay damaged.
"""


def restore_table(context: Context, command: RestoreTable) -> Decision:
    """Queue it for an existing table with tablets that no other request drops, truncates or
    restores.
    """
    image = context.image
    table = required(free_table(image, command.name))
    if not table.placement:
        return no_tablets(command.name)
    snapshot = image.table_snapshots.named(command.snapshot)
    if snapshot is None:
        return unknown_snapshot(command.snapshot)
    if not _fits(image, snapshot, table):
        return Rejection(
            "other_columns",
            f"Table {command.name} has other columns than {snapshot.table} had in snapshot"
            f" '{snapshot.name}', and rows are stored by the ids of columns.",
            f"Restore into {snapshot.table} itself, or into a table that was created by the same"
            f" statements: `stele schema show {snapshot.table} --epoch {snapshot.epoch}`.",
        )
    id_, count = context.envelope.request_id, len(image.ring.placements[table.placement])
    asked = new_request(
        context,
        RequestKind.TABLE_RESTORE,
        table_id=table.table_id,
        tag=snapshot.name,
        restore_id=id_,
    )
    return asked, TableRestoreBegun(id_, table.table_id, snapshot.snapshot_id, count)


def _fits(image: Image, snapshot: TableSnapshot, table: Table) -> bool:
    """Return whether the table can read the rows of the snapshot.

    The table that it was taken of can: it never gives the id of a dropped column to another one.
    """
    digest = image.schema.columns_digest(table.table_id)
    return table.table_id == snapshot.table_id or digest == snapshot.columns_digest


def restore_missing(image: Image, request: Request) -> MissingCondition | None:
    """Return the tablets that are not restored; None once one has failed finally."""
    if request.status is RequestStatus.PENDING:
        return None
    failures, left = _failures(image, request), _left(image, request)
    if _hopeless(failures) or not left.any():
        return None
    table = image.schema.tables[request.table_id]
    why = f"; tablet {failures[0].tablet} has failed: {failures[0].error}" if failures else ""
    dead = np.flatnonzero(left & of_dead_alone(image, table.placement))
    if len(dead):
        why += f"; dead nodes alone have tablet {dead[0]}: remove or replace them"
    count, of = int(left.sum()), len(left)
    what = f"{count} of {of} tablets of {image.schema.full_name(table)} to be restored{why}"
    return MissingCondition(what, left=count, of=of)


def _left(image: Image, request: Request) -> npt.NDArray[np.bool_]:
    """Return for each tablet whether it is still to be restored."""
    restore = image.table_snapshots.restores[request.restore_id]
    left: npt.NDArray[np.bool_] = restore.epochs.all() == 0
    return left


def _failures(image: Image, request: Request) -> list[Request]:
    """Return the failed requests of its tablets, the newest first."""
    found = [
        r
        for r in image.requests.requests.values()
        if r.restores_tablet
        and r.restore_id == request.restore_id
        and r.status is RequestStatus.FAILED
    ]
    return sorted(found, key=lambda r: r.finished_epoch, reverse=True)


def _hopeless(failures: list[Request]) -> str:
    """Return why a tablet has failed finally; empty while another try is allowed."""
    failed = dict[tuple[int, int], int]()
    for each in failures:
        tablet = each.tablet, each.tablet_count
        failed[tablet] = failed.get(tablet, 0) + 1
        if failed[tablet] >= TRIES:
            return f"Tablet {each.tablet} failed {TRIES} times: {failures[0].error}"
    return ""


def restore_foreseen(image: Image, request: Request) -> tuple[str, ...]:
    """Return the balancer's work for it."""
    left = int(_left(image, request).sum())
    name = image.schema.full_name(image.schema.tables[request.table_id])
    snapshot = image.table_snapshots.named(request.tag)
    assert snapshot is not None, "a restore holds it"
    size = f"{len(snapshot.parts)} nodes wrote {snapshot.size_bytes} bytes of {snapshot.table}"
    return (f"{name}: {left} tablets are to be restored; {size}",)


def restore_step(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """Start; then end as done or failed."""
    image = context.image
    if request.status is RequestStatus.PENDING:
        return (RequestChanged(started(context, request)),)
    why = _hopeless(_failures(image, request))
    status = RequestStatus.FAILED if why else RequestStatus.DONE
    return *ended(context, image, request, status, why), *restore_ended(image, request)


def restore_ended(image: Image, request: Request) -> Iterable[AnyFact]:
    yield TableRestoreEnded(request.restore_id)


def restore_children(image: Image, request: Request) -> Iterable[Request]:
    """Return the unfinished restores of its tablets."""
    return (
        other
        for other in image.requests.unfinished()
        if other.restores_tablet and other.restore_id == request.restore_id
    )


TABLE_RESTORE: Final = Operation(
    kind=RequestKind.TABLE_RESTORE,
    command=RestoreTable,
    ask=restore_table,
    priority=7,
    served=Served(missing=restore_missing, step=restore_step),
    foreseen=restore_foreseen,
    child_requests=restore_children,
    on_ended=restore_ended,
)


# Restore of a tablet: each replica reads the rows of its range from a snapshot's files, while it
# serves.
#
# restore -> end_restore -> (gone), also after a failure or cancel; then it does not count as restored.
#
# Rows merge by last write wins, so nothing has to be undone. The operation locks the row of the
# tablet, so its replicas stay, and it has no other transition (docs/design.md, INV-TABL-2). Each
# replica that is not excluded must have read all of its range. The result counts only while the
# restore of the table is open.


MAX_RESTORES: Final = 1024
"""Most restores in one command: each makes a request."""


def restore_tablets(context: Context, command: RestoreTablets) -> Decision:
    """Queue the possible restores, each tablet once; refuse the command if none is possible."""
    image = context.image
    asked = restored_now(image)
    if len(command.restores) > MAX_RESTORES:
        return Rejection(
            "too_many_restores",
            f"{len(command.restores)} tablets are to be restored.",
            f"Ask for {MAX_RESTORES} at a time.",
        )
    alone = len(command.restores) == 1

    def request_for(restore: TabletRestore) -> RequestChanged:
        return _request_for(context, restore, asked, alone=alone)

    nothing = Rejection("no_restores", "There is no tablet to restore.", "Name at least one.")
    return each_once(command.restores, request_for, asked, nothing)


def restored_now(image: Image) -> set[tuple[str, int]]:
    """Return tablets whose restore is open or pending, as table id and tablet number."""
    return open_tablets(image, lambda request: request.restores_tablet)


def _request_for(
    context: Context, restore: TabletRestore, asked: Set[tuple[str, int]], *, alone: bool
) -> RequestChanged:
    image = context.image
    table = required(image.schema.table_named(restore.table) or unknown_table(restore.table))
    required(check_tablet(image, table, restore))
    goal = image.table_snapshots.restore_of(table.table_id)
    if goal is None or goal.epochs[restore.tablet] or (table.table_id, restore.tablet) in asked:
        raise Rejected(
            "nothing_to_restore",
            f"Tablet {restore.tablet} of {restore.table} is not to be restored.",
            "`stele table restore` restores a table; its tablets follow.",
        )
    made = new_request(
        context,
        RequestKind.TABLET_RESTORE,
        table_id=table.table_id,
        tablet_count=len(goal.epochs),
        tag=image.table_snapshots.snapshots[goal.snapshot_id].name,
        restore_id=goal.restore_id,
    ).request
    return of_tablet(context, made, restore.tablet, restore.why, alone=alone)


def check_restore(image: Image, requests: list[Request]) -> Rejection | None:
    """Refuse it if the restore of the table has ended, or no replica is alive to read the files."""
    (request,) = requests
    if request.restore_id not in image.table_snapshots.restores:
        return Rejection(
            "restore_ended", "The restore of the table has ended.", "There is nothing to do."
        )
    if needed(image, requests):
        return None
    return Rejection(
        "only_dead_replicas",
        f"Tablet {request.tablet} has replicas on dead nodes alone.",
        "Remove or replace them first: `stele remove NODE --force`.",
    )


def restore_receivers(restoring: Transition) -> list[str]:
    """Return all replicas, also a single one."""
    return sorted({n for row in restoring.rows() for n in row.old})


def no_sources(
    image: Image, restoring: Transition, row: TransitionRow, node_id: str, unavailable: Set[str]
) -> Sources | None:
    """Return None: rows come from files, not from other replicas."""
    return None


def tablet_restored(image: Image, done: Transition, epoch: int) -> Iterable[AnyFact]:
    """Record the restore, unless the restore of the table has ended or all its readers are
    excluded.
    """
    request = image.requests.requests[done.transition_id]
    # If all replicas are excluded, no live replica has read the files.
    alive = {*restore_receivers(done)} - image.membership.excluded()
    if alive and request.restore_id in image.table_snapshots.restores:
        yield TabletRestored(request.restore_id, request.tablet, request.tablet_count, epoch)
    if request.actor == BALANCER and request.status is RequestStatus.DONE:
        yield RequestForgotten(request.request_id, request.finished_epoch, request.ended_ms)


TABLET_RESTORE: Final = Operation(
    kind=RequestKind.TABLET_RESTORE,
    command=RestoreTablets,
    ask=restore_tablets,
    priority=7,
    needed=needed,
    subjects_work=False,
    ends_by_silence=True,
    check=check_restore,
    plans=plans,
    first=_STATE.RESTORE,
    states={
        _STATE.RESTORE: State(
            streams=True,
            streams_by=OrderKind.RESTORE,
            reads_stay=True,
            on_success=_STATE.END_RESTORE,
            on_failure=_STATE.END_RESTORE,
        ),
        _STATE.END_RESTORE: State(),
    },
    receivers=restore_receivers,
    sources=no_sources,
    on_done=tablet_restored,
    cleans_up=False,
)
