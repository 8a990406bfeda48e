"""Shards: places within a node. A replica of a tablet has one; ranges of the ring are on shard 0."""

from typing import Final

MAX_SHARDS: Final = 4096
"""Of a node."""
ANY: Final = -1
"""No shard is named."""


def place_text(node_id: str, shard: int, *, within: bool = False) -> str:
    """Where a replica goes, for people: a node, with its shard where that is not 0 or it stays ``within``."""
    return f"{node_id}:{shard}" if shard > 0 or within else node_id
