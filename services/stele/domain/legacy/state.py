"""The state that a legacy cluster becomes: what a fresh cluster of the same nodes and keyspaces would have."""

import uuid
from collections.abc import Mapping
from typing import Final

from stele.domain.cluster.facts import ClusterCreated
from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.legacy.description import Legacy, LegacyNode
from stele.domain.membership.facts import Node, NodeChanged
from stele.domain.names import PARTITIONER, NodeState
from stele.domain.schema.facts import Keyspace, KeyspaceChanged, placement_name
from stele.domain.topology.rings import ring_now

_NAMES: Final = uuid.UUID("2f6b2c2e-3f0e-4a53-8a0b-6a51c3fd1c44")


def state_of(legacy: Legacy, replications: Mapping[str, Mapping[str, int]]) -> Image:
    """All nodes normal with their tokens, and the keyspaces of ``replications`` (name -> dc -> factor) at rest
    in topology version 1. Cluster and keyspaces have the same ids each time, as the nodes have theirs.

    Nothing stands against it (``checks``): what does makes no sense here.
    """
    cluster_id = f"{legacy.cluster}/{_unique(legacy, 'cluster')}"
    facts: list[AnyFact] = [ClusterCreated(legacy.cluster, cluster_id, PARTITIONER)]
    facts += (NodeChanged(_node(each)) for each in legacy.nodes)
    image = apply_facts(EMPTY_FOR_FOLLOWERS, facts)
    for name, replication in sorted(replications.items()):
        image = apply_facts(image, _keyspace(image, legacy, name, replication))
    return image


def _node(node: LegacyNode) -> Node:
    return Node(
        node_id=node.host_id,
        host_id=node.host_id,
        address=node.address,
        dc=node.dc,
        rack=node.rack,
        num_tokens=len(node.tokens),
        state=NodeState.NORMAL,
        tokens=tuple(sorted(node.tokens)),
        release_version=node.release,
    )


def _keyspace(
    image: Image, legacy: Legacy, name: str, replication: Mapping[str, int]
) -> list[AnyFact]:
    placement = placement_name({**replication})
    keyspace = Keyspace(
        keyspace_id=_unique(legacy, f"keyspace {name}"),
        name=name,
        replication={**replication},
        placement=placement,
    )
    facts: list[AnyFact] = [KeyspaceChanged(keyspace)]
    if placement not in image.ring.placements:
        facts += image.ring.creation(placement, ring_now(image).placement({**replication}))
    return facts


def _unique(legacy: Legacy, what: str) -> str:
    """An id that another cluster of the same name does not have: nodes' host ids are in it."""
    hosts = ",".join(sorted(node.host_id for node in legacy.nodes))
    return str(uuid.uuid5(_NAMES, f"{legacy.cluster}/{hosts}/{what}"))
