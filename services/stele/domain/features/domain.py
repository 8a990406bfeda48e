"""Features and settings (seed 004): decided, folded, shown; entered in the registry."""

from collections.abc import Iterable
from typing import Final

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, bad_name
from stele.domain.features.facts import (
    FeaturesEnabled,
    FeaturesFact,
    FeaturesImage,
    SetSetting,
    SettingChanged,
)
from stele.domain.features.known import KNOWN
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, compared

MAX_SETTING_CHARS: Final = 65_536


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
    setting = KNOWN.get(command.name)
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
