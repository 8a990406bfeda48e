"""Who supports a feature, as the log has it: nodes and services declare what they can fold (seed 004)."""

from collections.abc import Iterable

from stele.domain.base import Rejection
from stele.domain.context import bad_name
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.services.facts import MAX_SERVICES
from stele.domain.tables import sorted_values


def check_supported(image: Image, features: Iterable[str]) -> Rejection | None:
    """What keeps features from being enabled: every node and service must support them, running or not."""
    known = len(image.services.services)
    if known >= MAX_SERVICES:
        return Rejection(
            "too_many_services",
            f"{known} services are known, which is the limit: others that run may not be among them.",
            "Forget those that never come back first: `stele features forget`.",
        )
    for feature in features:
        refused = bad_name("feature", feature)
        if refused is not None:
            return refused
        nodes, services = _nodes_without(image, feature), _services_without(image, feature)
        if nodes or services:
            return Rejection(
                "feature_not_supported",
                f"Feature '{feature}' is not supported by {', '.join(nodes + services)}.",
                "Upgrade these first. A service that never comes back: `stele features forget`.",
                {"feature": feature, "nodes": ",".join(nodes), "services": ",".join(services)},
            )
    return None


def _nodes_without(image: Image, feature: str) -> list[str]:
    """Excluded nodes serve nothing any more, so what they support does not matter."""
    nodes = image.membership.nodes
    members = (nodes[n] for n in sorted(nodes) if nodes[n].state is not NodeState.LEFT)
    return [
        node.node_id
        for node in members
        if not node.excluded and feature not in node.supported_features
    ]


def _services_without(image: Image, feature: str) -> list[str]:
    services = sorted_values(image.services.services)
    return [s.service_id for s in services if feature not in s.supported_features]
