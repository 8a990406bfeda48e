"""Text that others wrote, for a terminal: what would act there, or hide what stands beside it, is shown by
number.

A reason may hold any character. A terminal takes some of them as orders: to clear the screen, to move the
cursor, to set the title; others turn the direction of what follows. See Unicode's technical report 36, 3.2.
"""

import re
from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

HIDDEN: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff]"
)


def visible(text: str) -> str:
    """Tabs and ends of lines stay. JSON with such characters in a string stays the same JSON."""
    return HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class VisibleConsole(Console):
    """A console whose styles and cursor are its own alone."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not HIDDEN.search(segment.text):
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)
