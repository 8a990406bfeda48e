"""Answers of a data node."""

import msgspec


class KeyspaceSize(msgspec.Struct, frozen=True):
    """What a node stores of a keyspace, tombstones and what cleanup has yet to delete too."""

    keys: int
    bytes: int


class NodeView(msgspec.Struct, frozen=True):
    """``GET /v1/node``. ``state`` is "unknown" while the cluster has no row of the node.

    ``reason`` says why the node serves no data; empty while it does.
    """

    node_id: str
    host_id: str
    cluster: str
    dc: str
    rack: str
    num_tokens: int
    address: str
    shards: int = 1
    state: str = "unknown"
    reason: str = ""
    release_version: str = ""
    supported_features: tuple[str, ...] = ()
    epoch: int = 0
    version: int = 0
    oldest_version_in_use: int = 0
    sessions_in_use: list[str] = []
    keys: int = 0
    bytes: int = 0
    keyspaces: dict[str, KeyspaceSize] = {}
    """By keyspace id; those of which the node stores nothing are left out."""
    counted_ago_s: float = 0.0
    """How long ago the rows and bytes were counted; a count is kept for a second."""
