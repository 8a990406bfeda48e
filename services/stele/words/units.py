"""Sizes, durations, moments and counts for people."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Final

NEVER: Final = "never"


def size(size_bytes: float) -> str:
    """Bytes for people: ``57.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def duration(seconds: float | None) -> str:
    """Seconds for people: ``0.3 s``, ``2 min 5 s``; ``never`` when there is no number."""
    if seconds is None or not math.isfinite(seconds):
        return NEVER
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def ago(seconds: float | None) -> str:
    """How long it is since: ``0.3 s ago``; ``never`` when it has not been."""
    told = duration(seconds)
    return told if told == NEVER else f"{told} ago"


def last_heard(silent_for_s: float | None) -> str:
    """Of a node: ``last heard 0.3 s ago``, or ``never heard``."""
    return "never heard" if silent_for_s is None else f"last heard {ago(silent_for_s)}"


def clock(at_ms: int) -> str:
    """Milliseconds since 1970 as local time; empty for 0."""
    if not at_ms:
        return ""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def counted(number: int, one: str, more: str) -> str:
    """``1 range changes``, ``2 ranges change``."""
    return f"{number} {one if number == 1 else more}"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def joined(names: Iterable[str]) -> str:
    return " ".join(names)
