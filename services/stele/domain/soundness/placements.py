"""Placements: every replica is a node that is there, and no range is without one."""

from collections.abc import Iterator

from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.soundness.flaw import Flaw
from stele.domain.soundness.rows import place_of


def placement_flaws(image: Image) -> Iterator[Flaw]:
    for name in sorted(image.ring.placements):
        for row in image.ring.placements[name].rows:
            yield from (Flaw(place_of(name, row), what) for what in _of_row(image, row))


def _of_row(image: Image, row: RangeReplicas) -> Iterator[str]:
    for node_id in sorted({*row.writes}):
        node = image.node(node_id)
        if node is None:
            yield f"there is no node {node_id}"
        elif node.state is NodeState.LEFT:
            yield f"node {node_id} has left"
        elif any(shard >= node.shards for shard in row.shards_of(node_id)):
            yield f"node {node_id} has {node.shards} shards, and a replica on {max(row.shards_of(node_id))}"
    if row.version > image.topology.version or row.version_before > row.version:
        yield (
            f"its versions {row.version_before} and {row.version} are not in order below the topology's"
            f" version {image.topology.version}"
        )


def reader_flaws(image: Image) -> Iterator[Flaw]:
    """Ranges that nobody serves, though there are nodes with tokens in a dc where there should be replicas."""
    dcs = {node.dc for node in image.membership.holding().values()}
    for name, replication in sorted(_replications(image).items()):
        placement = image.ring.placements.get(name)
        if placement is None or not dcs.intersection(dc for dc, rf in replication.items() if rf):
            continue
        for row in placement.rows:
            if not row.reads:
                yield Flaw(place_of(name, row), "nobody serves its reads")


def _replications(image: Image) -> dict[str, dict[str, int]]:
    schema = image.schema
    of_tables = {
        table.placement: schema.by_id[table.keyspace_id].replication
        for table in schema.with_tablets()
    }
    return {**schema.replications(), **of_tables}
