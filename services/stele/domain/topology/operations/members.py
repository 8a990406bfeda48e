"""Checks of members, and choice of tokens, shared by several operations."""

from collections.abc import Collection, Iterable
from typing import Final

from stele.domain.base import Rejection
from stele.domain.context import nothing_left_of, unknown_node
from stele.domain.image import Image
from stele.domain.membership.model import Node
from stele.domain.names import NodeState
from stele.domain.requests.rows import check_no_request
from stele.domain.ring.allocation import allocate_tokens
from stele.domain.ring.ranges import MIN_TOKEN
from stele.domain.ring.strategy import NodeLocation
from stele.domain.topology.rings import Ring

MAX_NUM_TOKENS: Final = 1024


def normal_member(image: Image, node_id: str, what: str) -> Node | Rejection:
    """Return the node if it is normal, not excluded, and has no other request.

    ``what`` is the action in the refusal, such as "move" or "be rebuilt".
    """
    node = free_member(image, node_id)
    if isinstance(node, Rejection):
        return node
    if node.excluded:
        return Rejection(
            "node_excluded",
            f"Node '{node.node_id}' was declared dead, so it cannot {what}.",
            "Remove or replace it.",
        )
    if node.state is not NodeState.NORMAL:
        return Rejection(
            "wrong_state",
            f"Node '{node.node_id}' is {node.state}; only a normal node can {what}.",
            "Wait until it is normal, or cancel its request.",
            {"state": node.state},
        )
    return node


def free_member(image: Image, node_id: str) -> Node | Rejection:
    """Return the node if it has not left and has no other request."""
    node = image.node(node_id)
    if node is None:
        return unknown_node(node_id)
    if node.state is NodeState.LEFT:
        return nothing_left_of(node_id)
    return check_no_request(image, node) or node


def asked_tokens(image: Image) -> set[int]:
    """Return tokens that a request reserves and no node owns yet; no other node receives them."""
    nodes = image.membership.nodes.values()
    waiting = (n for n in nodes if n.state is not NodeState.LEFT and not n.tokens)
    found = {token for node in waiting for token in node.initial_tokens}
    found.update(token for request in image.requests.unfinished() for token in request.tokens)
    return found


def choose_tokens(image: Image, ring: Ring, node: Node, num_tokens: int) -> tuple[int, ...]:
    """Return tokens for a node without any in ``ring``, by its dc's replication; always the same
    ones.
    """
    replications = image.schema.replications().values()
    return allocate_tokens(
        ring.tokens,
        ring.locations,
        node.node_id,
        NodeLocation(dc=node.dc, rack=node.rack),
        num_tokens,
        # The seed of the choice: every plan of this node on equal rings gets equal tokens.
        f"{image.cluster_id}/{node.node_id}".encode(),
        asked_tokens(image),
        factors={rf[node.dc] for rf in replications if node.dc in rf},
    )


def check_tokens(
    image: Image, tokens: Collection[int], own: Iterable[int] = ()
) -> Rejection | None:
    """Return what is wrong with tokens that a node chooses; it may keep some of its ``own``."""
    refused = check_num_tokens(len(tokens))
    if refused is not None:
        return refused
    nodes = (n for n in image.membership.nodes.values() if n.state is not NodeState.LEFT)
    taken = {token for node in nodes for token in node.tokens} | asked_tokens(image)
    taken |= {t for open_ in image.topology.open() for s in open_.subjects for t in s.tokens}
    chosen = {*tokens}
    in_range = all(MIN_TOKEN < token < -MIN_TOKEN for token in chosen)
    if len(chosen) == len(tokens) and in_range and not chosen & (taken - {*own}):
        return None
    return Rejection(
        "bad_tokens",
        "The tokens repeat, are another node's, or are out of range.",
        "Leave them out to let the cluster choose.",
    )


def check_num_tokens(num_tokens: int) -> Rejection | None:
    if 1 <= num_tokens <= MAX_NUM_TOKENS:
        return None
    return Rejection(
        "bad_num_tokens",
        f"num_tokens is {num_tokens}; it must be 1 to {MAX_NUM_TOKENS}.",
        "16 suits most clusters.",
    )
