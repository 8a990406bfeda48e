"""The effect of balancer switches, including those that expire, at a given time."""

from collections.abc import Iterator

from stele.domain.commands import SwitchBalancingOn
from stele.domain.image import Image
from stele.domain.names import BALANCER
from stele.domain.requests.model import Request
from stele.domain.schema.switches import all_off, gives_all_away, off_for
from stele.domain.tablets.copies import is_required
from stele.domain.tablets.stuck import Stuck
from stele.domain.topology.operations.table import OPERATIONS


def standing_still(image: Image, now_ms: int) -> dict[str, str]:
    """Return the tables whose tablets the balancer does not move, by full name, with the reason."""
    schema, found = image.schema, dict[str, str]()
    # Switches are rare, and a search for those of each of thousands of tables takes long.
    maps = {t.placement for t in schema.tables.values() if t.balancing.off_since}
    keyspaces = {
        k.keyspace_id
        for k in schema.by_id.values()
        if k.balancing.off_since or schema.balancing.off_since
    }
    tables = (
        t for t in schema.tables.values() if t.placement in maps or t.keyspace_id in keyspaces
    )
    for table in sorted((t for t in tables if t.placement), key=lambda t: t.table_id):
        off = next(off_for(schema, table, now_ms), None)
        if off is not None:
            found[schema.full_name(table)] = off.words()
    return found


def expired(image: Image, now_ms: int) -> tuple[SwitchBalancingOn, ...]:
    """Return the commands that end switches whose time limit has passed.

    Each command names the epoch of its switch, so a later switch is not ended.
    """
    return tuple(
        SwitchBalancingOn(off.name, off.balancing.off_since)
        for off in all_off(image.schema)
        if off.expired(now_ms)
    )


def aborted(image: Image, now_ms: int) -> Iterator[Stuck]:
    """Yield the balancer's requests to cancel where it is now off and the grace period has passed.

    Moves that empty a node continue. Moves that a change of replication needs, or that are past
    their point of no return, continue as well.
    """
    for request in image.requests.unfinished():
        table = image.schema.tables.get(request.table_id)
        if request.actor != BALANCER or table is None or request.stays_in_place:
            continue
        if not _can_be_undone(image, request):
            continue
        if is_required(image, table, request):
            continue
        for off in off_for(image.schema, table, now_ms):
            late = 0 < off.balancing.abort_at_ms <= now_ms
            if late and not gives_all_away(image, request.from_node):
                why = f"{off.words()} since epoch {off.balancing.off_since}, and its grace period is over"
                yield Stuck(request.request_id, why)
                break


def _can_be_undone(image: Image, request: Request) -> bool:
    transition = image.topology.of_request(request.request_id)
    if transition is None or transition.mark:
        return False
    return OPERATIONS[transition.kind].states[transition.state].can_be_cancelled
