"""Restore of a table from a snapshot: all of its tablets, as streams have room.

The request is the goal. While it is open, the balancer asks for restores of tablets that are not
restored yet (``balancer.repairing.restores``). It is done when none is left, and fails when one of them has
failed ``TRIES`` times. A cancel ends it at once, with the requests on its behalf.

Meanwhile the table can be neither dropped nor truncated. So truncated data cannot return after a
later truncation.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import RestoreTable
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.model.schema import Table
from stele.domain.model.table_snapshots import (
    TableRestoreBegun,
    TableRestoreEnded,
    TableSnapshot,
)
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.rules.requests import ended, new_request, started
from stele.domain.rules.table_snapshots import unknown_snapshot
from stele.domain.tablets.maps import of_dead_alone
from stele.domain.tablets.moves import no_tablets
from stele.domain.topology.operations.base import (
    MissingCondition,
    Operation,
    Served,
    no_sets,
    nobody,
)
from stele.domain.topology.operations.keyspaces import free_table

TRIES: Final = 3
"""Number of failures of one tablet after which the restore fails: nodes may return, damaged files
stay damaged.
"""


def restore_table(context: Context, command: RestoreTable) -> Decision:
    """Queue it for an existing table with tablets that no other request drops, truncates or
    restores.
    """
    image = context.image
    table = free_table(image, command.name)
    if isinstance(table, Rejection):
        return table
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


def missing(image: Image, request: Request) -> MissingCondition | None:
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


def foreseen(image: Image, request: Request) -> tuple[str, ...]:
    """Return the balancer's work for it."""
    left = int(_left(image, request).sum())
    name = image.schema.full_name(image.schema.tables[request.table_id])
    snapshot = image.table_snapshots.named(request.tag)
    assert snapshot is not None, "a restore holds it"
    size = f"{len(snapshot.parts)} nodes wrote {snapshot.size_bytes} bytes of {snapshot.table}"
    return (f"{name}: {left} tablets are to be restored; {size}",)


def step(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """Start; then end as done or failed."""
    image = context.image
    if request.status is RequestStatus.PENDING:
        return (RequestChanged(started(context, request)),)
    why = _hopeless(_failures(image, request))
    status = RequestStatus.FAILED if why else RequestStatus.DONE
    return *ended(context, image, request, status, why), *on_ended(image, request)


def on_ended(image: Image, request: Request) -> Iterable[AnyFact]:
    yield TableRestoreEnded(request.restore_id)


def made_for(image: Image, request: Request) -> Iterable[Request]:
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
    served=Served(missing=missing, step=step),
    foreseen=foreseen,
    needed=nobody,
    touched=no_sets,
    made_for=made_for,
    on_ended=on_ended,
)
