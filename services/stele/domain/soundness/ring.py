"""What operations of nodes go by: at rest, the rows of the ring's placements are those that the nodes' tokens
give. Where they are not, each join or leave would wait for ever for ranges that do not come out.
"""

from collections.abc import Iterator

from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.transition import WHOLE_RING, equals_at_rest
from stele.domain.schema.facts import placement_name
from stele.domain.soundness.flaw import Flaw
from stele.domain.soundness.rows import place_of
from stele.domain.topology.rings import ring_now


def ring_flaws(image: Image) -> Iterator[Flaw]:
    """Of a state without other flaws. While something is under way rows are between two rings."""
    if image.topology.transitions:
        return
    for keyspace_id in sorted(image.schema.by_id):
        keyspace = image.schema.by_id[keyspace_id]
        wanted = "" if keyspace.tablets else placement_name(keyspace.replication)
        if keyspace.placement != wanted:
            yield Flaw(
                f"keyspace {keyspace.name} ({keyspace_id})",
                f"its placement is {keyspace.placement or '(none)'}, and by its replication it is"
                f" {wanted or '(none)'}",
            )
            return
    ring = ring_now(image)
    for name, replication in image.schema.replications().items():
        live, computed = image.ring.placements[name], ring.placement(replication)
        if not equals_at_rest(live, computed, [WHOLE_RING]):
            yield _first_difference(name, live, computed)
    for table in image.schema.map_owners():
        for row in image.ring.placements[table.placement].rows:
            yield from (
                Flaw(place_of(table.placement, row), what) for what in _of_tablet(image, row)
            )


def _first_difference(name: str, live: Placement, computed: Placement) -> Flaw:
    wanted = {(row.start, row.end): row for row in computed.rows}
    for row in live.rows:
        by_tokens = wanted.get((row.start, row.end))
        if by_tokens is None:
            return Flaw(place_of(name, row), "the nodes' tokens do not make this range")
        if (row.reads, row.writes) != (by_tokens.reads, by_tokens.writes):
            return Flaw(
                place_of(name, row),
                f"it is read from {', '.join(row.reads) or 'nobody'} and written to"
                f" {', '.join(row.writes) or 'nobody'}, and by the nodes' tokens, dcs and racks it is"
                f" {', '.join(by_tokens.reads) or 'nobody'}'s",
            )
    return Flaw(f"placement {name}", "its rows are not those that the nodes' tokens give")


def _of_tablet(image: Image, row: RangeReplicas) -> Iterator[str]:
    if {*row.reads} != {*row.writes}:
        yield "it is not read from all who are written to, and nothing is under way"
    for node_id in row.writes:
        node = image.membership.nodes[node_id]
        if node.state is not NodeState.NORMAL or not node.tokens:
            yield f"node {node_id} is no member with tokens, and has a replica"
