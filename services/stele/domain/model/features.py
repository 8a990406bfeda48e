"""Facts, commands and the image of features and cluster-wide settings."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

import msgspec
from immutables import Map

from stele.domain.base import Command, Fact


class FeaturesEnabled(Fact, frozen=True):
    features: tuple[str, ...]


class SettingChanged(Fact, frozen=True):
    """A cluster-wide setting; an empty value removes it.

    ``unsafe``: it gives up a guarantee, by force.
    """

    name: str
    value: str
    unsafe: bool = False


FeaturesFact = FeaturesEnabled | SettingChanged


class SetSetting(Command, frozen=True, tag="set_setting"):
    """Set a cluster-wide setting of at most 64 KiB; an empty value removes it.

    An unsafe value needs ``force``.
    """

    name: str
    value: str
    force: bool = False


FeaturesCommand = SetSetting


class FeaturesImage(msgspec.Struct, frozen=True):
    enabled: tuple[str, ...] = ()
    settings: Map[str, str] = Map()


# Types of settings in the log: whole numbers, words of a closed set, and numbers of copies.


class _Setting(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    counts: str
    """Description for people: the thing that the setting counts, or its purpose."""

    def is_unsafe(self, text: str) -> bool:
        """Return True for a value that gives up a guarantee and is accepted only with force."""
        return False


class Count(_Setting, frozen=True, kw_only=True):
    """A setting from ``least`` to ``most``. An unset or invalid one has the value ``default``."""

    default: int
    most: int
    least: int = 1

    def accepts(self, text: str) -> bool:
        plain = text.isascii() and text.isdigit() and len(text) <= len(str(self.most))
        return plain and self.least <= int(text) <= self.most

    def of(self, settings: Mapping[str, str]) -> int:
        # A value from another build may be invalid here. The default then applies.
        text = settings.get(self.name)
        return int(text) if text is not None and self.accepts(text) else self.default

    def wanted(self) -> str:
        """Return a description of the accepted values, for people."""
        return f"a whole number from {self.least} to {self.most}"


class Choice(_Setting, frozen=True, kw_only=True):
    """A setting that is one of ``options``. An unset or invalid one has the value ``default``.

    ``unsafe`` are those of ``is_unsafe``.
    """

    default: str
    options: tuple[str, ...]
    unsafe: Set[str] = frozenset()

    def accepts(self, text: str) -> bool:
        return text in self.options

    def of(self, settings: Mapping[str, str]) -> str:
        text = settings.get(self.name, self.default)
        return text if self.accepts(text) else self.default

    def wanted(self) -> str:
        """Return a description of the accepted values, for people."""
        return f"one of {', '.join(self.options)}"

    def is_unsafe(self, text: str) -> bool:
        return text in self.unsafe


class Copies(_Setting, frozen=True, kw_only=True):
    """A setting that is a number of copies, in any dc or for each dc: ``3``, or ``dc1=2,dc2=1``.

    The sum is at most ``most``.
    """

    default: str
    most: int

    def parsed(self, text: str) -> dict[str, int] | None:
        """Return dc -> copies, or None for an invalid text.

        The dc is '' for copies that may be in any dc.
        """
        pairs = [part.strip().rpartition("=")[::2] for part in text.split(",")]
        found = {dc.strip(): self._number(number.strip()) for dc, number in pairs}
        plain = len(pairs) == 1 and "=" not in text
        # A dc named twice leaves fewer keys than pairs. '' is the key of a plain number only.
        if len(found) < len(pairs) or (not plain and "" in found):
            return None
        whole = all(found.values()) and sum(found.values()) <= self.most
        return found if whole else None

    def accepts(self, text: str) -> bool:
        return self.parsed(text) is not None

    def of(self, settings: Mapping[str, str]) -> dict[str, int]:
        text = settings.get(self.name, self.default)
        return self.parsed(text) or self.parsed(self.default) or {}

    def wanted(self) -> str:
        """Return a description of the accepted values, for people."""
        return f"a number such as 3, or one for each dc such as dc1=2,dc2=1, {self.most} together at most"

    def text(self, copies: Mapping[str, int]) -> str:
        """Return the copies as a setting's text, dcs sorted."""
        return ",".join(
            f"{dc}={count}" if dc else str(count) for dc, count in sorted(copies.items())
        )

    def _number(self, text: str) -> int:
        """Return the number, or 0 for any other text."""
        plain = text.isascii() and text.isdigit() and len(text) <= len(str(self.most))
        return int(text) if plain else 0


Setting = Count | Choice | Copies


# Features of messages between services and nodes beside the log. No fact depends on them.


REPORT_SOURCES: Final = "report_sources"
"""Reports of streams name the sources of the bytes. Older builds cannot read such a report."""

OF_MESSAGES: Final = frozenset({REPORT_SOURCES})
