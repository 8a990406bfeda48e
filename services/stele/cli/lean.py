"""httpx without a command line of its own, which brings click, pygments and progress bars: a third of its time.

httpx does without where those are not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _missing(module: str) -> Iterator[None]:
    """For the length of the block a module that nobody has imported yet is not there."""
    modules: dict[str, Any] = sys.modules
    if module in modules:
        yield
        return
    modules[module] = None
    try:
        yield
    finally:
        del modules[module]


with _missing("httpx._main"):
    import httpx

__all__ = ["httpx"]
