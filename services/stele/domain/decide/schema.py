"""Commands about keyspaces and how they are replicated."""

from stele.domain import commands, facts
from stele.domain.commands import Rejection
from stele.domain.decide.cluster import bad_name
from stele.domain.decide.context import Context, Decision
from stele.domain.entities import Keyspace, placement_name
from stele.domain.image import Image
from stele.domain.names import RequestKind
from stele.domain.ring.ranges import Range, RangeReplicas
from stele.domain.ring.strategy import network_topology


def create_keyspace(context: Context, command: commands.CreateKeyspace) -> Decision:
    image = context.image
    refused = bad_name("keyspace", command.name) or _check_replication(image, command.replication)
    if refused is not None:
        return refused
    if command.name in image.schema.keyspaces:
        return Rejection(
            "keyspace_exists",
            f"Keyspace '{command.name}' exists already.",
            "Use it, drop it first, or choose another name.",
        )
    placement = placement_name(command.replication)
    keyspace = facts.KeyspaceChanged(
        Keyspace(name=command.name, replication=command.replication, placement=placement)
    )
    if placement in image.ring.placements:
        return (keyspace,)
    if image.topology.operation is not None:
        return _ranges_locked(image)
    return keyspace, _fresh_placement(image, placement, command.replication)


def drop_keyspace(context: Context, command: commands.DropKeyspace) -> Decision:
    image = context.image
    keyspace = image.schema.keyspaces.get(command.name)
    if keyspace is None:
        return Rejection(
            "unknown_keyspace",
            f"There is no keyspace '{command.name}'.",
            "`stele keyspace list` shows them.",
        )
    dropped = facts.KeyspaceDropped(command.name)
    users = [k for k in image.schema.keyspaces.values() if k.placement == keyspace.placement]
    if len(users) > 1:
        return (dropped,)
    if image.topology.operation is not None:
        return _ranges_locked(image)
    return dropped, facts.PlacementDropped(keyspace.placement)


def _fresh_placement(
    image: Image, name: str, replication: dict[str, int]
) -> facts.PlacementChanged:
    membership = image.membership
    rows = network_topology(membership.ring_tokens(), membership.locations(), replication)
    added = tuple(RangeReplicas(range_.start, range_.end, nodes, nodes) for range_, nodes in rows)
    removed: tuple[Range, ...] = ()
    return facts.PlacementChanged(name, removed, added)


def _check_replication(image: Image, replication: dict[str, int]) -> Rejection | None:
    if not replication or any(rf < 1 for rf in replication.values()):
        return Rejection(
            "bad_replication",
            "A keyspace needs a replication factor of at least 1 in at least one dc.",
            "For example {'dc1': 3}.",
        )
    going = {r.node_id for r in image.requests.unfinished() if r.kind is RequestKind.LEAVE}
    normal = [n for n in image.membership.normal().values() if n.node_id not in going]
    for dc, rf in sorted(replication.items()):
        nodes = sum(1 for node in normal if node.dc == dc)
        if nodes < rf:
            return Rejection(
                "too_few_nodes",
                f"Replication factor {rf} in '{dc}' needs {rf} normal nodes that stay; "
                f"there are {nodes}.",
                "Add nodes to that dc first, or lower the replication factor.",
                {"dc": dc, "replication_factor": str(rf), "normal_nodes": str(nodes)},
            )
    return None


def _ranges_locked(image: Image) -> Rejection:
    operation = image.topology.operation
    request_id = operation.request_id if operation is not None else ""
    return Rejection(
        "ranges_locked",
        f"Request {request_id} is moving ranges, so no placement can be added or dropped now.",
        "Wait until it is done, or cancel it.",
        {"request_id": request_id},
    )
