"""The description of a cluster of Cassandra 5.0.2: six nodes in three dcs, four tokens each.

The replicas of its ranges are those that ``nodetool describering`` printed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stele.domain.legacy import LegacyCluster, LegacyRange, decode_description

REPOSITORY = Path(__file__).parents[3]
EXAMPLE = REPOSITORY / "docs/examples/legacy_cluster.json"
VERSION = "1f8e15d7-9083-3d8b-bccd-d3bc309de785"


def example() -> LegacyCluster:
    return decode_description(EXAMPLE.read_bytes())


def with_node(address: str, /, **changes: object) -> LegacyCluster:
    """Return the example with other values of one node."""
    legacy = example()
    nodes = (
        msgspec.structs.replace(node, **changes) if node.address == address else node
        for node in legacy.nodes
    )
    return msgspec.structs.replace(legacy, nodes=tuple(nodes))


def simple_strategy_ranges() -> tuple[LegacyRange, ...]:
    """Return the ranges that the same cluster printed for a keyspace of SimpleStrategy with two replicas."""
    raw = (Path(__file__).parent / "simple_strategy_ranges.json").read_bytes()
    return msgspec.json.decode(raw, type=tuple[LegacyRange, ...])
