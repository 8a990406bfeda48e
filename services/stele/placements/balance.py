"""How evenly placements are spread over nodes: a row for each placement, role and time. Pure."""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.placements.summaries import shares

SCHEMA: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("as_of_epoch", pa.int64()),
        ("placement", pa.string()),
        ("replica_role", pa.string()),
        ("node_count", pa.int64()),
        ("fewest_ranges", pa.int64()),
        ("most_ranges", pa.int64()),
        ("least_share", pa.float64()),
        ("most_share", pa.float64()),
        ("mean_share", pa.float64()),
    ]
)
"""``replica_role`` is read or write; a share is a part of the ring, so a placement's mean is its replication
factor by its nodes. Nodes that are normal and have nothing count, as zero.
"""


def rows(cluster: str, image: Image) -> Iterator[dict[str, Any]]:
    """The spread at the image's epoch; nothing for a placement without ranges."""
    normal = [n.node_id for n in image.membership.nodes.values() if n.state is NodeState.NORMAL]
    for name, placement in image.ring.placements.items():
        found = shares(placement)
        for role in ("read", "write"):
            having = {node for node, its_role in found if its_role == role}
            nodes = sorted(having | set(normal))
            if not having:
                continue
            ranges, parts = zip(*(found.get((node, role), (0, 0.0)) for node in nodes), strict=True)
            yield {
                "cluster": cluster,
                "as_of_epoch": image.epoch,
                "placement": name,
                "replica_role": role,
                "node_count": len(nodes),
                "fewest_ranges": min(ranges),
                "most_ranges": max(ranges),
                "least_share": min(parts),
                "most_share": max(parts),
                "mean_share": sum(parts) / len(nodes),
            }
