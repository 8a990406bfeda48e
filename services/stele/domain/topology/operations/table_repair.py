"""Repair of a table: all of its tablets, as they get room in the streams; of co-located tables together.

The request is the goal. While it runs the balancer asks for repairs of tablets that were repaired before it was
asked for, the oldest first (``tablets.repairing``). It is done when none is left. One among some replicas keeps
times of its own meanwhile: by the table's own nothing was repaired. To cancel it ends it at once,
with those repairs of the balancer's that have not begun.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, unknown_table
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import BALANCER, RequestKind, RequestStatus
from stele.domain.repairs.among import Among
from stele.domain.repairs.facts import RepairsForgotten
from stele.domain.requests.facts import Request, RequestChanged
from stele.domain.requests.rows import ended, new_request, started
from stele.domain.schema.facts import Table
from stele.domain.tablets.moves import no_tablets
from stele.domain.tablets.participants import check_among
from stele.domain.topology.operations.base import Missing, Operation, Served, no_sets, nobody
from stele.domain.topology.operations.commands import RepairTable


def repair_table(context: Context, command: RepairTable) -> Decision:
    """Queue it for a table with tablets that stands, one at a time, whoever takes part."""
    image = context.image
    table = image.schema.standing_map_owner(command.name)
    if table is None:
        return unknown_table(command.name)
    if not table.placement:
        return no_tablets(command.name)
    other = image.requests.table_repairs().get(table.table_id)
    if other is not None:
        return Rejection(
            "table_is_repaired",
            f"Table {command.name} is repaired by request {other.request_id}.",
            "Wait until that is done, or cancel it.",
            {"request_id": other.request_id},
        )
    among, placement = Among(command.nodes, command.dcs), image.ring.placements[table.placement]
    refused = check_among(image, among, placement)
    if refused is not None:
        return refused
    request = new_request(
        context,
        RequestKind.TABLE_REPAIR,
        table_id=table.table_id,
        submitted_ms=max(context.log_ms, _newest_ms(image, table)),
        repair_nodes=among.nodes,
        repair_dcs=among.dcs,
    )
    return (request,)


def _newest_ms(image: Image, table: Table) -> int:
    """When a tablet of the table was repaired last, or is to have been: this request comes later, although the
    log's time may stand still.
    """
    tablets = len(image.ring.placements[table.placement])
    times = [image.repairs.of(table.table_id, tablets, restricted=each) for each in (False, True)]
    mine = (r for r in image.requests.open.values() if r.repairs and r.table_id == table.table_id)
    return max(int(np.max(times)), max((r.submitted_ms for r in mine), default=0))


def missing(image: Image, request: Request) -> Missing | None:
    """Tablets that were repaired before it was asked for, or never."""
    table = _table(image, request)
    if request.status is RequestStatus.PENDING or table is None:
        return None
    left, of = _left(image, table, request)
    if not left:
        return None
    what = f"{left} of {of} tablets of {image.schema.full_name(table)} to be repaired"
    what += request.among.words()
    return Missing(what, left=left, of=of)


def _table(image: Image, request: Request) -> Table | None:
    """None when it was dropped meanwhile."""
    table = image.schema.tables.get(request.table_id)
    dropped = table is None or image.schema.data_of(table).dropped_version
    return None if dropped else table


def _left(image: Image, table: Table, request: Request) -> tuple[int, int]:
    """How many tablets there are to repair yet, and how many in all."""
    tablets, restricted = len(image.ring.placements[table.placement]), request.is_restricted
    times = image.repairs.of(table.table_id, tablets, restricted=restricted)
    return int((times <= request.submitted_ms).sum()), len(times)


def foreseen(image: Image, request: Request) -> tuple[str, ...]:
    """What the balancer would do for it."""
    table = _table(image, request)
    if table is None:
        return ()
    left, _ = _left(image, table, request)
    name = image.schema.full_name(table)
    return (f"{name}: {left} tablets are to be repaired{request.among.words()}",)


def step(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """It runs from now on; then it is done, or its table is gone."""
    image = context.image
    if _table(image, request) is None:
        why = "The table was dropped."
        return ended(context, image, request, RequestStatus.FAILED, why)
    if request.status is RequestStatus.PENDING:
        return (RequestChanged(started(context, request)),)
    done = ended(context, image, request, RequestStatus.DONE, "")
    if not request.is_restricted:
        return done
    return RepairsForgotten(request.table_id, restricted=True), *done


def made_for(image: Image, request: Request) -> Iterable[Request]:
    """What the balancer has asked for, and would not have without it, or would ask for again."""
    return (
        other
        for other in image.requests.pending()
        if other.repairs_tablet and other.table_id == request.table_id and other.actor == BALANCER
    )


TABLE_REPAIR: Final = Operation(
    kind=RequestKind.TABLE_REPAIR,
    command=RepairTable,
    ask=repair_table,
    priority=7,
    served=Served(missing=missing, step=step),
    needed=nobody,
    touched=no_sets,
    foreseen=foreseen,
    made_for=made_for,
)
