"""Settings of the log that are whole numbers."""

from collections.abc import Mapping

import msgspec


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """A setting from 1 to ``most``; ``default`` while it is not set, or set to what is no such number."""

    name: str
    counts: str
    """What it counts, for people."""
    default: int
    most: int

    def accepts(self, text: str) -> bool:
        plain = text.isascii() and text.isdigit() and len(text) <= len(str(self.most))
        return plain and 1 <= int(text) <= self.most

    def of(self, settings: Mapping[str, str]) -> int:
        text = settings.get(self.name)
        return int(text) if text is not None and self.accepts(text) else self.default
