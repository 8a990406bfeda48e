"""Which replications a cluster can have."""

from stele.domain.base import Rejection
from stele.domain.image import Image


def check_replication(image: Image, replication: dict[str, int]) -> Rejection | None:
    """Every dc has the nodes for its replication factor, those not counted that are about to leave.

    Racks are used as far as there are any: with fewer than copies, some share one (``ring.strategy``).
    """
    if not replication or any(rf < 1 for rf in replication.values()):
        return Rejection(
            "bad_replication",
            "A keyspace needs a replication factor of at least 1 in at least one dc.",
            "For example {'dc1': 3}.",
        )
    going = image.requests.going()
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
