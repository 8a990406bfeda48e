"""Restore of a tablet: each replica reads the rows of its range from a snapshot's files, while it
serves.

restore -> end_restore -> (gone), also after a failure or cancel; then it does not count as restored.

Rows merge by last write wins, so nothing has to be undone. The operation locks the row of the
tablet, so its replicas stay, and it has no other transition (docs/design.md, INV-TABL-2). Each
replica that is not excluded must have read all of its range. The result counts only while the
restore of the table is open.
"""

from collections.abc import Iterable, Set
from typing import Final

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, unknown_table
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import RestoreTablets, TabletRestore
from stele.domain.model.requests import Request, RequestChanged, RequestForgotten
from stele.domain.model.table_snapshots import TabletRestored
from stele.domain.model.transitions import Transition
from stele.domain.names import BALANCER, OrderKind, RequestKind, RequestStatus, TransitionState
from stele.domain.ring.transition import TransitionRow
from stele.domain.rules.requests import each_once, new_request, of_tablet, open_tablets
from stele.domain.tablets.moves import check_tablet
from stele.domain.topology.operations.base import Operation, Sources, State, no_sets
from stele.domain.topology.operations.tablet_repair import needed, plans

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
    request_for = lambda restore: _request(context, restore, asked, alone=alone)  # noqa: E731
    nothing = Rejection("no_restores", "There is no tablet to restore.", "Name at least one.")
    return each_once(command.restores, request_for, asked, nothing)


def restored_now(image: Image) -> set[tuple[str, int]]:
    """Return tablets whose restore is open or pending, as table id and tablet number."""
    return open_tablets(image, lambda request: request.restores_tablet)


def _request(
    context: Context, restore: TabletRestore, asked: Set[tuple[str, int]], *, alone: bool
) -> RequestChanged | Rejection:
    image = context.image
    table = image.schema.table_named(restore.table)
    if table is None:
        return unknown_table(restore.table)
    refused = check_tablet(image, table, restore)
    if refused is not None:
        return refused
    goal = image.table_snapshots.restore_of(table.table_id)
    if goal is None or goal.epochs[restore.tablet] or (table.table_id, restore.tablet) in asked:
        return Rejection(
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


def check(image: Image, requests: list[Request]) -> Rejection | None:
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


def receivers(restoring: Transition) -> list[str]:
    """Return all replicas, also a single one."""
    return sorted({n for plan in restoring.plans.values() for row in plan.rows for n in row.old})


def sources(
    image: Image, restoring: Transition, row: TransitionRow, node_id: str, unavailable: Set[str]
) -> Sources | None:
    """Return None: rows come from files, not from other replicas."""
    return None


def on_done(image: Image, done: Transition, epoch: int) -> Iterable[AnyFact]:
    """Record the restore, unless the restore of the table has ended or all its readers are
    excluded.
    """
    request = image.requests.requests[done.transition_id]
    # If all replicas are excluded, no live replica has read the files.
    alive = {*receivers(done)} - image.membership.excluded()
    if alive and request.restore_id in image.table_snapshots.restores:
        yield TabletRestored(request.restore_id, request.tablet, request.tablet_count, epoch)
    if request.actor == BALANCER and request.status is RequestStatus.DONE:
        yield RequestForgotten(request.request_id, request.finished_epoch, request.ended_ms)


_STATE: Final = TransitionState
TABLET_RESTORE: Final = Operation(
    kind=RequestKind.TABLET_RESTORE,
    command=RestoreTablets,
    ask=restore_tablets,
    priority=7,
    needed=needed,
    subjects_work=False,
    ends_by_silence=True,
    check=check,
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
    touched=no_sets,
    receivers=receivers,
    sources=sources,
    on_done=on_done,
    cleans_up=False,
)
