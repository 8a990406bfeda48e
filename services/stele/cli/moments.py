"""Moments as people write them: ``2026-11-22``, ``2026-11-22 08:30``, or so long before now: ``2h``."""

from __future__ import annotations

from datetime import datetime

from stele.cli.errors import UsageError
from stele.cli.spans import span_ms


def moment_ms(text: str, option: str, now_ms: int) -> int:
    """Milliseconds since 1970; without a time zone it is the local one. ``option`` is where it stands, for
    people. Raises UsageError.
    """
    try:
        return now_ms - span_ms(text, option)
    except UsageError:
        pass
    try:
        return round(1000 * datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{option} '{text}' is no moment.",
            f"For example {option} 2h, {option} 2026-11-22 or {option} '2026-11-22 08:30'.",
        ) from error
