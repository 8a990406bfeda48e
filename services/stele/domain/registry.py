"""All domains, in the order in which a snapshot writes them. Adding a domain is its folder and a line here."""

from collections.abc import Collection, Iterable
from typing import Any, Final

from stele.domain import commands
from stele.domain.archive.domain import DOMAIN as ARCHIVE
from stele.domain.base import Fact
from stele.domain.cdc.domain import DOMAIN as CDC
from stele.domain.cluster.domain import DOMAIN as FOUNDING
from stele.domain.commits.domain import DOMAIN as COMMITS
from stele.domain.features.domain import DOMAIN as FEATURES
from stele.domain.features.messages import OF_MESSAGES
from stele.domain.membership.domain import DOMAIN as MEMBERSHIP
from stele.domain.overrides.domain import DOMAIN as OVERRIDES
from stele.domain.registry_entry import Domain
from stele.domain.repairs.domain import DOMAIN as REPAIRS
from stele.domain.requests.decided import DOMAIN as DECIDED
from stele.domain.requests.domain import DOMAIN as REQUESTS
from stele.domain.ring.domain import DOMAIN as RING
from stele.domain.schema.domain import DOMAIN as SCHEMA
from stele.domain.services.domain import DOMAIN as SERVICES
from stele.domain.staging.domain import DOMAIN as STAGING
from stele.domain.staging.facts import Part
from stele.domain.staging.image import with_those_inside
from stele.domain.table_snapshots.domain import DOMAIN as TABLE_SNAPSHOTS
from stele.domain.topology.domain import DOMAIN as TOPOLOGY

DOMAINS: Final[tuple[Domain, ...]] = (
    FOUNDING,
    COMMITS,
    OVERRIDES,
    MEMBERSHIP,
    REQUESTS,
    SCHEMA,
    RING,
    TOPOLOGY,
    REPAIRS,
    TABLE_SNAPSHOTS,
    CDC,
    FEATURES,
    SERVICES,
    ARCHIVE,
    STAGING,
    DECIDED,
)

FACTS: Final[dict[type, tuple[str, Any]]] = {
    fact: (domain.name, apply) for domain in DOMAINS for fact, apply in domain.apply.items()
}
"""Fact -> the domain's name and how it folds the fact."""

FEATURES_OF_FACTS: Final[dict[type, str]] = {
    fact: feature for domain in DOMAINS for fact, feature in domain.features.items()
}

FEATURES_ENABLED_BY: Final[dict[type, Any]] = {
    fact: names for domain in DOMAINS for fact, names in domain.enables.items()
}

KNOWN_FEATURES: Final = frozenset(FEATURES_OF_FACTS.values()) | OF_MESSAGES
"""Semantics, beyond the first, that this build can fold, and forms of messages that it can read."""


def required_features(facts: Collection[Fact]) -> tuple[str, ...]:
    """What a reader needs to go past these facts, sorted: derived, never set by hand.

    That is what they use, and what they enable: a reader that lacks it stops where it is enabled and names it,
    not at some later record of a schema that it does not have.
    """
    kinds = {*map(type, facts)}
    if (
        FEATURES_OF_FACTS.keys().isdisjoint(kinds)
        and FEATURES_ENABLED_BY.keys().isdisjoint(kinds)
        and Part not in kinds
    ):
        return ()  # nearly always
    found = set[str]()
    for fact in with_those_inside(facts):
        kind = type(fact)
        if kind in FEATURES_OF_FACTS:
            found.add(FEATURES_OF_FACTS[kind])
        if kind in FEATURES_ENABLED_BY:
            found.update(FEATURES_ENABLED_BY[kind](fact))
    return tuple(sorted(found))


def used_features(facts: Iterable[Fact]) -> tuple[str, ...]:
    """The features that must be enabled before these facts are written, sorted.

    A part tells what its facts use, so that nobody goes past it who could not fold its commit.
    """
    kinds = map(type, with_those_inside(facts))
    return tuple(sorted({FEATURES_OF_FACTS[kind] for kind in kinds if kind in FEATURES_OF_FACTS}))


DECISIONS: Final[dict[type, Any]] = {
    command: decide for domain in DOMAINS for command, decide in domain.decide.items()
}
"""Command -> how it is decided."""

assert {*DECISIONS} == {*commands.Command.__subclasses__()}
