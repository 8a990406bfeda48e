"""All domains, in the order of a snapshot. A new domain needs its module and a line here."""

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from stele.domain import commands
from stele.domain.base import Fact
from stele.domain.ddl.schema import DOMAIN as SCHEMA
from stele.domain.model.features import OF_MESSAGES
from stele.domain.model.repairs import DOMAIN as REPAIRS
from stele.domain.model.ring import DOMAIN as RING
from stele.domain.overrides import DOMAIN as OVERRIDES
from stele.domain.registry_entry import Domain
from stele.domain.request_memory import DOMAIN as DECIDED
from stele.domain.rules.archive import DOMAIN as ARCHIVE
from stele.domain.rules.cdc import DOMAIN as CDC
from stele.domain.rules.cluster import DOMAIN as FOUNDING
from stele.domain.rules.commits import DOMAIN as COMMITS
from stele.domain.rules.features import DOMAIN as FEATURES
from stele.domain.rules.membership import DOMAIN as MEMBERSHIP
from stele.domain.rules.services import DOMAIN as SERVICES
from stele.domain.rules.table_snapshots import DOMAIN as TABLE_SNAPSHOTS
from stele.domain.staging import DOMAIN as STAGING
from stele.domain.staging import Part, with_those_inside
from stele.domain.topology.decide import DOMAIN as TOPOLOGY
from stele.domain.topology.requests import DOMAIN as REQUESTS

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
"""Fact -> the domain's name and the function that folds the fact."""

FEATURES_OF_FACTS: Final[dict[type, str]] = {
    fact: feature for domain in DOMAINS for fact, feature in domain.features.items()
}

FEATURES_ENABLED_BY: Final[dict[type, Any]] = {
    fact: names for domain in DOMAINS for fact, names in domain.enables.items()
}

KNOWN_FEATURES: Final = frozenset(FEATURES_OF_FACTS.values()) | OF_MESSAGES
"""Features beyond the first format that this build can fold, and message formats that
it can read.
"""


class FeaturesOfFacts(NamedTuple):
    """The features of some facts, each sorted. They are derived, never set by hand."""

    used: tuple[str, ...] = ()
    """Features that must be enabled before the facts are written.

    A part includes those of its facts, so that no reader passes it which could not fold its commit.
    """
    required: tuple[str, ...] = ()
    """Features that a reader needs: those that the facts use, and those that they enable.

    A reader that lacks one stops where it is enabled, and names it. Otherwise it would stop at a
    later record whose schema it does not have.
    """


def features_of(facts: Collection[Fact]) -> FeaturesOfFacts:
    """Return the features that these facts use and require."""
    kinds = {*map(type, facts)}
    if (
        FEATURES_OF_FACTS.keys().isdisjoint(kinds)
        and FEATURES_ENABLED_BY.keys().isdisjoint(kinds)
        and Part not in kinds
    ):
        return FeaturesOfFacts()  # nearly always
    used, enabled = set[str](), set[str]()
    for fact in with_those_inside(facts):
        kind = type(fact)
        if kind in FEATURES_OF_FACTS:
            used.add(FEATURES_OF_FACTS[kind])
        if kind in FEATURES_ENABLED_BY:
            enabled.update(FEATURES_ENABLED_BY[kind](fact))
    return FeaturesOfFacts(tuple(sorted(used)), tuple(sorted(used | enabled)))


DECISIONS: Final[dict[type, Any]] = {
    command: decide for domain in DOMAINS for command, decide in domain.decide.items()
}
"""Command -> the function that decides it."""

# Every command class has a decision. A forgotten one fails at import.
assert {*DECISIONS} == {*commands.Command.__subclasses__()}
