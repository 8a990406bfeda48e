"""Sizes, durations, times and counts in readable form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

NEVER: Final = "never"


def size(size_bytes: float) -> str:
    """Return bytes in readable form: ``57.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def duration(seconds: float | None) -> str:
    """Return seconds in readable form: ``0.3 s``, ``2 min 5 s``; ``never`` for None or infinity."""
    if seconds is None or not math.isfinite(seconds):
        return NEVER
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def ago(seconds: float | None) -> str:
    """Return the time since an event: ``0.3 s ago``; ``never`` if it has not happened."""
    told = duration(seconds)
    return told if told == NEVER else f"{told} ago"


def last_heard(silent_for_s: float | None) -> str:
    """Return the age of a node's last ack: ``last heard 0.3 s ago``, or ``never heard``."""
    return "never heard" if silent_for_s is None else f"last heard {ago(silent_for_s)}"


def clock(at_ms: int) -> str:
    """Return milliseconds since 1970 as local time; empty for 0."""
    if not at_ms:
        return ""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def counted(number: int, one: str, more: str) -> str:
    """Return a count with its noun: ``1 range changes``, ``2 ranges change``."""
    return f"{number} {one if number == 1 else more}"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def joined(names: Iterable[str]) -> str:
    return " ".join(names)


# Tables of text.


def table(title: str, *columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table. Columns in ``right`` are aligned to the right."""
    found = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        found.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return found


# Other people's text made safe for a terminal: control characters are shown by number.
#
# A reason may contain any character. A terminal interprets some characters: they clear the screen,
# move the cursor or set the title. Others reverse the direction of the text after them. See Unicode
# Technical Report 36, section 3.2.


HIDDEN: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff]"
)


def visible(text: str) -> str:
    """Replace hidden characters by escapes such as ``\\u001b``; keep tabs and line ends.

    JSON with such characters in a string stays the same JSON.
    """
    return HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class VisibleConsole(Console):
    """A console that emits only its own styles and cursor movements, none from the text."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not HIDDEN.search(segment.text):
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)
