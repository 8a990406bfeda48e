"""Features and settings (seed 004): decided, folded, shown; entered in the registry."""

from collections.abc import Iterable
from typing import Final

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, bad_name
from stele.domain.features.facts import (
    EnableFeatures,
    FeaturesEnabled,
    FeaturesFact,
    FeaturesImage,
    SetSetting,
    SettingChanged,
)
from stele.domain.names import NodeState
from stele.domain.registry_entry import Domain
from stele.domain.requests.memory import GENERATIONS
from stele.domain.requests.rows import FINISHED
from stele.domain.services.facts import MAX_SERVICES
from stele.domain.tables import Json, compared, sorted_values
from stele.domain.topology.limits import LIMITS

MAX_SETTING_CHARS: Final = 65_536
COUNTS: Final = {count.name: count for count in (GENERATIONS, FINISHED, *LIMITS)}
"""The settings that mean something, by name; others are kept for whoever reads them."""


def enable_features(context: Context, command: EnableFeatures) -> Decision:
    """Seed 004: a feature is enabled once all members and services support it, and never disabled again."""
    known = len(context.image.services.services)
    if known >= MAX_SERVICES:
        return Rejection(
            "too_many_services",
            f"{known} services are known, which is the limit: others that run may not be among them.",
            "Forget those that never come back first: `stele features forget`.",
        )
    for feature in command.features:
        refused = bad_name("feature", feature)
        if refused is not None:
            return refused
        nodes, services = _nodes_without(context, feature), _services_without(context, feature)
        if nodes or services:
            return Rejection(
                "feature_not_supported",
                f"Feature '{feature}' is not supported by {', '.join(nodes + services)}.",
                "Upgrade these first. A service that never comes back: `stele features forget`.",
                {"feature": feature, "nodes": ",".join(nodes), "services": ",".join(services)},
            )
    fresh = tuple(sorted({*command.features} - {*context.image.features.enabled}))
    return (FeaturesEnabled(fresh),) if fresh else ()


def set_setting(context: Context, command: SetSetting) -> Decision:
    refused = bad_name("setting", command.name)
    if refused is not None:
        return refused
    if len(command.value) > MAX_SETTING_CHARS:
        return Rejection(
            "setting_too_large",
            f"The value has {len(command.value)} characters; at most {MAX_SETTING_CHARS} fit.",
            "Store it elsewhere and keep a reference here.",
        )
    count = COUNTS.get(command.name)
    if count is not None and command.value and not count.accepts(command.value):
        return Rejection(
            "bad_setting",
            f"'{count.name}' is '{command.value[:40]}'; it counts {count.counts}.",
            f"Use a whole number from 1 to {count.most}, or '' for the default, {count.default}.",
        )
    return (SettingChanged(command.name, command.value),)


def features_enabled(image: FeaturesImage, fact: FeaturesEnabled) -> FeaturesImage:
    return FeaturesImage(tuple(sorted({*image.enabled, *fact.features})), image.settings)


def setting_changed(image: FeaturesImage, fact: SettingChanged) -> FeaturesImage:
    settings = image.settings
    if fact.value:
        settings = settings.set(fact.name, fact.value)
    elif fact.name in settings:
        settings = settings.delete(fact.name)
    return FeaturesImage(image.enabled, settings)


def to_facts(image: FeaturesImage) -> Iterable[FeaturesFact]:
    if image.enabled:
        yield FeaturesEnabled(image.enabled)
    for name in sorted(image.settings):
        yield SettingChanged(name, image.settings[name])


def view(image: FeaturesImage) -> Json:
    return {"features": list(image.enabled), "settings": dict(sorted(image.settings.items()))}


def diff(before: FeaturesImage, after: FeaturesImage) -> Json:
    added, removed, changed = compared(before.settings, after.settings)
    return {
        "features": {
            "added": sorted({*after.enabled} - {*before.enabled}),
            "removed": sorted({*before.enabled} - {*after.enabled}),
        },
        "settings": {
            "added": {name: after.settings[name] for name in added},
            "removed": {name: before.settings[name] for name in removed},
            "changed": {
                name: {"before": before.settings[name], "after": after.settings[name]}
                for name in changed
            },
        },
    }


def _nodes_without(context: Context, feature: str) -> list[str]:
    """Excluded nodes serve nothing any more, so what they support does not matter."""
    nodes = context.image.membership.nodes
    members = (nodes[n] for n in sorted(nodes) if nodes[n].state is not NodeState.LEFT)
    return [
        node.node_id
        for node in members
        if not node.excluded and feature not in node.supported_features
    ]


def _services_without(context: Context, feature: str) -> list[str]:
    services = sorted_values(context.image.services.services)
    return [s.service_id for s in services if feature not in s.supported_features]


DOMAIN = Domain(
    name="features",
    empty=FeaturesImage(),
    decide={EnableFeatures: enable_features, SetSetting: set_setting},
    apply={FeaturesEnabled: features_enabled, SettingChanged: setting_changed},
    enables={FeaturesEnabled: lambda fact: fact.features},
    to_facts=to_facts,
    view=view,
    diff=diff,
)
