"""Decisions on a node's announcements, and the checks that joining shares with them.

Source: ScyllaDB, topology-over-raft.md, "Join procedure".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from stele.domain.addresses import is_same_address, why_no_address
from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, bad_name, node_has_left, unknown_node
from stele.domain.image import Image
from stele.domain.model.membership import AnnounceNode, MembershipImage, Node, NodeChanged, may_take
from stele.domain.names import JOINING, NodeState
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, sorted_values

MAX_FEATURES: Final = 256
MAX_RELEASE_CHARS: Final = 128
MAX_TOLD_CHARS: Final = 80
"""Longest part of a rejected address that the rejection quotes, in characters."""


def announce_node(context: Context, command: AnnounceNode) -> Decision:
    """Record the address, features and release that a node announces.

    Host ids identify nodes, so an address belongs to the node that announced it last. The former
    owner has no known address until it announces one: two members that swapped addresses both
    start.
    """
    image = context.image
    node = image.node(command.node_id)
    if node is None:
        return unknown_node(command.node_id)
    if node.state is NodeState.LEFT:
        return node_has_left(command.node_id)
    required(
        check_host(node, command.host_id, command.claims_host_id)
        or (check_is_address(command.address) if command.address != node.address else None)
        # An excluded node must not take the address of another node, as a restarted member may.
        or (check_address(image, command.node_id, command.address) if node.excluded else None)
        or check_build(
            image,
            f"node '{command.node_id}'",
            command.supported_features,
            command.release_version,
        )
    )
    changed = msgspec.structs.replace(
        node,
        address=command.address,
        supported_features=tuple(sorted(command.supported_features)),
        release_version=command.release_version,
        host_id=command.host_id,
    )
    # A node announces itself at every start. Only a change may cost an epoch.
    if changed == node:
        return ()
    # A replacement may keep the replaced node's address, and both rows then show it.
    replaced_id = _replaced_by(image, node)
    # The former owners of the address get none, so that an address never belongs to two members.
    former = (
        msgspec.structs.replace(other, address="")
        for other in _others_at(image, command.node_id, command.address)
        if other.node_id != replaced_id
    )
    return (*map(NodeChanged, former), NodeChanged(changed))


def _replaced_by(image: Image, node: Node) -> str:
    """Return the node that this one replaces and shares an address with; empty if it
    replaces none.
    """
    request = image.requests.requests.get(node.request_id)
    return "" if request is None else request.replaced_id


def check_host(node: Node, host_id: str, claims: str = "") -> Rejection | None:
    """Check that a node uses the data directory that its row names.

    Another directory lacks the writes that the node has acknowledged.
    """
    if may_take(node.host_id, host_id, claims):
        return None
    hint = (
        "Restore its data directory, or give the node a new name and remove or replace the old one."
    )
    if node.state in JOINING:
        hint = (
            "Restore its data directory, or give the node a new name and cancel the old one's request:"
            f" `stele cancel {node.request_id}`. If that is past its point of no return, exclude the"
            f" old one instead: `stele exclude {node.node_id}`."
        )
    return Rejection(
        "host_id_mismatch",
        f"Node '{node.node_id}' is host {node.host_id or '(none)'}, not {host_id or '(none)'}:"
        " this is not the replica that the cluster knows.",
        hint,
        {"host_id": node.host_id, "asked": host_id},
    )


def check_is_address(address: str) -> Rejection | None:
    """Check that a client can use the address. Otherwise the member would be unreachable."""
    why = why_no_address(address)
    if not why:
        return None
    return Rejection(
        "bad_address",
        f"{address[:MAX_TOLD_CHARS]!r} is not an address of a node: {why}.",
        "Start it with STELE_ADDRESS=http://host:port, an address that the others can reach.",
    )


def check_address(
    image: Image, node_id: str, address: str, replaced_id: str = ""
) -> Rejection | None:
    """Reject an address of another node, in any spelling.

    A replacement may have that of the replaced node.
    """
    for other in _others_at(image, node_id, address):
        if other.node_id == replaced_id:
            continue
        return Rejection(
            "address_in_use",
            f"Address {address} belongs to node '{other.node_id}'"
            + (f", as {other.address}." if other.address != address else "."),
            f"It is declared dead: take its place (STELE_REPLACE_NODE={other.node_id}), or wait until it is"
            f" removed (`stele remove {other.node_id}`)."
            if other.excluded_since
            else "Give each node a different address.",
            {"node": other.node_id},
        )
    return None


def _others_at(image: Image, node_id: str, address: str) -> Iterator[Node]:
    """Yield the other nodes that have this address and have not left."""
    for other in image.membership.nodes.values():
        if other.node_id == node_id or other.state is NodeState.LEFT or not other.address:
            continue
        if is_same_address(other.address, address):
            yield other


def check_build(
    image: Image, who: str, supported: tuple[str, ...], release: str
) -> Rejection | None:
    """Check a process's features and release: their size, and that no enabled feature is missing.

    The state keeps both as long as it has the process.
    """
    if len(supported) > MAX_FEATURES or len(release) > MAX_RELEASE_CHARS:
        return Rejection(
            "build_too_large",
            f"{who} tells {len(supported)} features and a release of {len(release)} characters.",
            f"At most {MAX_FEATURES} features and {MAX_RELEASE_CHARS} characters fit.",
        )
    for feature in supported:
        refused = bad_name("feature", feature)
        if refused is not None:
            return refused
    # A process without an enabled feature could not read the log.
    lacking = sorted({*image.features.enabled} - {*supported})
    if not lacking:
        return None
    return Rejection(
        "missing_features",
        f"The cluster has features that {who} lacks: {', '.join(lacking)}.",
        "Upgrade its software.",
        {"features": ",".join(lacking)},
    )


# The entry of members in the registry.


def node_changed(image: MembershipImage, fact: NodeChanged) -> MembershipImage:
    return MembershipImage(image.nodes.set(fact.node.node_id, fact.node))


def to_facts(image: MembershipImage) -> Iterable[NodeChanged]:
    return (NodeChanged(node) for node in sorted_values(image.nodes))


def rows(image: MembershipImage) -> Json:
    return {"nodes": image.nodes}


DOMAIN = Domain(
    name="membership",
    empty=MembershipImage(),
    decide={AnnounceNode: announce_node},
    apply={NodeChanged: node_changed},
    to_facts=to_facts,
    rows=rows,
)
