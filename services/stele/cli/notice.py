"""Telling people that something cannot be reached while it is tried again."""

from __future__ import annotations

import time
from typing import Final, TextIO

AGAIN_EVERY_S: Final = 5.0
"""How often that is said where lines cannot be written over."""
WIDTH: Final = 200


class RetryNotice:
    """One line that is written over on a terminal; elsewhere a line at once and then now and again."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._is_terminal = out is not None and out.isatty()
        self._told_at_s = float("-inf")
        self._open = False

    def tell(self, why: str, attempt: int, left_s: float) -> None:
        """The ``attempt``-th try failed; it goes on for ``left_s``."""
        now_s = time.monotonic()
        if self._out is None:
            return
        line = f"{why}; trying again ({attempt}), for {max(left_s, 0):.0f} s more"
        if self._is_terminal:
            self._out.write(f"\r\x1b[K{line[:WIDTH]}")
            self._open = True
        elif now_s - self._told_at_s >= AGAIN_EVERY_S:
            self._out.write(f"stele: {line}\n")
            self._told_at_s = now_s
        self._out.flush()

    def end(self) -> None:
        """It was answered, or given up: the line goes."""
        if self._open and self._out is not None:
            self._out.write("\r\x1b[K")
            self._out.flush()
        self._open = False
