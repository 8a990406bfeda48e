"""Another number of tablets for a table: each is split, or two become one (seed 000, "Tablet resize").

tablet_resize_finalization -> (gone)

The request is the seed's decision: the balancer asks for it, its count says whether to split or to merge, its
submitted epoch is the ``resize_seq_number``, and to cancel it revokes it. While it is pending tablets serve and
move. A split waits until all replicas have cut their storage, a merge until the balancer has brought the
siblings to the same nodes. Then it has the map for itself; once its version is fenced nothing refers to the old
tablets any more, and the new map comes. No token changes its replicas by that. Co-located tables have one map,
so the request is about all of them.
"""

from collections.abc import Iterable, Set

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, unknown_table
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import RequestKind, TransitionState
from stele.domain.repairs.facts import RepairsResized
from stele.domain.requests.facts import Request
from stele.domain.requests.rows import new_request
from stele.domain.ring import transition
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import Range
from stele.domain.ring.transition import WHOLE_RING, TransitionPlan, TransitionRow
from stele.domain.schema.facts import Table
from stele.domain.schema.switches import check_balancing, off_for
from stele.domain.table_snapshots.facts import TableRestoreResized
from stele.domain.tablets.maps import apart, holders, resized
from stele.domain.tablets.moves import no_tablets
from stele.domain.tablets.ranges import MAX_TABLETS
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import Operation, State, nobody, planned_sets
from stele.domain.topology.operations.commands import ResizeTable


def resize_table(context: Context, command: ResizeTable) -> Decision:
    """Queue it for a table that stands, one at a time."""
    image = context.image
    table = image.schema.standing_map_owner(command.name)
    if table is None:
        return unknown_table(command.name)
    other = next((r for r in image.requests.unfinished() if _is_of(r, table)), None)
    if other is not None:
        return Rejection(
            "table_resizes",
            f"Table {command.name} gets {other.tablet_count} tablets by request {other.request_id}.",
            "Wait until that is done, or cancel it.",
            {"request_id": other.request_id},
        )
    refused = _check_count(image, table, command.tablets) or check_balancing(
        image, context.envelope.actor, table
    )
    if refused is not None:
        return refused
    return (
        new_request(
            context,
            RequestKind.TABLET_RESIZE,
            table_id=table.table_id,
            tablet_count=command.tablets,
            tablet_count_before=len(image.ring.placements[table.placement]),
        ),
    )


def _is_of(request: Request, table: Table) -> bool:
    return request.resizes and request.table_id == table.table_id


def _check_count(image: Image, table: Table, wanted: int) -> Rejection | None:
    name = image.schema.full_name(table)
    if not table.placement:
        return no_tablets(name)
    count = len(image.ring.placements[table.placement])
    if wanted == 2 * count <= MAX_TABLETS or 2 * wanted == count:
        return None
    ways = [str(n) for n in (count // 2, 2 * count) if 0 < n <= MAX_TABLETS]
    return Rejection(
        "bad_tablet_count",
        f"Table {name} has {count} tablets, and cannot go to {str(wanted)[:20]}.",
        f"It can go to {' or '.join(ways)} now; what it is to have in the end is an option of it, as in"
        f" `stele table alter {name} --min-tablet-count N`.",
        {"tablets": str(count)},
    )


def plans(image: Image, requests: list[Request]) -> dict[str, TransitionPlan] | Rejection:
    """The whole map must be its own. No range goes anywhere; but a tablet takes the order of its sibling's
    replicas, the first of which is the primary.
    """
    (request,) = requests
    table = image.schema.tables.get(request.table_id)
    if table is None or image.schema.data_of(table).dropped_version:
        return Rejection("table_dropped", "The table was dropped.", "There is nothing to resize.")
    refused = _check_count(image, table, request.tablet_count)
    if refused is not None:
        return refused
    placement = image.ring.placements[table.placement]
    merges = request.tablet_count < len(placement)
    rows = _reordered(placement) if merges and not len(apart(placement)) else ()
    return {table.placement: TransitionPlan(rows, locks=(Range(*WHOLE_RING),))}


def _reordered(placement: Placement) -> tuple[TransitionRow, ...]:
    rows = placement.rows
    return tuple(
        TransitionRow(
            odd.start,
            odd.end,
            odd.reads,
            even.reads,
            odd.places(odd.reads),
            even.places(even.reads),
        )
        for even, odd in zip(rows[::2], rows[1::2], strict=True)
        if odd.reads != even.reads
    )


def held(image: Image, planned: Transition, requests: list[Request]) -> Rejection | None:
    """Two tablets can become one only where both have their replicas."""
    (request,) = requests
    ((name, _),) = planned.plans.items()
    placement = image.ring.placements[name]
    if request.tablet_count > len(placement):
        return None
    pairs = apart(placement)
    if not len(pairs):
        return None
    row = image.schema.tables[request.table_id]
    table, first = image.schema.full_name(row), int(pairs[0])
    switch = next(off_for(image.schema, row), None)
    off = f" And {switch.words()}: nobody brings them together." if switch else ""
    return Rejection(
        "tablets_apart",
        f"{len(pairs)} of {request.tablet_count} pairs of tablets of {table} are not on the same nodes yet,"
        f" such as {2 * first} and {2 * first + 1}.{off}",
        "The tablet-balancer brings them together once there is nothing else to move.",
        {"pairs": str(len(pairs))},
    )


def prepared_by(image: Image, request: Request) -> Set[str]:
    """Before a split each replica cuts its storage; for a merge it needs nothing but the other tablet."""
    table = image.schema.tables.get(request.table_id)
    placement = None if table is None else image.ring.placements.get(table.placement)
    if placement is None or request.tablet_count < len(placement):
        return frozenset()
    return holders(placement) - image.membership.excluded()


def on_done(image: Image, done: Transition, epoch: int) -> Iterable[AnyFact]:
    """The new map, unless the table was dropped meanwhile."""
    count = image.requests.requests[done.transition_id].tablet_count
    for name in done.plans:
        yield from image.ring.replacement(name, resized(image.ring.placements[name], count))
        if done.table_id in image.repairs.tables or done.table_id in image.repairs.restricted:
            yield RepairsResized(done.table_id, count)
        for restore in image.table_snapshots.restores.values():
            if image.schema.tables[restore.table_id].placement == name:
                yield TableRestoreResized(restore.restore_id, count)


TABLET_RESIZE = Operation(
    kind=RequestKind.TABLET_RESIZE,
    command=ResizeTable,
    ask=resize_table,
    priority=5,
    first=TransitionState.TABLET_RESIZE_FINALIZATION,
    states={TransitionState.TABLET_RESIZE_FINALIZATION: State(delta=transition.finish)},
    subjects_work=False,
    needed=nobody,
    prepared_by=prepared_by,
    held=held,
    plans=plans,
    touched=planned_sets,
    cleans_up=False,
    on_done=on_done,
)
