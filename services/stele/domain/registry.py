"""All domains, in the order in which a snapshot writes them. Adding a domain is its folder and a line here."""

from collections.abc import Iterable
from typing import Any, Final

from stele.domain import commands
from stele.domain.base import Fact
from stele.domain.cluster.domain import DOMAIN as FOUNDING
from stele.domain.features.domain import DOMAIN as FEATURES
from stele.domain.membership.domain import DOMAIN as MEMBERSHIP
from stele.domain.registry_entry import Domain
from stele.domain.requests.decided import DOMAIN as DECIDED
from stele.domain.requests.domain import DOMAIN as REQUESTS
from stele.domain.ring.domain import DOMAIN as RING
from stele.domain.schema.domain import DOMAIN as SCHEMA
from stele.domain.staging.domain import DOMAIN as STAGING
from stele.domain.staging.image import with_those_inside
from stele.domain.topology.domain import DOMAIN as TOPOLOGY

DOMAINS: Final[tuple[Domain, ...]] = (
    FOUNDING,
    MEMBERSHIP,
    REQUESTS,
    SCHEMA,
    RING,
    TOPOLOGY,
    FEATURES,
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

KNOWN_FEATURES: Final = frozenset(FEATURES_OF_FACTS.values())
"""Semantics, beyond the first, that this build can fold."""


def required_features(facts: Iterable[Fact]) -> tuple[str, ...]:
    """What a reader needs to fold these facts, sorted: derived, never set by hand.

    A part tells what its facts need, so that nobody goes past it who could not fold its commit.
    """
    kinds = map(type, with_those_inside(facts))
    return tuple(sorted({FEATURES_OF_FACTS[kind] for kind in kinds if kind in FEATURES_OF_FACTS}))


DECISIONS: Final[dict[type, Any]] = {
    command: decide for domain in DOMAINS for command, decide in domain.decide.items()
}
"""Command -> how it is decided."""

assert {*DECISIONS} == {*commands.Command.__subclasses__()}
