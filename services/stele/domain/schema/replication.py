"""Which replications a cluster can have."""

from stele.domain.base import Rejection
from stele.domain.image import Image


def with_copies(replication: dict[str, int]) -> dict[str, int]:
    """Without the dcs of factor 0, which have no replicas: as if they were not named."""
    return {dc: rf for dc, rf in replication.items() if rf}


def check_replication(image: Image, replication: dict[str, int]) -> Rejection | None:
    """Every dc has the nodes for its replication factor, those not counted that have no tokens or are about to
    leave.

    Racks are used as far as there are any: with fewer than copies, some share one (``ring.strategy``).
    """
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
