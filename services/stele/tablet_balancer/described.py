"""What nodes have and may have, for people."""

from collections.abc import Set

from stele.domain.balance.evenness import evenness
from stele.domain.image import Image
from stele.domain.tablets.columns import tablets_of
from stele.domain.tablets.load import LoadTable
from stele.domain.tablets.maps import held_by
from stele.domain.tablets.measure import Measure
from stele.runtime.answers.tablet_balancer import BalancedNode


def described(
    image: Image, down: Set[str], loads: LoadTable, now_s: float
) -> tuple[Measure, dict[str, BalancedNode]]:
    """By what tablets are balanced, and every node that has room for them, or has some."""
    what = tablets_of(image, down, loads)
    even = {node.id: node for node in evenness(what.state, what.names).nodes}
    nodes = {
        node_id: BalancedNode(
            tablets=tablets,
            size_bytes=even[node_id].size_bytes if loads.by_node and node_id in even else None,
            capacity_bytes=loads.capacity_bytes(node_id),
            of_share=even[node_id].of_share if node_id in even else None,
            report_age_s=loads.age_s(node_id, now_s),
        )
        for node_id, tablets in held_by(image).items()
    }
    return what.measure, nodes
