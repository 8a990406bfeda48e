"""Nodes: names, addresses, host ids and tokens, each of which is one node's alone."""

from collections import defaultdict
from collections.abc import Iterator

from stele.domain.context import bad_name
from stele.domain.image import Image
from stele.domain.membership.facts import Node
from stele.domain.names import JOINING, OWNS_TOKENS, NodeState
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN
from stele.domain.soundness.flaw import Flaw


def member_flaws(image: Image) -> Iterator[Flaw]:
    nodes = [image.membership.nodes[name] for name in sorted(image.membership.nodes)]
    there = [node for node in nodes if node.state is not NodeState.LEFT]
    for node in there:
        yield from (Flaw(f"node {node.node_id}", what) for what in _of_node(node, image.epoch))
    yield from _shared(there)


def _of_node(node: Node, epoch: int) -> Iterator[str]:
    for what, name in (("node", node.node_id), ("dc", node.dc), ("rack", node.rack)):
        refused = bad_name(what, name)
        if refused is not None:
            yield f"{refused.message} {refused.hint}"
    if len({*node.tokens}) != len(node.tokens):
        yield "it has a token twice"
    if any(not MIN_TOKEN < token <= MAX_TOKEN for token in node.tokens):
        yield f"its tokens are not all from {MIN_TOKEN + 1} to {MAX_TOKEN}"
    counts = (
        node.state is NodeState.NORMAL and not node.excluded
    )  # else another may have its tokens
    if counts and len(node.tokens) != node.num_tokens:
        yield f"it has {len(node.tokens)} tokens, and num_tokens says {node.num_tokens}"
    if node.shards < 1:
        yield f"it has {node.shards} shards"
    for what, since in (
        ("excluded", node.excluded_since),
        ("to be cleaned up", node.cleanup_since),
    ):
        if since > epoch:
            yield f"it is {what} since epoch {since}, which is to come"


def _shared(nodes: list[Node]) -> Iterator[Flaw]:
    """Who is to replace a dead node may have its address meanwhile."""
    owners = defaultdict[tuple[str, str], list[str]](list)
    for node in nodes:
        if node.host_id:
            owners["host id", node.host_id].append(node.node_id)
        if node.address and node.state not in JOINING and not node.excluded:
            owners["address", node.address].append(node.node_id)
        if node.state in OWNS_TOKENS:
            for token in {*node.tokens}:
                owners["token", str(token)].append(node.node_id)
    for (what, value), names in owners.items():
        if len(names) > 1:
            yield Flaw(f"node {names[-1]}", f"its {what} {value} is also that of {names[0]}")
