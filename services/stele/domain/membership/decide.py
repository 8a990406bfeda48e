"""What nodes announce of themselves, and the checks that joining shares with it (seed 004)."""

from typing import Final

import msgspec

from stele.domain.addresses import is_same_address, why_no_address
from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, bad_name, node_has_left, unknown_node
from stele.domain.image import Image
from stele.domain.membership.commands import AnnounceNode
from stele.domain.membership.facts import Node, NodeChanged
from stele.domain.membership.hosts import may_take
from stele.domain.names import JOINING, NodeState

MAX_FEATURES: Final = 256
MAX_RELEASE_CHARS: Final = 128
MAX_TOLD_CHARS: Final = 80
"""Of an address that is refused."""


def announce_node(context: Context, command: AnnounceNode) -> Decision:
    image = context.image
    node = image.node(command.node_id)
    if node is None:
        return unknown_node(command.node_id)
    if node.state is NodeState.LEFT:
        return node_has_left(command.node_id)
    refused = (
        check_host(node, command.host_id, command.claims_host_id)
        or (check_is_address(command.address) if command.address != node.address else None)
        or check_address(image, command.node_id, command.address, _replaced_by(image, node))
        or check_build(
            image,
            f"node '{command.node_id}'",
            command.supported_features,
            command.release_version,
        )
    )
    if refused is not None:
        return refused
    changed = msgspec.structs.replace(
        node,
        address=command.address,
        supported_features=tuple(sorted(command.supported_features)),
        release_version=command.release_version,
        host_id=command.host_id,
    )
    return () if changed == node else (NodeChanged(changed),)


def _replaced_by(image: Image, node: Node) -> str:
    """The node whose place it takes, and whose address it may have; empty: nobody's."""
    request = image.requests.requests.get(node.request_id)
    return "" if request is None else request.replaced_id


def check_host(node: Node, host_id: str, claims: str = "") -> Rejection | None:
    """A name stands for one data directory; who comes with another one lacks what was acknowledged."""
    if may_take(node.host_id, host_id, claims):
        return None
    hint = (
        "Restore its data directory, or give the node a new name and remove or replace the old one."
    )
    if node.state in JOINING:
        hint = (
            "Restore its data directory, or give the node a new name and cancel the old one's request:"
            f" `stele cancel {node.request_id}`."
        )
    return Rejection(
        "host_id_mismatch",
        f"Node '{node.node_id}' is host {node.host_id or '(none)'}, not {host_id or '(none)'}:"
        " this is not the replica that the cluster knows.",
        hint,
        {"host_id": node.host_id, "asked": host_id},
    )


def check_is_address(address: str) -> Rejection | None:
    """Who has one that no client can take would be a member that nobody reaches."""
    why = why_no_address(address)
    if not why:
        return None
    return Rejection(
        "bad_address",
        f"{address[:MAX_TOLD_CHARS]!r} is no address of a node: {why}.",
        "Start it with STELE_ADDRESS=http://host:port, by which the others reach it.",
    )


def check_address(
    image: Image, node_id: str, address: str, replaced_id: str = ""
) -> Rejection | None:
    """An address is one node's, however it is spelled; only who replaces that one may have it too."""
    for other in image.membership.nodes.values():
        if other.state is NodeState.LEFT or other.node_id in (node_id, replaced_id):
            continue
        if is_same_address(other.address, address):
            return Rejection(
                "address_in_use",
                f"Address {address} belongs to node '{other.node_id}'"
                + (f", as {other.address}." if other.address != address else "."),
                f"It is declared dead: take its place (STELE_REPLACE_NODE={other.node_id}), or wait until it is"
                f" removed (`stele remove {other.node_id}`)."
                if other.excluded_since
                else "Give each node an address of its own.",
                {"node": other.node_id},
            )
    return None


def check_build(
    image: Image, who: str, supported: tuple[str, ...], release: str
) -> Rejection | None:
    """What is wrong with a process's features and release: they stay in the state as long as it does."""
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
    lacking = sorted({*image.features.enabled} - {*supported})
    if not lacking:
        return None
    return Rejection(
        "missing_features",
        f"The cluster has features that {who} lacks: {', '.join(lacking)}.",
        "Upgrade its software.",
        {"features": ",".join(lacking)},
    )
