"""The domain of members, entered in the registry."""

from collections.abc import Iterable

from stele.domain.membership.commands import AnnounceNode
from stele.domain.membership.decide import announce_node
from stele.domain.membership.facts import NodeChanged
from stele.domain.membership.image import MembershipImage
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, changed_rows, sorted_values


def node_changed(image: MembershipImage, fact: NodeChanged) -> MembershipImage:
    return MembershipImage(image.nodes.set(fact.node.node_id, fact.node))


def to_facts(image: MembershipImage) -> Iterable[NodeChanged]:
    return (NodeChanged(node) for node in sorted_values(image.nodes))


def view(image: MembershipImage) -> Json:
    return {"nodes": tuple(sorted_values(image.nodes))}


def diff(before: MembershipImage, after: MembershipImage) -> Json:
    return {"nodes": changed_rows("node_id", before.nodes, after.nodes)}


DOMAIN = Domain(
    name="membership",
    empty=MembershipImage(),
    decide={AnnounceNode: announce_node},
    apply={NodeChanged: node_changed},
    to_facts=to_facts,
    view=view,
    diff=diff,
)
