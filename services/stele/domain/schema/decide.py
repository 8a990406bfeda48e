"""Creating keyspaces. Dropping one is an operation: ``topology/operations/drop_keyspace.py``."""

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, bad_name
from stele.domain.image import Image
from stele.domain.schema.facts import (
    CreateKeyspace,
    Keyspace,
    KeyspaceChanged,
    placement_name,
)
from stele.domain.topology.planning import new_placement


def create_keyspace(context: Context, command: CreateKeyspace) -> Decision:
    """A new id, whatever the name was used for before; no new version, since nobody routes by it yet."""
    image = context.image
    # A dc with factor 0 has no replicas, as if it were not named.
    replication = {dc: rf for dc, rf in command.replication.items() if rf}
    refused = (
        bad_name("keyspace", command.name)
        or _check_replication(image, replication)
        or _check_name_is_free(image, command.name)
    )
    if refused is not None:
        return refused
    placement = placement_name(replication)
    keyspace = KeyspaceChanged(
        Keyspace(
            keyspace_id=context.unique(f"keyspace {command.name}"),
            name=command.name,
            replication=replication,
            placement=placement,
        )
    )
    if placement in image.ring.placements:
        return (keyspace,)
    facts = new_placement(image, placement, replication)
    return facts if isinstance(facts, Rejection) else (keyspace, *facts)


def _check_name_is_free(image: Image, name: str) -> Rejection | None:
    known = image.schema.named(name)
    if known is None:
        return None
    if known.dropped_version:
        return Rejection(
            "keyspace_being_dropped",
            f"Keyspace '{name}' is being dropped; its name is free once that is done.",
            "Wait a moment and try again: `stele requests` shows how far it is.",
        )
    return Rejection(
        "keyspace_exists",
        f"Keyspace '{name}' exists already.",
        "Use it, drop it first, or choose another name.",
    )


def _check_replication(image: Image, replication: dict[str, int]) -> Rejection | None:
    if not replication or any(rf < 1 for rf in replication.values()):
        return Rejection(
            "bad_replication",
            "A keyspace needs a replication factor of at least 1 in at least one dc.",
            "For example {'dc1': 3}.",
        )
    going = image.requests.going()
    holding = [n for n in image.membership.holding().values() if n.node_id not in going]
    for dc, rf in sorted(replication.items()):
        nodes = sum(1 for node in holding if node.dc == dc)
        if nodes < rf:
            hint = "Add nodes to that dc first, or lower the replication factor."
            if not nodes and any(n.dc == dc for n in image.membership.normal().values()):
                hint = f"Leave '{dc}' out: it has only zero-token nodes; or add nodes with tokens to it."
            return Rejection(
                "too_few_nodes",
                f"Replication factor {rf} in '{dc}' needs {rf} nodes with tokens that stay; "
                f"there are {nodes}.",
                hint,
                {"dc": dc, "replication_factor": str(rf), "nodes": str(nodes)},
            )
    return None
