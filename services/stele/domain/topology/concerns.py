"""What an operator should know before an operation that nothing forbids."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from stele.domain.image import Image
from stele.domain.requests.facts import Request
from stele.domain.ring.ranges import RangeReplicas, upper_bound
from stele.domain.ring.tokens import RING_SIZE
from stele.domain.ring.transition import TransitionRow, lacks_sources
from stele.domain.topology.facts import Transition


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """A code, a sentence, and the part of the ring that it is about, 0 to 1."""

    code: str
    placement: str
    share: float
    message: str


def concerns_of(
    image: Image, transition: Transition, requests: Sequence[Request], dead: frozenset[str]
) -> tuple[Concern, ...]:
    """By placement: copies that come to stand on fewer racks, are fewer than asked for, or are lost."""
    force = all(request.force for request in requests)
    return tuple(
        concern
        for name, plan in sorted(transition.plans.items())
        for concern in _concerns(image, name, plan.rows, dead, force=force)
    )


def _concerns(
    image: Image, name: str, rows: Iterable[TransitionRow], dead: frozenset[str], *, force: bool
) -> Iterator[Concern]:
    wanted = sum(image.schema.replications().get(name, {}).values())
    crowded = [r for r in rows if len(_racks(image, r.new)) < len(_racks(image, r.old))]
    short = [row for row in rows if len(row.new) < wanted]
    lost = [row for row in rows if force and lacks_sources(row, dead)]
    if crowded:
        yield Concern(
            code="fewer_racks",
            placement=name,
            share=share_of(crowded),
            message="The copies stand on fewer racks than before.",
        )
    if short:
        yield Concern(
            code="too_few_copies",
            placement=name,
            share=share_of(short),
            message=f"Fewer than the {wanted} copies that the replication factor asks for.",
        )
    if lost:
        names = ", ".join(sorted({n for row in lost for n in row.old if n in dead}))
        yield Concern(
            code="data_may_be_lost",
            placement=name,
            share=share_of(lost),
            message=f"Acknowledged writes that only {names} has are given up, by force.",
        )


def _racks(image: Image, replicas: tuple[str, ...]) -> set[tuple[str, str]]:
    nodes = (image.membership.nodes[node_id] for node_id in replicas)
    return {(node.dc, node.rack) for node in nodes}


def share_of(rows: Iterable[TransitionRow]) -> float:
    """These ranges as a part of the ring, 0 to 1."""
    return sum(map(tokens_in, rows)) / RING_SIZE


def tokens_in(range_: TransitionRow | RangeReplicas) -> int:
    """Positions of the ring in a range."""
    return upper_bound(range_.end) - range_.start
