"""Warnings before an operation that no rule forbids."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from stele.domain.image import Image
from stele.domain.requests.model import Request
from stele.domain.ring.ranges import RING_SIZE, RangeReplicas, upper_bound
from stele.domain.ring.transition import TransitionRow, lacks_sources
from stele.domain.topology.facts import Transition
from stele.domain.topology.live_copies import described, losses, only_have, short_of_quorum


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """A warning: its code, its message, and the share of the ring that it concerns, 0 to 1."""

    code: str
    placement: str
    share: float
    message: str


def concerns_of(
    image: Image, transition: Transition, requests: Sequence[Request], dead: frozenset[str]
) -> tuple[Concern, ...]:
    """Return the warnings by placement: copies on fewer racks, fewer copies than wanted, or lost
    writes.
    """
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
        names = only_have(sorted({n for row in lost for n in row.old if n in dead}))
        yield Concern(
            code="data_may_be_lost",
            placement=name,
            share=share_of(lost),
            message=f"Acknowledged writes that only {names} are given up, by force.",
        )


def exclusion_concerns(image: Image, dead: Sequence[str]) -> tuple[Concern, ...]:
    """Return warnings for ranges that a forced exclusion leaves without a quorum or without some
    writes.
    """
    chosen, excluded = frozenset(dead), image.membership.excluded() | frozenset(dead)
    lost = losses(image, chosen)
    short = short_of_quorum(image, excluded) if dead else ()
    names = {each.placement for each in lost}
    return (
        *(
            Concern(
                code="data_may_be_lost",
                placement=each.placement,
                share=share_of(each.rows),
                message=f"{described(image, (each,))} may have acknowledged writes that only"
                f" {only_have(sorted(each.dead(excluded)))}.",
            )
            for each in lost
        ),
        *(
            Concern(
                code="no_quorum",
                placement=each.placement,
                share=share_of(each.rows),
                message=f"{described(image, (each,))} cannot be read or written at quorum until"
                f" {', '.join(sorted(each.dead(excluded)))} is replaced or removed.",
            )
            for each in short
            if each.placement not in names and not chosen.isdisjoint(each.dead(excluded))
        ),
    )


def _racks(image: Image, replicas: tuple[str, ...]) -> set[tuple[str, str]]:
    nodes = (image.membership.nodes[node_id] for node_id in replicas)
    return {(node.dc, node.rack) for node in nodes}


def share_of(rows: Iterable[TransitionRow | RangeReplicas]) -> float:
    """Return the share of these ranges in the ring, 0 to 1."""
    return sum(map(tokens_in, rows)) / RING_SIZE


def tokens_in(range_: TransitionRow | RangeReplicas) -> int:
    """Return the number of tokens in a range."""
    return upper_bound(range_.end) - range_.start
