"""Resize of a table: each tablet is split, or each two siblings merge.

tablet_resize_finalization -> (gone)

The request is the resize decision. The balancer submits it; its count says whether to split or to
merge. Its submitted epoch takes the role of ScyllaDB's ``resize_seq_number``, and cancelling it
revokes the decision. While it is pending, tablets serve and move. A split waits until all replicas
have cut their storage; a merge waits until the balancer has moved the siblings to the same nodes.
Then the operation locks the whole map. When its version is fenced, nothing refers to the old
tablets, and the new map replaces the old one. No token changes its replicas. Co-located tables
share the map and the request.

Source: ScyllaDB, topology-over-raft.md, "Tablet resize".
"""

from collections.abc import Iterable, Set

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import ResizeTable
from stele.domain.model.repairs import RepairsResized
from stele.domain.model.requests import Request
from stele.domain.model.schema import Table
from stele.domain.model.table_snapshots import TableRestoreResized
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring import transition
from stele.domain.ring.placement import Placement
from stele.domain.ring.transition import WHOLE_RING, TransitionPlan, TransitionRow
from stele.domain.rules.requests import new_request
from stele.domain.rules.schema import accepted_drops, check_balancing, off_for, standing_map_owner
from stele.domain.tablets.maps import MAX_TABLETS, apart, holders, resized
from stele.domain.tablets.moves import no_tablets
from stele.domain.topology.operations.base import Operation, State, planned_sets, requested_table


def resize_table(context: Context, command: ResizeTable) -> Decision:
    """Queue it for an existing table, one resize at a time."""
    image = context.image
    drops = accepted_drops(image, context.envelope.actor)
    table = required(standing_map_owner(image, command.name, drops))
    resizes = (r for r in image.requests.unfinished() if r.resizes)
    other = next((r for r in resizes if r.table_id == table.table_id), None)
    if other is not None:
        return Rejection(
            "table_resizes",
            f"Table {command.name} gets {other.tablet_count} tablets by request {other.request_id}.",
            "Wait until that is done, or cancel it.",
            {"request_id": other.request_id},
        )
    required(
        _check_count(image, table, command.tablets)
        or check_balancing(image, context.envelope.actor, table)
    )
    return (
        new_request(
            context,
            RequestKind.TABLET_RESIZE,
            table_id=table.table_id,
            tablet_count=command.tablets,
            tablet_count_before=len(image.ring.placements[table.placement]),
        ),
    )


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
        f"One resize leads to {' or '.join(ways)}. For a larger number use"
        f" `stele table alter {name} --min-tablet-count N`: the balancer splits as often as necessary.",
        {"tablets": str(count)},
    )


def plans(image: Image, requests: list[Request]) -> dict[str, TransitionPlan]:
    """Return a plan that locks the whole map.

    No range changes its nodes. In a merge, a tablet takes over the order of its sibling's replicas,
    the first of which is the primary.
    """
    (request,) = requests
    table = requested_table(image, request)
    required(_check_count(image, table, request.tablet_count))
    placement = image.ring.placements[table.placement]
    merges = request.tablet_count < len(placement)
    # Siblings that are apart cannot merge yet; ``siblings_apart`` then keeps the request waiting.
    rows = _reordered(placement) if merges and not len(apart(placement)) else ()
    return {table.placement: TransitionPlan(rows, locks=(WHOLE_RING,))}


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


def siblings_apart(image: Image, planned: Transition, requests: list[Request]) -> Rejection | None:
    """Return why a merge must wait: the replicas of two siblings are not on the same nodes."""
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
    off = f" And {switch.words()}, so they stay apart." if switch else ""
    return Rejection(
        "tablets_apart",
        f"{len(pairs)} of {request.tablet_count} pairs of tablets of {table} are not on the same nodes yet,"
        f" such as {2 * first} and {2 * first + 1}.{off}",
        "The tablet-balancer brings them together once there is nothing else to move.",
        {"pairs": str(len(pairs))},
    )


def prepared_by(image: Image, request: Request) -> Set[str]:
    """Return the replicas that must cut their storage before a split; a merge needs none."""
    table = image.schema.tables.get(request.table_id)
    placement = None if table is None else image.ring.placements.get(table.placement)
    if placement is None or request.tablet_count < len(placement):
        return frozenset()
    return holders(placement) - image.membership.excluded()


def on_done(image: Image, done: Transition, epoch: int) -> Iterable[AnyFact]:
    """Write the new map, unless the table was dropped meanwhile."""
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
    subjects_work=False,
    prepared_by=prepared_by,
    plans=plans,
    blocked=siblings_apart,
    first=TransitionState.TABLET_RESIZE_FINALIZATION,
    states={TransitionState.TABLET_RESIZE_FINALIZATION: State(delta=transition.finish)},
    touched=planned_sets,
    on_done=on_done,
    cleans_up=False,
)
