"""Settings of the log: whole numbers, and words of a closed set."""

from collections.abc import Mapping, Set

import msgspec


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """A setting from ``least`` to ``most``; ``default`` while it is not set, or set to no such number."""

    name: str
    counts: str
    """What it counts, for people."""
    default: int
    most: int
    least: int = 1

    def accepts(self, text: str) -> bool:
        plain = text.isascii() and text.isdigit() and len(text) <= len(str(self.most))
        return plain and self.least <= int(text) <= self.most

    def of(self, settings: Mapping[str, str]) -> int:
        text = settings.get(self.name)
        return int(text) if text is not None and self.accepts(text) else self.default

    def wanted(self) -> str:
        """What it accepts, for people."""
        return f"a whole number from {self.least} to {self.most}"

    def is_unsafe(self, text: str) -> bool:
        return False


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that is one of ``options``; ``default`` while it is not set, or set to none of them.

    Those that are ``unsafe`` give up a guarantee, and are taken by force only.
    """

    name: str
    counts: str
    """What it is for, for people."""
    default: str
    options: tuple[str, ...]
    unsafe: Set[str] = frozenset()

    def accepts(self, text: str) -> bool:
        return text in self.options

    def of(self, settings: Mapping[str, str]) -> str:
        text = settings.get(self.name, self.default)
        return text if self.accepts(text) else self.default

    def wanted(self) -> str:
        """What it accepts, for people."""
        return f"one of {', '.join(self.options)}"

    def is_unsafe(self, text: str) -> bool:
        return text in self.unsafe


Setting = Count | Choice
