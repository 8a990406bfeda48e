"""Imports httpx without its own command line, which takes a third of the import time.

That command line needs click, pygments and progress bars. httpx works without them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _missing(module: str) -> Iterator[None]:
    """Hide a module inside the block, unless it was imported before."""
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
