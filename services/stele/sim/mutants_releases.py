"""Planted bugs of rolling upgrades: what an older build reads, what a record requires, and who is asked."""

from collections.abc import Set
from typing import Final

from stele.agent import admission, member
from stele.coordinator.desk import Desk
from stele.domain.acks import Barrier
from stele.domain.facts import Epoch
from stele.domain.features import support
from stele.domain.features.facts import FeaturesEnabled
from stele.domain.registry import FEATURES_ENABLED_BY, KNOWN_FEATURES, required_features
from stele.domain.services.facts import Service
from stele.domain.topology import decide
from stele.log import fold
from stele.runtime.announce import Telling
from stele.sim.patching import Patch


def features_wait_for_nobody(patch: Patch) -> None:
    """A feature is enabled while a member is down that may come back with an older build."""
    answered = Barrier(complete=True, satisfied=True, blockers=())
    patch.attribute(Desk, "answered", lambda self, epoch: answered)


def support_is_checked_when_asked_for_alone(patch: Patch) -> None:
    """Who takes back that it supports a feature while others are waited for is passed over."""
    patch.attribute(decide, "check_supported", lambda image, features: None)


def services_that_lack_it_are_passed_over(patch: Patch) -> None:
    """A feature is enabled as soon as all nodes support it."""
    patch.attribute(support, "_services_without", lambda image, feature: [])


def older_build_reads_on(patch: Patch) -> None:
    """A reader goes past winners that need a feature which it does not support."""
    plain = fold.decode_winner

    def decoded(offset: int, value: bytes, supported: Set[str] = KNOWN_FEATURES) -> Epoch:
        return plain(offset, value)

    patch.attribute(fold, "decode_winner", decoded)


def required_features_are_not_derived(patch: Patch) -> None:
    """Records say that they need nothing, whatever is in them."""
    patch.function(required_features, lambda facts: ())


def enabling_requires_nothing(patch: Patch) -> None:
    """The record that enables a feature can be read without it: an older build stops at a later one."""
    patch.item(FEATURES_ENABLED_BY, FeaturesEnabled, lambda fact: ())


def older_build_is_heard_at_once(patch: Patch) -> None:
    """A node acknowledges while the log still says that it supports what it does not."""
    patch.attribute(member, "claims_too_much", lambda known, advertised: False)


def late_node_is_believed(patch: Patch) -> None:
    """A node that runs says nothing when its row is what an earlier process of it was."""
    patch.attribute(admission, "is_contradicted", lambda identity, advertised, known: False)


def late_service_is_believed(patch: Patch) -> None:
    """A service that runs says nothing when its row is what an earlier process of it was."""

    async def nothing(self: Telling, known: Service, state_id: bytes) -> None:
        pass

    patch.attribute(Telling, "_contradict", nothing)


RELEASE_MUTANTS: Final = (
    features_wait_for_nobody,
    support_is_checked_when_asked_for_alone,
    services_that_lack_it_are_passed_over,
    older_build_reads_on,
    required_features_are_not_derived,
    enabling_requires_nothing,
    older_build_is_heard_at_once,
    late_node_is_believed,
    late_service_is_believed,
)
