"""Settings of the log: whole numbers, words of a closed set, and numbers of copies."""

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


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that is a number of copies, wherever they are, or one for each dc: ``3``, or ``dc1=2,dc2=1``.

    Together they are at most ``most``.
    """

    name: str
    counts: str
    """What has the copies, for people."""
    default: str
    most: int

    def parsed(self, text: str) -> dict[str, int] | None:
        """dc -> copies; for those that may be anywhere the dc is ''. None when it is no such text."""
        pairs = [part.strip().rpartition("=")[::2] for part in text.split(",")]
        found = {dc.strip(): self._number(number.strip()) for dc, number in pairs}
        plain = len(pairs) == 1 and "=" not in text
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
        """What it accepts, for people."""
        return f"a number such as 3, or one for each dc such as dc1=2,dc2=1, {self.most} together at most"

    def is_unsafe(self, text: str) -> bool:
        return False

    def text(self, copies: Mapping[str, int]) -> str:
        """The same as a setting's text, dcs sorted."""
        return ",".join(
            f"{dc}={count}" if dc else str(count) for dc, count in sorted(copies.items())
        )

    def _number(self, text: str) -> int:
        """0 for what is no number from 1 on."""
        plain = text.isascii() and text.isdigit() and len(text) <= len(str(self.most))
        return int(text) if plain else 0


Setting = Count | Choice | Copies
