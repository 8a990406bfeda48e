"""Features and cluster-wide settings: facts and commands."""

import msgspec
from immutables import Map

from stele.domain.base import Command, Fact


class FeaturesEnabled(Fact, frozen=True):
    features: tuple[str, ...]


class SettingChanged(Fact, frozen=True):
    """A cluster-wide setting; an empty value removes it. ``unsafe``: it gives up a guarantee, by force."""

    name: str
    value: str
    unsafe: bool = False


FeaturesFact = FeaturesEnabled | SettingChanged


class SetSetting(Command, frozen=True, tag="set_setting"):
    """A cluster-wide setting, at most 64 KiB; an empty value removes it. What is unsafe needs ``force``."""

    name: str
    value: str
    force: bool = False


FeaturesCommand = SetSetting


class FeaturesImage(msgspec.Struct, frozen=True):
    enabled: tuple[str, ...] = ()
    settings: Map[str, str] = Map()
