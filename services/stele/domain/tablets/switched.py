"""What follows for the balancer's look from what is switched off, by a clock."""

from collections.abc import Iterator

from stele.domain.commands import SwitchBalancingOn
from stele.domain.image import Image
from stele.domain.names import BALANCER
from stele.domain.requests.facts import Request
from stele.domain.schema.switches import all_off, gives_all_away, off_for
from stele.domain.tablets.copies import is_required
from stele.domain.tablets.stuck import Stuck
from stele.domain.topology.operations.table import way_back


def standing_still(image: Image, now_ms: int) -> dict[str, str]:
    """Tables whose tablets the balancer leaves where they are, by full name, and why."""
    found = dict[str, str]()
    for table in image.schema.with_tablets():
        off = next(off_for(image.schema, table, now_ms), None)
        if off is not None:
            found[image.schema.full_name(table)] = off.words()
    return found


def expired(image: Image, now_ms: int) -> tuple[SwitchBalancingOn, ...]:
    """The end of switches whose time limit has passed; nothing that was switched anew."""
    return tuple(
        SwitchBalancingOn(off.name, off.balancing.off_since)
        for off in all_off(image.schema)
        if off.expired(now_ms)
    )


def aborted(image: Image, now_ms: int) -> Iterator[Stuck]:
    """What the balancer had begun where it is off by now, once the time for that to finish has passed.

    What empties a node goes on, and so does what a change of replication asks for, or is past its point of
    no return.
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
    return way_back(image, transition) is not None
