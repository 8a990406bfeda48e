"""What is staged: one slot, since only the chain that is being written uses it."""

from collections.abc import Iterable, Iterator, Set
from typing import TypeVar

import msgspec

from stele.domain.base import Fact
from stele.domain.staging.facts import Part, PartsCommitted, StagedFact

F = TypeVar("F", bound=Fact)


class StagingImage(msgspec.Struct, frozen=True):
    """The parts so far of the newest chain that was begun; empty once it was committed."""

    staging_id: str = ""
    parts: tuple[tuple[StagedFact, ...], ...] = ()

    def of(self, commit: PartsCommitted) -> Iterator[StagedFact]:
        """The facts that a commit makes true. Its writer chained it to its parts, so they are all there."""
        assert (self.staging_id, len(self.parts)) == (commit.staging_id, commit.parts)
        for facts in self.parts:
            yield from facts


def with_those_inside(facts: Iterable[Fact]) -> Iterator[Fact]:
    """The facts, and those that they stage."""
    for fact in facts:
        yield fact
        if isinstance(fact, Part):
            yield from fact.facts


def of_names(facts: Iterable[F], names: Set[str]) -> Iterator[F]:
    """The facts of these names; a part with those of its own."""
    for fact in facts:
        if isinstance(fact, Part):
            inside = tuple(of_names(fact.facts, names))
            yield msgspec.structs.replace(fact, facts=inside)
        elif type(fact).__name__ in names:
            yield fact


def unfolded(staging: StagingImage, facts: Iterable[Fact]) -> Iterator[Fact]:
    """The facts of an epoch after this image, with those of its parts before their commit."""
    for fact in facts:
        if isinstance(fact, PartsCommitted):
            yield from staging.of(fact)
        yield fact
