"""Planted bugs of rolling upgrades: compatibility of records, required features, and feature support."""

from collections.abc import Collection, Set

from stele.agent import admission, member
from stele.coordinator.model import StepContext
from stele.domain.base import Fact
from stele.domain.facts import Epoch
from stele.domain.model.features import FeaturesEnabled
from stele.domain.model.services import Service
from stele.domain.registry import (
    FEATURES_ENABLED_BY,
    KNOWN_FEATURES,
    FeaturesOfFacts,
    features_of,
)
from stele.domain.rules import features as feature_rules
from stele.domain.topology import decide
from stele.domain.topology.barriers import Barrier
from stele.log import fold
from stele.runtime.announce import Telling
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, planted


@planted(STORY)
def features_wait_for_nobody(patch: Patch) -> None:
    """A feature is enabled while a member is down that may come back with an older build."""
    answered = Barrier(complete=True, satisfied=True, blockers=())
    patch.attribute(StepContext, "answered", lambda self, epoch: answered)


@planted(STORY)
def support_is_checked_when_asked_for_alone(patch: Patch) -> None:
    """A node may withdraw its support for a feature while others are waited for."""
    patch.attribute(decide, "check_supported", lambda image, features: None)


@planted(STORY)
def services_that_lack_it_are_passed_over(patch: Patch) -> None:
    """A feature is enabled as soon as all nodes support it."""
    patch.attribute(feature_rules, "_services_without", lambda image, feature: [])


@planted(STORY)
def older_build_reads_on(patch: Patch) -> None:
    """A reader goes past winners that need a feature which it does not support."""
    plain = fold.decode_winner

    def decoded(offset: int, value: bytes, supported: Set[str] = KNOWN_FEATURES) -> Epoch:
        return plain(offset, value)

    patch.attribute(fold, "decode_winner", decoded)


@planted(STORY)
def required_features_are_not_derived(patch: Patch) -> None:
    """Records say that they need nothing, whatever is in them."""
    plain = features_of

    def without(facts: Collection[Fact]) -> FeaturesOfFacts:
        return FeaturesOfFacts(plain(facts).used)

    patch.function(plain, without)


@planted(STORY)
def enabling_requires_nothing(patch: Patch) -> None:
    """The record that enables a feature can be read without it: an older build stops at a later one."""
    patch.item(FEATURES_ENABLED_BY, FeaturesEnabled, lambda fact: ())


@planted(STORY)
def older_build_is_heard_at_once(patch: Patch) -> None:
    """A node acknowledges while the log still says that it supports what it does not."""
    patch.attribute(member, "claims_too_much", lambda known, advertised: False)


@planted(STORY)
def late_node_is_believed(patch: Patch) -> None:
    """A node that runs says nothing when its row is what an earlier process of it was."""
    patch.attribute(admission, "is_contradicted", lambda identity, advertised, known: False)


@planted(STORY)
def late_service_is_believed(patch: Patch) -> None:
    """A service that runs says nothing when its row is what an earlier process of it was."""

    async def nothing(self: Telling, known: Service, state_id: bytes) -> None:
        pass

    patch.attribute(Telling, "_contradict", nothing)
