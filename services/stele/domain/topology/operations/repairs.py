"""Repair of a tablet, and of all tablets of a table."""

from collections.abc import Iterable, Set
from typing import Final

import msgspec
import numpy as np

from stele.domain.base import Rejected, Rejection, required
from stele.domain.context import Context, Decision, unknown_node
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import RepairTable, RepairTablets, TabletRepair
from stele.domain.model.repairs import RepairsForgotten, TabletRepaired
from stele.domain.model.requests import Among, Request, RequestChanged, RequestForgotten
from stele.domain.model.schema import Table
from stele.domain.model.transitions import Transition
from stele.domain.names import BALANCER, RequestKind, RequestStatus, TransitionState
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import Range
from stele.domain.ring.transition import TransitionPlan, TransitionRow, staying
from stele.domain.rules.requests import (
    each_once,
    ended,
    new_request,
    of_tablet,
    open_tablets,
    started,
)
from stele.domain.rules.schema import accepted_drops, standing_map_owner
from stele.domain.tablets.maps import row_of
from stele.domain.tablets.moves import check_tablet, no_tablets
from stele.domain.topology.operations.base import (
    MissingCondition,
    Operation,
    Served,
    Sources,
    State,
    requested_table,
    table_of,
)

# Repair of a tablet: each replica receives the rows that it lacks, while the tablet serves.
#
# repair -> end_repair -> (gone), also after a failure or cancel; then it does not count as repaired.
#
# No replica comes or goes, so nothing has to be undone. Rows merge by last write wins, and new
# writes reach the replicas as usual. The operation locks the row of the tablet map, so the replicas
# stay, and the tablet has no other transition (docs/design.md, INV-TABL-2).
#
# Excluded replicas neither send nor receive; all others must do both. Then each has all rows that
# any of them had, and every write acknowledged before the request. If the request names nodes or
# dcs, only replicas there take part. The tablet then does not count as repaired, because another
# replica may have more rows. With one replica there is nothing to do. Co-located tables share one
# map and are repaired together.
#
# Source: ScyllaDB, topology-over-raft.md, "Tablet transitions".


ENOUGH = 2
"""Least number of replicas in a repair: a single replica has no other one to compare with."""


def participants(image: Image, among: Among, replicas: Iterable[str]) -> list[str]:
    """Return the replicas that are named and not excluded."""
    nodes, excluded = image.membership.nodes, image.membership.excluded()
    return [n for n in replicas if n not in excluded and among.has(n, nodes[n].dc)]


def check_among(image: Image, among: Among, placement: Placement) -> Rejection | None:
    """Require that the named nodes and dcs exist, and that some tablet has two replicas on them."""
    if not any(among):
        return None
    unknown = sorted({*among.nodes} - {*image.membership.nodes})
    if unknown:
        return unknown_node(unknown[0][:80])
    dcs = {node.dc for node in image.membership.taking_part().values()}
    strange = sorted({*among.dcs} - dcs)
    if strange:
        return Rejection(
            "unknown_dc",
            f"There is no dc '{strange[0][:80]}'.",
            f"Name some of {', '.join(sorted(dcs))}.",
            {"dc": strange[0]},
        )
    names = placement.nodes.names
    here = {*participants(image, among, (n for n in names if n in image.membership.nodes))}
    if (placement.read_on(here).sum(axis=1) >= ENOUGH).any():
        return None
    return Rejection(
        "too_few_take_part",
        f"No tablet has two replicas{among.words().replace(' among replicas', '')} that are not dead for good.",
        "Name more nodes, or dcs: replicas are compared with one another.",
    )


MAX_REPAIRS: Final = 1024
"""Most repairs in one command: each makes a request."""
MAX_UNFINISHED: Final = 4096
"""Most unfinished repairs of all commands together; a command beyond it is refused."""


def repair_tablets(context: Context, command: RepairTablets) -> Decision:
    """Queue the possible repairs, each tablet once; refuse the command if none is possible."""
    image, asked = context.image, repaired_now(context.image)
    goals = image.requests.table_repairs()
    if len(command.repairs) > MAX_REPAIRS or len(asked) > MAX_UNFINISHED:
        return Rejection(
            "too_many_repairs",
            f"{len(command.repairs)} tablets are to be repaired, besides {len(asked)}.",
            f"Ask for {MAX_REPAIRS} at a time, while less than {MAX_UNFINISHED} are under way.",
        )
    alone = len(command.repairs) == 1
    drops = accepted_drops(image, context.envelope.actor)

    def request_for(repair: TabletRepair) -> RequestChanged:
        table = required(standing_map_owner(image, repair.table, drops))
        required(_check_alone(repair, asked, (table.table_id, repair.tablet)))
        required(check_tablet(image, table, repair) or _check_participants(context, table, repair))
        return _request_for(context, table, repair, goals.get(table.table_id), alone=alone)

    nothing = Rejection("no_repairs", "There is no tablet to repair.", "Name at least one.")
    return each_once(command.repairs, request_for, asked, nothing)


def repaired_now(image: Image) -> set[tuple[str, int]]:
    """Return tablets whose repair is open or pending, as table id and tablet number."""
    return open_tablets(image, lambda request: request.repairs_tablet)


def _check_alone(
    repair: TabletRepair, asked: Set[tuple[str, int]], tablet: tuple[str, int]
) -> Rejection | None:
    if tablet not in asked:
        return None
    return Rejection(
        "tablet_is_repaired",
        f"Tablet {repair.tablet} of {repair.table} is repaired already.",
        "Wait until that is done: `stele requests`; or cancel it.",
    )


def _check_participants(context: Context, table: Table, repair: TabletRepair) -> Rejection | None:
    """Refuse a repair with fewer than two participants.

    One suffices for a repair that belongs to an open repair of the whole table.
    """
    image, among = context.image, Among(repair.nodes, repair.dcs)
    goal = image.requests.table_repairs().get(table.table_id)
    if not any(among) or (goal is not None and goal.among == among):
        return None
    placement = image.ring.placements[table.placement]
    required(check_among(image, among, placement))
    found = participants(image, among, row_of(placement, repair.tablet).reads)
    if len(found) >= ENOUGH:
        return None
    return Rejection(
        "too_few_take_part",
        f"Tablet {repair.tablet} of {repair.table} has {len(found)}{among.words().removeprefix(' among')}.",
        "Name more nodes, or dcs: replicas are compared with one another.",
    )


def _request_for(
    context: Context, table: Table, repair: TabletRepair, goal: Request | None, *, alone: bool
) -> RequestChanged:
    """Return the request. Its time is after that of the table's repair, even if the log's time
    stands still.
    """
    # The goal counts tablets with a repair time after its own.
    after_ms = 0 if goal is None else goal.submitted_ms + 1
    asked = new_request(
        context,
        RequestKind.TABLET_REPAIR,
        table_id=table.table_id,
        tablet_count=len(context.image.ring.placements[table.placement]),
        submitted_ms=max(context.log_ms, after_ms),
        repair_nodes=repair.nodes,
        repair_dcs=repair.dcs,
    ).request
    return of_tablet(context, asked, repair.tablet, repair.why, alone=alone)


def plans(image: Image, requests: list[Request]) -> dict[str, TransitionPlan]:
    """Return the plan of the one row of the tablet map, with the same replicas before and after."""
    (request,) = requests
    table = requested_table(image, request)
    name = image.schema.full_name(table)
    asked = TabletRepair(table=name, tablet=request.tablet, of=request.tablet_count)
    required(check_tablet(image, table, asked))
    row = row_of(image.ring.placements[table.placement], request.tablet)
    return {table.placement: TransitionPlan((staying(row),), locks=(Range(row.start, row.end),))}


def needed(image: Image, requests: list[Request]) -> list[str]:
    """Return all participating replicas: rows that one of them does not send stay unrepaired."""
    try:
        planned = plans(image, requests)
    except Rejected:
        return []
    replicas = {n for plan in planned.values() for row in plan.rows for n in row.old}
    return sorted(participants(image, requests[0].among, replicas))


def receivers(repairing: Transition) -> list[str]:
    return sorted({n for row in repairing.rows() for n in row.old if len(row.old) > 1})


def skipped_receivers(image: Image, repairing: Transition) -> frozenset[str]:
    """Return the replicas that do not take part, dead or alive."""
    nodes, among = image.membership.nodes, _among(image, repairing)
    rows = repairing.rows()
    return frozenset(n for row in rows for n in row.old if not among.has(n, nodes[n].dc))


def _among(image: Image, repairing: Transition) -> Among:
    return image.requests.requests[repairing.transition_id].among


def sources(
    image: Image, repairing: Transition, row: TransitionRow, node_id: str, unavailable: Set[str]
) -> Sources | None:
    """Return all other participants, each of which must be read completely."""
    among = _among(image, repairing)
    others = [node for node in participants(image, among, row.old) if node != node_id]
    dc = image.membership.nodes[node_id].dc
    if node_id not in row.old or not among.has(node_id, dc) or not others:
        return None
    return tuple(node for node in others if node not in unavailable), len(others)


def on_done(image: Image, done: Transition, epoch: int) -> Iterable[AnyFact]:
    """Write the time of the repair, unless the table was dropped meanwhile.

    A repair among some replicas does not count for the tablet. It counts only for the table's
    request among the same replicas.
    """
    request = image.requests.requests[done.transition_id]
    goal = image.requests.table_repairs().get(request.table_id)
    if request.table_id in image.schema.tables:
        repaired = TabletRepaired(
            request.table_id, request.tablet, request.tablet_count, request.submitted_ms
        )
        if not request.is_restricted:
            yield repaired
        if goal is not None and goal.is_restricted and request.among in (Among(), goal.among):
            yield msgspec.structs.replace(repaired, restricted=True)
    if request.actor == BALANCER and request.status is RequestStatus.DONE:
        yield RequestForgotten(request.request_id, request.finished_epoch, request.ended_ms)


_STATE: Final = TransitionState
TABLET_REPAIR: Final = Operation(
    kind=RequestKind.TABLET_REPAIR,
    command=RepairTablets,
    ask=repair_tablets,
    priority=7,
    needed=needed,
    subjects_work=False,
    ends_by_silence=True,
    plans=plans,
    first=_STATE.REPAIR,
    states={
        _STATE.REPAIR: State(
            streams=True,
            compares=True,
            reads_stay=True,
            on_success=_STATE.END_REPAIR,
            on_failure=_STATE.END_REPAIR,
        ),
        _STATE.END_REPAIR: State(),
    },
    receivers=receivers,
    skipped_receivers=skipped_receivers,
    sources=sources,
    on_done=on_done,
    cleans_up=False,
)


# Repair of a table: all of its tablets, as streams have room; co-located tables are repaired
# together.
#
# The request is the goal. While it runs, the balancer asks for repairs of tablets that were last
# repaired before the request, the oldest first (``balancer.repairing``). It is done when none is
# left.
#
# A repair among some replicas keeps separate times meanwhile, because it does not count as a repair
# of the table. A cancel ends it at once, with those repairs of the balancer that have not begun.


def repair_table(context: Context, command: RepairTable) -> Decision:
    """Queue it for an existing table with tablets, one at a time, whichever replicas take part."""
    image = context.image
    drops = accepted_drops(image, context.envelope.actor)
    table = required(standing_map_owner(image, command.name, drops))
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
    required(check_among(image, among, placement))
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
    mine = (
        r
        for r in image.requests.unfinished_by_id.values()
        if r.repairs and r.table_id == table.table_id
    )
    return max(int(np.max(times)), max((r.submitted_ms for r in mine), default=0))


def table_repair_missing(image: Image, request: Request) -> MissingCondition | None:
    """Return the tablets that were repaired before the request, or never."""
    table = table_of(image, request)
    if request.status is RequestStatus.PENDING or table is None:
        return None
    left, of = _left(image, table, request)
    if not left:
        return None
    what = f"{left} of {of} tablets of {image.schema.full_name(table)} to be repaired"
    what += request.among.words()
    return MissingCondition(what, left=left, of=of)


def _left(image: Image, table: Table, request: Request) -> tuple[int, int]:
    """Return how many tablets are still to be repaired, and how many there are."""
    tablets, restricted = len(image.ring.placements[table.placement]), request.is_restricted
    times = image.repairs.of(table.table_id, tablets, restricted=restricted)
    return int((times <= request.submitted_ms).sum()), len(times)


def table_repair_foreseen(image: Image, request: Request) -> tuple[str, ...]:
    """Return the balancer's work for it."""
    table = table_of(image, request)
    if table is None:
        return ()
    left, _ = _left(image, table, request)
    name = image.schema.full_name(table)
    return (f"{name}: {left} tablets are to be repaired{request.among.words()}",)


def table_repair_step(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """Start; then end as done, or as failed if the table was dropped."""
    image = context.image
    if table_of(image, request) is None:
        return ended(context, image, request, RequestStatus.FAILED, "The table was dropped.")
    if request.status is RequestStatus.PENDING:
        return (RequestChanged(started(context, request)),)
    done = ended(context, image, request, RequestStatus.DONE, "")
    if not request.is_restricted:
        return done
    return RepairsForgotten(request.table_id, restricted=True), *done


def table_repair_children(image: Image, request: Request) -> Iterable[Request]:
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
    served=Served(missing=table_repair_missing, step=table_repair_step),
    foreseen=table_repair_foreseen,
    child_requests=table_repair_children,
)
