"""Repair of a table: all of its tablets, as streams have room; co-located tables are repaired
together.

The request is the goal. While it runs, the balancer asks for repairs of tablets that were last
repaired before the request, the oldest first (``balancer.repairing``). It is done when none is left.

A repair among some replicas keeps separate times meanwhile, because it does not count as a repair
of the table. A cancel ends it at once, with those repairs of the balancer that have not begun.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import RepairTable
from stele.domain.model.repairs import RepairsForgotten
from stele.domain.model.requests import Among, Request, RequestChanged
from stele.domain.model.schema import Table
from stele.domain.names import BALANCER, RequestKind, RequestStatus
from stele.domain.rules.requests import ended, new_request, started
from stele.domain.rules.schema import accepted_drops, standing_map_owner
from stele.domain.tablets.moves import no_tablets
from stele.domain.topology.operations.base import (
    MissingCondition,
    Operation,
    Served,
    no_sets,
    nobody,
)
from stele.domain.topology.operations.tablet_repair import check_among


def repair_table(context: Context, command: RepairTable) -> Decision:
    """Queue it for an existing table with tablets, one at a time, whichever replicas take part."""
    image = context.image
    drops = accepted_drops(image, context.envelope.actor)
    table = standing_map_owner(image, command.name, drops)
    if isinstance(table, Rejection):
        return table
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
    """Return the newest repair time of the table's tablets, in milliseconds, including open
    requests.

    The new request must not be earlier, even if the log's time stands still.
    """
    tablets = len(image.ring.placements[table.placement])
    times = [image.repairs.of(table.table_id, tablets, restricted=each) for each in (False, True)]
    mine = (r for r in image.requests.open.values() if r.repairs and r.table_id == table.table_id)
    return max(int(np.max(times)), max((r.submitted_ms for r in mine), default=0))


def missing(image: Image, request: Request) -> MissingCondition | None:
    """Return the tablets that were repaired before the request, or never."""
    table = _table(image, request)
    if request.status is RequestStatus.PENDING or table is None:
        return None
    left, of = _left(image, table, request)
    if not left:
        return None
    what = f"{left} of {of} tablets of {image.schema.full_name(table)} to be repaired"
    what += request.among.words()
    return MissingCondition(what, left=left, of=of)


def _table(image: Image, request: Request) -> Table | None:
    """Return the table; None if it was dropped meanwhile."""
    table = image.schema.tables.get(request.table_id)
    dropped = table is None or image.schema.data_of(table).dropped_version
    return None if dropped else table


def _left(image: Image, table: Table, request: Request) -> tuple[int, int]:
    """Return how many tablets are still to be repaired, and how many there are."""
    tablets, restricted = len(image.ring.placements[table.placement]), request.is_restricted
    times = image.repairs.of(table.table_id, tablets, restricted=restricted)
    return int((times <= request.submitted_ms).sum()), len(times)


def foreseen(image: Image, request: Request) -> tuple[str, ...]:
    """Return the balancer's work for it."""
    table = _table(image, request)
    if table is None:
        return ()
    left, _ = _left(image, table, request)
    name = image.schema.full_name(table)
    return (f"{name}: {left} tablets are to be repaired{request.among.words()}",)


def step(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """Start; then end as done, or as failed if the table was dropped."""
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
    """Return pending repairs that the balancer would not have asked for without it, or would ask
    for again.
    """
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
    foreseen=foreseen,
    needed=nobody,
    touched=no_sets,
    made_for=made_for,
)
