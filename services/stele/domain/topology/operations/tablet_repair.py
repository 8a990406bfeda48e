"""Repair of a tablet: each replica gets from the others what it lacks, while the tablet serves (seed 000).

repair -> end_repair -> (gone), also when it fails or is cancelled: then it does not count as repaired.

No replica comes or goes, so nothing has to be undone: rows merge by last write wins, and what is written
meanwhile reaches them as ever. Its row of the tablet map is locked, so its replicas stay who they are, and it
has no other transition (INV-TABL-2). Where nodes or dcs are named only replicas there take part, and the
tablet does not count as repaired: another one may have what these lack. Replicas that are excluded neither
give nor get; all others must do both: then each has all that any of them had, and what was acknowledged before
the request is on every one. With one replica there is nothing to do. Of co-located
tables, which have one map, all are repaired.
"""

from collections.abc import Iterable, Set
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, unknown_table
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import BALANCER, RequestKind, RequestStatus, TransitionState
from stele.domain.repairs.among import Among
from stele.domain.repairs.facts import TabletRepaired
from stele.domain.requests.facts import Request, RequestChanged, RequestForgotten
from stele.domain.requests.rows import new_request
from stele.domain.ring.ranges import Range
from stele.domain.ring.transition import TransitionPlan, TransitionRow, staying
from stele.domain.schema.facts import Table
from stele.domain.tablets.maps import row_of
from stele.domain.tablets.moves import check_tablet
from stele.domain.tablets.participants import ENOUGH, check_among, participants
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import Operation, Sources, State, no_sets
from stele.domain.topology.operations.commands import RepairTablets, TabletRepair
from stele.domain.topology.operations.each_tablet import each_once, of_tablet, open_tablets

MAX_REPAIRS: Final = 1024
"""Of one command: each makes a request."""
MAX_UNFINISHED: Final = 4096
"""Of all commands together: who asks for more waits."""


def repair_tablets(context: Context, command: RepairTablets) -> Decision:
    """Queue those that can be made, each tablet once; refused when none can."""
    image, asked = context.image, repaired_now(context.image)
    goals = image.requests.table_repairs()
    if len(command.repairs) > MAX_REPAIRS or len(asked) > MAX_UNFINISHED:
        return Rejection(
            "too_many_repairs",
            f"{len(command.repairs)} tablets are to be repaired, besides {len(asked)}.",
            f"Ask for {MAX_REPAIRS} at a time, while less than {MAX_UNFINISHED} are under way.",
        )
    alone = len(command.repairs) == 1

    def request_for(repair: TabletRepair) -> RequestChanged | Rejection:
        table = image.schema.standing_map_owner(repair.table)
        if table is None:
            return unknown_table(repair.table)
        return (
            _check_alone(repair, asked, (table.table_id, repair.tablet))
            or check_tablet(image, table, repair)
            or _check_among(context, table, repair)
            or _request(context, table, repair, goals.get(table.table_id), alone=alone)
        )

    nothing = Rejection("no_repairs", "There is no tablet to repair.", "Name at least one.")
    return each_once(command.repairs, request_for, asked, nothing)


def repaired_now(image: Image) -> set[tuple[str, int]]:
    """Tablets that are repaired, or wait for it: the table's id and the tablet's number."""
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


def _check_among(context: Context, table: Table, repair: TabletRepair) -> Rejection | None:
    """Two replicas take part; what is asked for on behalf of a table's repair is done with one, too."""
    image, among = context.image, Among(repair.nodes, repair.dcs)
    goal = image.requests.table_repairs().get(table.table_id)
    if not any(among) or (goal is not None and goal.among == among):
        return None
    placement = image.ring.placements[table.placement]
    refused = check_among(image, among, placement)
    found = participants(image, among, row_of(placement, repair.tablet).reads)
    if refused is not None or len(found) >= ENOUGH:
        return refused
    return Rejection(
        "too_few_take_part",
        f"Tablet {repair.tablet} of {repair.table} has {len(found)}{among.words().removeprefix(' among')}.",
        "Name more nodes, or dcs: replicas are compared with one another.",
    )


def _request(
    context: Context, table: Table, repair: TabletRepair, goal: Request | None, *, alone: bool
) -> RequestChanged:
    """It is later than the request to repair the whole table, although the log's time may stand still."""
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


def plans(image: Image, requests: list[Request]) -> dict[str, TransitionPlan] | Rejection:
    """The one row of the tablet map, with the same replicas before and after."""
    (request,) = requests
    table = image.schema.tables.get(request.table_id)
    if table is None or image.schema.data_of(table).dropped_version:
        return Rejection("table_dropped", "The table was dropped.", "There is nothing to do.")
    refused = check_tablet(image, table, _asked(image, table, request))
    if refused is not None:
        return refused
    row = row_of(image.ring.placements[table.placement], request.tablet)
    return {table.placement: TransitionPlan((staying(row),), locks=(Range(row.start, row.end),))}


def _asked(image: Image, table: Table, request: Request) -> TabletRepair:
    name = image.schema.full_name(table)
    return TabletRepair(table=name, tablet=request.tablet, of=request.tablet_count)


def needed(image: Image, requests: list[Request]) -> list[str]:
    """All replicas that take part: what one of them has, and did not give, is not repaired."""
    planned = plans(image, requests)
    rows = () if isinstance(planned, Rejection) else [r for p in planned.values() for r in p.rows]
    return sorted(participants(image, requests[0].among, {n for row in rows for n in row.old}))


def receivers(repairing: Transition) -> list[str]:
    rows = (row for plan in repairing.plans.values() for row in plan.rows)
    return sorted({node for row in rows for node in row.old if len(row.old) > 1})


def left_aside(image: Image, repairing: Transition) -> frozenset[str]:
    """Replicas that are not to take part, dead or alive."""
    nodes, among = image.membership.nodes, _among(image, repairing)
    rows = (row for plan in repairing.plans.values() for row in plan.rows)
    return frozenset(n for row in rows for n in row.old if not among.has(n, nodes[n].dc))


def _among(image: Image, repairing: Transition) -> Among:
    return image.requests.requests[repairing.transition_id].among


def sources(
    image: Image, repairing: Transition, row: TransitionRow, node_id: str, unavailable: Set[str]
) -> Sources | None:
    """All others that take part, each of which must be read through."""
    among = _among(image, repairing)
    others = [node for node in participants(image, among, row.old) if node != node_id]
    if node_id not in row.old or not among.has(node_id, _dc(image, node_id)) or not others:
        return None
    return tuple(node for node in others if node not in unavailable), len(others)


def _dc(image: Image, node_id: str) -> str:
    return image.membership.nodes[node_id].dc


def on_done(image: Image, done: Transition, epoch: int) -> Iterable[AnyFact]:
    """When it was repaired, unless the table was dropped meanwhile. Among some replicas it was not: that counts
    for the table's request alone that asks for them.
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
    subjects_work=False,
    needed=needed,
    plans=plans,
    receivers=receivers,
    left_aside=left_aside,
    sources=sources,
    touched=no_sets,
    cleans_up=False,
    on_done=on_done,
)
