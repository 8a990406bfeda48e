"""The rules of the ring: its owners now and after open transitions, and choice of tokens."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import nothing_left_of, unknown_node
from stele.domain.image import Image
from stele.domain.model.membership import Node
from stele.domain.names import OWNS_TOKENS, NodeState
from stele.domain.ring.allocation import allocate_tokens
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MIN_TOKEN
from stele.domain.ring.strategy import NodeLocation, placement_of
from stele.domain.rules.requests import check_no_request

# The ring as tokens and locations, now and after the open transitions.


Replication = tuple[tuple[str, int], ...]


class Ring(msgspec.Struct, frozen=True):
    """The owner of each token, and dc and rack of every owner. Placements are computed once."""

    tokens: dict[int, str]
    locations: dict[str, NodeLocation]
    known: dict[Replication, Placement] = msgspec.field(default_factory=dict)

    def placement(self, replication: Mapping[str, int]) -> Placement:
        """Return the natural replicas of the ring at rest."""
        key = tuple(sorted(replication.items()))
        # Placements of equal replication are shared: computing one is expensive.
        if key not in self.known:
            self.known[key] = placement_of(self.tokens, self.locations, replication)
        return self.known[key]

    def with_node(self, node_id: str, location: NodeLocation, tokens: tuple[int, ...]) -> "Ring":
        if not tokens:
            return self
        return Ring(
            {**self.tokens, **dict.fromkeys(tokens, node_id)}, {**self.locations, node_id: location}
        )

    def without_node(self, node_id: str) -> "Ring":
        tokens = {token: owner for token, owner in self.tokens.items() if owner != node_id}
        locations = {n: place for n, place in self.locations.items() if n != node_id}
        return Ring(tokens, locations)


def ring_now(image: Image) -> Ring:
    """Return the ring of the nodes that own tokens, without any effect of open transitions."""
    return Ring(image.membership.ring_tokens(), locations_now(image))


def locations_now(image: Image) -> dict[str, NodeLocation]:
    """Return dc and rack of the nodes that have tokens in the ring."""
    nodes = image.membership.nodes.values()
    owners = (n for n in nodes if n.state in OWNS_TOKENS and n.tokens)
    return {node.node_id: NodeLocation(dc=node.dc, rack=node.rack) for node in owners}


def tokens_of_streams(image: Image) -> set[int]:
    """Return the tokens that a CDC generation must have.

    They are those of the present ring, to which an undone transition returns, and those of open
    transitions. Streams for smaller ranges than necessary are harmless.
    """
    subjects = (subject for each in image.topology.open() for subject in each.subjects)
    return {*image.membership.ring_tokens(), *(token for each in subjects for token in each.tokens)}


# Checks of members, and choice of tokens, shared by several operations.


MAX_NUM_TOKENS: Final = 1024


def normal_member(image: Image, node_id: str, what: str) -> Node | Rejection:
    """Return the node if it is normal, not excluded, and has no other request.

    ``what`` is the action in the refusal, such as "move" or "be rebuilt".
    """
    node = required(free_member(image, node_id))
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
