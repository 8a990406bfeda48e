"""Support of features by nodes and services, as they declared it in the log.

Source: ScyllaDB, pull request #15196, "Cluster features on raft".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, bad_name
from stele.domain.image import Image
from stele.domain.model.features import (
    FeaturesEnabled,
    FeaturesFact,
    FeaturesImage,
    SetSetting,
    SettingChanged,
)
from stele.domain.model.services import MAX_SERVICES
from stele.domain.model.settings import KNOWN
from stele.domain.names import NodeState
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, compared, sorted_values


def check_supported(image: Image, features: Iterable[str]) -> Rejection | None:
    """Return why features cannot be enabled, or None.

    Every node and service must support them, running or not.
    """
    known = len(image.services.services)
    # At the limit, running services may be missing from the list, so their support is unknown.
    if known >= MAX_SERVICES:
        return Rejection(
            "too_many_services",
            f"{known} services are known, which is the limit: others that run may not be among them.",
            "Forget those that never come back first: `stele features forget`.",
        )
    for feature in features:
        refused = bad_name("feature", feature)
        if refused is not None:
            return refused
        nodes, services = _nodes_without(image, feature), _services_without(image, feature)
        if nodes or services:
            return Rejection(
                "feature_not_supported",
                f"Feature '{feature}' is not supported by {', '.join(nodes + services)}.",
                "Upgrade these first. A service that never comes back: `stele features forget`.",
                {"feature": feature, "nodes": ",".join(nodes), "services": ",".join(services)},
            )
    return None


def _nodes_without(image: Image, feature: str) -> list[str]:
    """Return the nodes without the feature.

    Excluded nodes serve nothing, so they are not counted.
    """
    nodes = image.membership.nodes
    members = (nodes[n] for n in sorted(nodes) if nodes[n].state is not NodeState.LEFT)
    return [
        node.node_id
        for node in members
        if not node.excluded and feature not in node.supported_features
    ]


def _services_without(image: Image, feature: str) -> list[str]:
    services = sorted_values(image.services.services)
    return [s.service_id for s in services if feature not in s.supported_features]


# The domain of features and settings, as the registry needs it (docs/design.md, rules 5 and 16).


MAX_SETTING_CHARS: Final = 65_536


def set_setting(context: Context, command: SetSetting) -> Decision:
    required(bad_name("setting", command.name))
    if len(command.value) > MAX_SETTING_CHARS:
        return Rejection(
            "setting_too_large",
            f"The value has {len(command.value)} characters; at most {MAX_SETTING_CHARS} fit.",
            "Store it elsewhere and keep a reference here.",
        )
    setting = KNOWN.get(command.name)
    # Settings that this build does not read are stored for builds that do.
    if setting is None or not command.value:
        return (SettingChanged(command.name, command.value),)
    if not setting.accepts(command.value):
        return Rejection(
            "bad_setting",
            f"'{setting.name}' is '{command.value[:40]}'; it means: {setting.counts}.",
            f"Use {setting.wanted()}, or '' for the default, {setting.default}.",
        )
    unsafe = setting.is_unsafe(command.value)
    if unsafe and not command.force:
        return Rejection(
            "unsafe_setting",
            f"With '{setting.name}' at {command.value} acknowledged writes may be lost.",
            "Say `force` if you accept that; the history keeps that it was unsafe.",
            {"setting": setting.name, "value": command.value},
        )
    return (SettingChanged(command.name, command.value, unsafe),)


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


DOMAIN = Domain(
    name="features",
    empty=FeaturesImage(),
    decide={SetSetting: set_setting},
    apply={FeaturesEnabled: features_enabled, SettingChanged: setting_changed},
    enables={FeaturesEnabled: lambda fact: fact.features},
    to_facts=to_facts,
    view=view,
    diff=diff,
)
