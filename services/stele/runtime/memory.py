"""Python's cycle collector, kept off what lives long.

Images, marks and recent records are immutable trees: reference counts free them, and the collector finds
nothing there however often it walks them. With its usual thresholds it walked them all the time: at 128 clients
commits by HTTP fell from 6,000 to 3,900 a second while the log grew by some hundred thousand epochs, and the
slowest took 0.3 s.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (20_000, 20, 50)
"""New objects before a collection of the youngest; collections of one generation before one of the next."""


def collect_seldom() -> None:
    """To be called once at the start of a process."""
    gc.set_threshold(*THRESHOLDS)


def settle() -> None:
    """What is there now stays: collect once, and leave it out of every later collection."""
    gc.collect()
    gc.freeze()
