"""Spans of time as people write them: ``90s``, ``1h30m``, ``2 d``."""

from __future__ import annotations

import re
from typing import Final

from stele.cli.errors import UsageError

_PART: Final = re.compile(r"(\d{1,13}(?:\.\d{1,3})?)\s*(ms|s|m|h|d)\s*")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
MOST_S: Final = 100 * 365 * 86_400
"""A century, so that no sum of times passes what clocks show."""


def span_ms(text: str, option: str) -> int:
    """Milliseconds, one at least; ``option`` is where it stands, for people. Raises UsageError."""
    parts = _PART.findall(text)
    whole = "".join(match[0] for match in _PART.finditer(text))
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not parts or whole != text.lstrip() or not 0 < seconds <= MOST_S:
        raise UsageError(
            f"{option} '{text}' is no span of time.", f"For example {option} 90s, 30m, 2h or 1d12h."
        )
    return max(1, round(1000 * seconds))
