"""A node that is up and not yet in the cluster, as the commands that take it in: by what it says of itself."""

from __future__ import annotations

from typing import Any

from stele.domain.commands import Join, Replace
from stele.runtime.answers.node import NodeView


def join_of(node: NodeView) -> Join:
    """It joins beside the others, with tokens of its own."""
    return Join(num_tokens=node.num_tokens, **_itself(node))


def replace_of(
    node: NodeView, dead: str, ignore: tuple[str, ...] = (), *, force: bool = False
) -> Replace:
    """It takes the place of ``dead``; as a node without tokens where it wants none."""
    return Replace(
        replaced_id=dead,
        ignore_nodes=ignore,
        force=force,
        zero_token=not node.num_tokens,
        **_itself(node),
    )


def _itself(node: NodeView) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "cluster": node.cluster,
        "address": node.address,
        "dc": node.dc,
        "rack": node.rack,
        "supported_features": node.supported_features,
        "release_version": node.release_version,
        "host_id": node.host_id,
        "shards": node.shards,
    }
