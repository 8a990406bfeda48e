"""Invariants of the design as checks of images, computed anew and naively (design, section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations

from stele.domain.entities import Operation
from stele.domain.image import Image
from stele.domain.names import NodeState, RequestKind, RequestStatus
from stele.domain.ring.ranges import Placement, RangeReplicas

Applied = Mapping[str, tuple[Image, int | None]]
"""What each node has applied, and the oldest version that a request of it still holds."""

MEMBERS = (NodeState.NORMAL, NodeState.BOOTSTRAPPING, NodeState.DECOMMISSIONING)


def check_step(images: Sequence[Image], after: Image, command: str, applied: Applied) -> None:
    before = images[-1]
    check_versions(before, after)
    check_quorums_meet(before, after)
    check_replicas(after)
    if command in ("advance_fence", "advance", "start_request"):
        check_gate(before, after, command, applied)
    check_undone(images, after)


def check_versions(before: Image, after: Image) -> None:
    """I3: at most two versions in use; neither number goes back."""
    old, new = before.topology.topology, after.topology.topology
    assert new.version - 1 <= new.fence_version <= new.version
    assert old.version <= new.version <= old.version + 1
    assert old.fence_version <= new.fence_version


def check_quorums_meet(before: Image, after: Image) -> None:
    """I4: what one of two adjacent views acknowledges, every quorum read of the other meets."""
    for name, placement in after.ring.placements.items():
        other = before.ring.placements.get(name)
        if other is None or other is placement:
            continue
        for one, two in _pairs(other, placement):
            assert _meets(one.reads, one.writes, two.reads), (one, two)
            assert _meets(two.reads, two.writes, one.reads), (one, two)


def _pairs(one: Placement, two: Placement) -> set[tuple[RangeReplicas, RangeReplicas]]:
    ends = {row.end for row in (*one.rows, *two.rows)}
    return {(one.row_for(end), two.row_for(end)) for end in ends}


@cache
def _meets(reads: tuple[str, ...], writes: tuple[str, ...], read_by: tuple[str, ...]) -> bool:
    """Acks that satisfy a write: a majority of the reads and one for each replica that is pending."""
    needed = len(reads) // 2 + 1 + len(writes) - len(reads)
    return all(
        len(set(read_by) - set(acks)) < len(read_by) // 2 + 1
        for acks in combinations(writes, needed)
    )


def check_replicas(image: Image) -> None:
    """I7: no node twice, never fewer replicas than the factor, in different racks while there are any."""
    nodes = image.membership.nodes
    racks = {node.rack for node in nodes.values() if node.tokens}
    for name, replication in image.schema.replications().items():
        for row in image.ring.placements[name].rows:
            for replicas in (row.reads, row.writes):
                assert len(set(replicas)) == len(replicas)
            assert set(row.reads) <= set(row.writes)
            assert len(row.reads) >= sum(replication.values())
            if image.topology.operation is None:
                found = {nodes[n].rack for n in row.reads}
                assert len(found) >= min(len(racks), len(row.reads))


def check_gate(before: Image, after: Image, command: str, applied: Applied) -> None:
    """I5: a fence moves, or a step starts, only once quorums of all that it touches know what was before."""
    topology, operation = before.topology.topology, before.topology.operation
    epoch = topology.since_epoch if command == "advance_fence" else topology.fence_epoch
    passed = {
        n
        for n, (image, holds) in applied.items()
        if image.epoch >= epoch and (holds is None or holds >= topology.version)
    }
    undone = bool(topology.rollback)
    members = {n for n, node in before.membership.nodes.items() if node.state in MEMBERS}
    if undone and operation is not None and operation.kind is RequestKind.JOIN:
        members.discard(operation.node_id)
    assert 2 * len(members & passed) > len(members) or not members, (members, passed)
    for replicas in _touched(operation, undone=undone):
        assert 2 * len(replicas & passed) > len(replicas), (replicas, passed)


def _touched(operation: Operation | None, *, undone: bool) -> Iterable[set[str]]:
    """Before, after and both; before alone when undone, as nobody ever reads from the others then."""
    for plan in operation.plans.values() if operation is not None else ():
        for row in plan.rows:
            sets = (row.old,) if undone else (row.old, row.new, (*row.old, *row.new))
            yield from (set(replicas) for replicas in sets if replicas)


def check_undone(images: Sequence[Image], after: Image) -> None:
    """I11: what was rolled back left the placements and the ring as they were."""
    operation = images[-1].topology.operation
    if operation is None or after.topology.operation is not None:
        return
    request = after.requests.requests[operation.request_id]
    if request.status is RequestStatus.DONE:
        return
    start = images[request.started_epoch - 1]
    assert start.ring == after.ring
    assert start.membership.ring_tokens() == after.membership.ring_tokens()
