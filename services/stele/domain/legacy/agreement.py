"""The placements that were computed here against what the legacy cluster itself says of every range."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from stele.domain.legacy.description import Answer, LegacyNode
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import Range
from stele.domain.ring.spans import text_of
from stele.domain.ring.tokens import MIN_TOKEN

NOBODY: Final = "no such range"


class Difference(msgspec.Struct, frozen=True):
    """A range of a keyspace whose replicas differ, by address, sorted; None: that side has no such range."""

    keyspace: str
    start: int
    end: int
    theirs: tuple[str, ...] | None
    ours: tuple[str, ...] | None

    def __str__(self) -> str:
        theirs, ours = (
            NOBODY if each is None else ", ".join(each) or "none"
            for each in (self.theirs, self.ours)
        )
        range_ = text_of(Range(self.start, self.end))
        return f"keyspace {self.keyspace}, {range_}: theirs {theirs}; ours {ours}"


def differences(
    keyspace: str, answers: Iterable[Answer], placement: Placement, nodes: Iterable[LegacyNode]
) -> Iterator[Difference]:
    """All of them, in ring order. The order of replicas is not compared: it decides about no quorum."""
    addresses = {node.host_id: node.address for node in nodes}
    ours = {
        Range(row.start, row.end): tuple(sorted(addresses[node] for node in row.writes))
        for row in placement.rows
    }
    theirs: dict[Range, tuple[str, ...]] = {}
    for answer in answers:
        for range_ in _unwrapped(answer):
            theirs[range_] = tuple(sorted({*answer.replicas, *theirs.get(range_, ())}))
    for range_ in sorted({*ours, *theirs}):
        if ours.get(range_) != theirs.get(range_):
            there, here = theirs.get(range_), ours.get(range_)
            yield Difference(keyspace, range_.start, range_.end, there, here)


def _unwrapped(answer: Answer) -> Iterator[Range]:
    """(start, end] without the wrap-around, as rows have it."""
    start, end = answer.start, answer.end
    if start < end or end == MIN_TOKEN:
        yield Range(start, end)
        return
    yield Range(start, MIN_TOKEN)
    yield Range(MIN_TOKEN, end)
