"""Restore of a tablet: each replica reads the rows of its range from the files of a snapshot, while it serves.

restore -> end_restore -> (gone), also when it fails or is cancelled: then it does not count as restored.

Rows merge by last write wins, so nothing has to be undone. The tablet's row is locked, so its replicas stay who
they are, and it has no other transition (INV-TABL-2). Each replica that is not excluded must have read all of
it; it counts only while the restore of the table is open.
"""

from collections.abc import Iterable, Set
from typing import Final

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, unknown_table
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import BALANCER, OrderKind, RequestKind, RequestStatus, TransitionState
from stele.domain.requests.facts import Request, RequestChanged, RequestForgotten
from stele.domain.requests.rows import new_request
from stele.domain.ring.transition import TransitionRow
from stele.domain.table_snapshots.facts import TabletRestored
from stele.domain.tablets.moves import check_tablet
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import Operation, Sources, State, no_sets
from stele.domain.topology.operations.commands import RestoreTablets, TabletRestore
from stele.domain.topology.operations.each_tablet import each_once, of_tablet, open_tablets
from stele.domain.topology.operations.tablet_repair import needed, plans

MAX_RESTORES: Final = 1024
"""Of one command: each makes a request."""


def restore_tablets(context: Context, command: RestoreTablets) -> Decision:
    """Queue those that can be made, each tablet once; refused when none can."""
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
    """Tablets that are being restored, or wait for it: the table's id and the tablet's number."""
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
    """Nobody needs it once the restore of the table has ended, and somebody must be there to read."""
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
    """All replicas, one alone too."""
    return sorted({n for plan in restoring.plans.values() for row in plan.rows for n in row.old})


def sources(
    image: Image, restoring: Transition, row: TransitionRow, node_id: str, unavailable: Set[str]
) -> Sources | None:
    """Rows come from files, and not from those who serve the range."""
    return None


def on_done(image: Image, done: Transition, epoch: int) -> Iterable[AnyFact]:
    """It counts, unless the restore of the table has ended meanwhile, or all who read are dead."""
    request = image.requests.requests[done.transition_id]
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
    subjects_work=False,
    needed=needed,
    plans=plans,
    check=check,
    receivers=receivers,
    sources=sources,
    touched=no_sets,
    cleans_up=False,
    on_done=on_done,
)
