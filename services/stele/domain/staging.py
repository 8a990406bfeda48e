"""Parts of a decision that is too large for one record. They have no effect before their commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import TypeVar

import msgspec

from stele.domain.base import Fact
from stele.domain.model.archive import ArchiveFact
from stele.domain.model.cdc import CdcFact
from stele.domain.model.commits import CommitsFact
from stele.domain.model.features import FeaturesFact
from stele.domain.model.membership import MembershipFact
from stele.domain.model.overrides import OverridesFact
from stele.domain.model.repairs import RepairsFact
from stele.domain.model.requests import RequestsFact
from stele.domain.model.ring import RingFact
from stele.domain.model.schema import SchemaFact
from stele.domain.model.table_snapshots import TableSnapshotsFact
from stele.domain.model.transitions import TopologyFact
from stele.domain.registry_entry import Domain

StagedFact = (
    MembershipFact
    | RequestsFact
    | RingFact
    | SchemaFact
    | TopologyFact
    | RepairsFact
    | TableSnapshotsFact
    | FeaturesFact
    | CdcFact
    | ArchiveFact
    | CommitsFact
    | OverridesFact
)
"""The facts that may go in parts: all that a command changes in a founded cluster."""


class Part(Fact, frozen=True):
    """Facts that are not true yet.

    Parts count from 0; a first part replaces all that was staged before.
    """

    staging_id: str
    index: int
    facts: tuple[StagedFact, ...]


class PartsCommitted(Fact, frozen=True):
    """The facts of all ``parts`` become true here, in their order, before the facts that follow."""

    staging_id: str
    parts: int


StagingFact = Part | PartsCommitted


# The staging slot (docs/design.md, rule 7). Only the chain that is being written uses it.


F = TypeVar("F", bound=Fact)


class StagingImage(msgspec.Struct, frozen=True):
    """The parts so far of the newest chain; empty after its commit."""

    staging_id: str = ""
    parts: tuple[tuple[StagedFact, ...], ...] = ()

    def of(self, commit: PartsCommitted) -> Iterator[StagedFact]:
        """Yield the facts that a commit makes true.

        Its writer chained it to its parts, so all are present.
        """
        assert (self.staging_id, len(self.parts)) == (commit.staging_id, commit.parts)
        for facts in self.parts:
            yield from facts


def with_those_inside(facts: Iterable[Fact]) -> Iterator[Fact]:
    """Yield the facts, and those that they stage."""
    for fact in facts:
        yield fact
        if isinstance(fact, Part):
            yield from fact.facts


def of_names(facts: Iterable[F], names: Set[str]) -> Iterator[F]:
    """Yield the facts of these names. A part is included with its facts of these names."""
    for fact in facts:
        if isinstance(fact, Part):
            inside = tuple(of_names(fact.facts, names))
            yield msgspec.structs.replace(fact, facts=inside)
        elif type(fact).__name__ in names:
            yield fact


def unfolded(staging: StagingImage, facts: Iterable[Fact]) -> Iterator[Fact]:
    """Yield the facts of an epoch after this image, with those of its parts before their commit."""
    for fact in facts:
        # The facts of the parts come before those that follow the commit.
        if isinstance(fact, PartsCommitted):
            yield from staging.of(fact)
        yield fact


# The entry of staged parts in the registry. ``evolve`` applies them with their commit.


def part(image: StagingImage, fact: Part) -> StagingImage:
    # A chain that lost to a foreign record leaves its earlier parts here. The first part of the
    # next chain replaces them.
    if fact.index == 0:
        return StagingImage(fact.staging_id, (fact.facts,))
    assert (image.staging_id, len(image.parts)) == (fact.staging_id, fact.index)
    return StagingImage(fact.staging_id, (*image.parts, fact.facts))


def parts_committed(_: StagingImage, __: PartsCommitted) -> StagingImage:
    return StagingImage()


def to_facts(image: StagingImage) -> Iterable[StagingFact]:
    for index, facts in enumerate(image.parts):
        yield Part(image.staging_id, index, facts)


# Staged facts are not true, so the domain has no view: only the history of epochs shows them.
DOMAIN = Domain(
    name="staging",
    empty=StagingImage(),
    apply={Part: part, PartsCommitted: parts_committed},
    to_facts=to_facts,
)
