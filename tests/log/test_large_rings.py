"""Joins and a leave on a ring whose operations fit no record: 300 nodes of 1,024 tokens, five replications."""

from __future__ import annotations

import random
import resource
import sys
import time
from typing import Final

import msgspec
import pytest

from stele.domain.commands import Join, Leave
from stele.domain.evolve import apply_facts
from stele.domain.image import EMPTY, Image
from stele.domain.model.cluster import ClusterCreated
from stele.domain.model.membership import Node, NodeChanged
from stele.domain.model.schema import Keyspace, KeyspaceChanged, placement_name
from stele.domain.names import PARTITIONER, NodeState
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.domain.rules.ring import ring_now
from stele.domain.snapshot import facts_to_image, image_to_facts
from stele.domain.staging import Part, StagingImage
from stele.log.codec import decode_epoch
from stele.log.fold import Fold
from stele.log.record_builder import MAX_RECORD_BYTES
from tests.domain.history import LOG_ID
from tests.log.driven import Driven
from tests.log.memory import MemoryPartition
from tests.log.test_pipeline import Writer

NODES: Final = 300
TOKENS: Final = 1024
JOINING: Final = ("new1", "new2")
"""They open together, as one transition."""
REPLICATIONS: Final = (
    {"dc1": 3},
    {"dc1": 5},
    {"dc1": 3, "dc2": 3},
    {"dc2": 3},
    {"dc1": 2, "dc2": 1},
)
MIB: Final = 1024 * 1024


def large_ring() -> Image:
    """Return the state as in a snapshot: nodes in two data centres of five racks, and their placements."""
    chance = random.Random(1)
    tokens = [chance.randrange(MIN_TOKEN + 1, MAX_TOKEN) for _ in range(NODES * TOKENS)]
    assert len({*tokens}) == len(tokens)
    image = apply_facts(EMPTY, [ClusterCreated("blue", "blue/1", PARTITIONER, LOG_ID.hex(), "")])
    nodes = [
        NodeChanged(
            Node(
                node_id=f"n{n:03d}",
                address=f"http://n{n:03d}",
                dc=f"dc{n % 2 + 1}",
                rack=f"r{n // 2 % 5}",
                num_tokens=TOKENS,
                state=NodeState.NORMAL,
                tokens=tuple(sorted(tokens[n * TOKENS : (n + 1) * TOKENS])),
            )
        )
        for n in range(NODES)
    ]
    image = apply_facts(image, nodes)
    ring = ring_now(image)
    for number, replication in enumerate(REPLICATIONS):
        name = placement_name(replication)
        keyspace = Keyspace(
            keyspace_id=f"id{number}", name=f"k{number}", replication=replication, placement=name
        )
        placed = image.ring.creation(name, ring.placement(replication))
        image = apply_facts(image, [KeyspaceChanged(keyspace), *placed])
    return msgspec.structs.replace(image, epoch=1, state_id=bytes(6) + bytes([1] * 10))


def join_of(name: str) -> Join:
    return Join(
        node_id=name,
        cluster="blue",
        address=f"http://{name}",
        dc="dc1",
        rack="r0",
        num_tokens=TOKENS,
        host_id=f"host-{name}",
    )


def report(what: str, began_s: float, cluster: Driven, since: int = 0) -> int:
    """Return the number of parts among the records from number ``since`` on."""
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    values = [record.value for record in cluster.partition.records[since:]]
    parts = sum(isinstance(f, Part) for v in values for f in decode_epoch(v).facts)
    sys.stderr.write(
        f"\n{what}: {time.process_time() - began_s:.0f} s of processor, the slowest command"
        f" {cluster.slowest_s:.1f} s; {len(values)} records, {parts} of them parts,"
        f" {sum(map(len, values)) / MIB:.1f} MiB, the largest {max(map(len, values)) / MIB:.1f} MiB;"
        f" {peak_mib:.0f} MiB of memory at most\n"
    )
    return parts


@pytest.mark.slow
def test_joins_and_a_leave_on_a_large_ring_fit_the_record_limit() -> None:
    began_s = time.process_time()
    image = large_ring()
    writer = Writer("first", MemoryPartition())
    writer.pipeline.fold = Fold(image)
    cluster = Driven(writer)
    report_began_s = time.process_time()
    sys.stderr.write(f"\nthe ring: {report_began_s - began_s:.0f} s of processor\n")
    for name in JOINING:
        cluster.ask(join_of(name))
    cluster.run()
    assert report("joins", report_began_s, cluster) > 0
    joined = len(cluster.partition.records)
    assert all(cluster.image.membership.nodes[n].state is NodeState.NORMAL for n in JOINING)
    leave_began_s = time.process_time()
    cluster.ask(Leave("n000"))
    cluster.run()
    report("the leave", leave_began_s, cluster, joined)
    assert cluster.image.membership.nodes["n000"].state is NodeState.LEFT
    values = [record.value for record in cluster.partition.records]
    assert max(map(len, values)) <= MAX_RECORD_BYTES
    assert cluster.image.staging == StagingImage()
    again = Fold(facts_to_image(image_to_facts(image), image.epoch, image.state_id))
    for record in cluster.partition.records:
        again.offer(record.offset, record.value)
    assert again.image == cluster.image
