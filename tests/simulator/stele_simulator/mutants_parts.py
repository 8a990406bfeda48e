"""Planted bugs of decisions that go in parts, and of records that are too large."""

from collections.abc import Iterable, Iterator

from stele.domain.base import Fact, Rejection
from stele.domain.facts import AnyFact
from stele.domain.registry import FACTS
from stele.domain.staging import Part, PartsCommitted, StagedFact, StagingImage, unfolded
from stele.log.record_builder import DecideAfter, in_parts
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, planted

Split = tuple[list[Part], tuple[AnyFact, ...]] | Rejection


@planted(RUN, rule="7")
def parts_count_without_their_commit(patch: Patch) -> None:
    """The facts of a part are true as soon as it has won."""

    def eager(staging: StagingImage, facts: Iterable[Fact]) -> Iterator[Fact]:
        for fact in facts:
            if isinstance(fact, Part):
                yield from fact.facts
            yield fact

    patch.function(unfolded, eager)


@planted(RUN, rule="7")
def first_part_does_not_replace(patch: Patch) -> None:
    """When a foreign record wins between parts, what was staged is committed with the next decision."""

    def added(image: StagingImage, fact: Part) -> StagingImage:
        return StagingImage(fact.staging_id, (*image.parts, fact.facts))

    def whatever_is_there(self: StagingImage, commit: PartsCommitted) -> Iterator[StagedFact]:
        for facts in self.parts:
            yield from facts

    name, _ = FACTS[Part]
    patch.item(FACTS, Part, (name, added))
    patch.attribute(StagingImage, "of", whatever_is_there)


@planted(RUN, rule="7")
def parts_are_decided_for_the_first_epoch(patch: Patch) -> None:
    """A command in parts names the epoch of its first part instead of that of its commit."""

    def not_again(
        facts: tuple[AnyFact, ...], staging_id: str, decide_after: DecideAfter, part_bytes: int
    ) -> Split:
        return in_parts(facts, staging_id, lambda epochs: decide_after(0), part_bytes)

    patch.function(in_parts, not_again)
