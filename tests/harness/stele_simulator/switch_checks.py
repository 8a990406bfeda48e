"""Disabled balancing moves nothing: checks of every epoch's requests and transitions by their rows alone."""

from collections.abc import Iterator

from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.names import BALANCER
from stele_simulator.violation import require


def check_switches(before: Image, after: Image) -> None:
    """Where balancing is off the balancer asks for nothing, and begins nothing, but what empties a node, what a
    tablet lacks, or what a change of replication takes.
    """
    if after.requests is before.requests and after.topology is before.topology:
        return
    for request in _new(before, after):
        off = _switches(after, request)
        require(
            not any(off) or _is_drained(after, request.from_node) or _is_recount(after, request),
            "balancing",
            "what is switched off is left alone by the balancer",
            f"epoch {after.epoch} has {request.request_id} of it, and it is off since {max(off)}",
        )


def _new(before: Image, after: Image) -> Iterator[Request]:
    """Return new requests and transitions of the balancer. A repair does not move its tablet."""
    for request_id, request in after.requests.unfinished_by_id.items():
        asked = request_id not in before.requests.requests
        begun = request_id in after.topology.transitions
        begins = begun and request_id not in before.topology.transitions
        balances = (
            request.actor == BALANCER
            and request.table_id
            and not (request.repairs or request.restores_tablet)
        )
        if balances and (asked or begins):
            yield request


def _switches(image: Image, request: Request) -> list[int]:
    """Since when the cluster, the keyspace and each table with these tablets are off; 0: they are not."""
    tables = image.schema.tables
    table = tables.get(request.table_id)
    if table is None:
        return []
    switches = [image.schema.balancing, image.schema.by_id[table.keyspace_id].balancing]
    switches += [t.balancing for t in tables.values() if t.placement == table.placement]
    return [switch.off_since for switch in switches]


def _is_drained(image: Image, node_id: str) -> bool:
    node = image.membership.nodes.get(node_id)
    leaves = any(
        r.removes_node and r.node_id == node_id for r in image.requests.unfinished_by_id.values()
    )
    return node is not None and (leaves or bool(node.excluded_since) or not node.tokens)


def _is_recount(image: Image, request: Request) -> bool:
    """Return whether this is a change of the replica count, or a move between racks while a change of named
    racks is under way.
    """
    keyspace = image.schema.by_id[image.schema.tables[request.table_id].keyspace_id]
    changes = [
        r for r in image.requests.unfinished_by_id.values() if r.keyspace_id == keyspace.keyspace_id
    ]
    if request.from_node and request.to_node:
        one, two = (image.membership.nodes[n] for n in (request.from_node, request.to_node))
        named = [keyspace.racks, *(change.racks for change in changes)]
        listed = any(two.rack in racks.get(two.dc, ()) for racks in named)
        return bool(changes) and listed and one.rack != two.rack
    return bool(request.to_node) or any(change.replication for change in changes)
