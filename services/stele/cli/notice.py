"""Telling people that something cannot be reached while it is tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

AGAIN_EVERY_S: Final = 5.0
"""How often that is said where lines cannot be written over."""
WIDTH: Final = 200
SILENT_AFTER_S: Final = 1.0
"""After which an address that took the question and says nothing is named, and named again."""


class RetryNotice:
    """One line that is written over on a terminal; elsewhere a line at once and then now and again."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._is_terminal = out is not None and out.isatty()
        self._told_at_s = float("-inf")
        self._open = False
        self._lock = threading.Lock()

    @contextmanager
    def waiting(self, url: str, limit_s: float) -> Iterator[None]:
        """While one address is asked: say that it is silent, which a failed try says only after ``limit_s``."""
        answered = threading.Event()
        if self._out is None:
            yield
            return

        def watch() -> None:
            began_s = time.monotonic()
            while not answered.wait(SILENT_AFTER_S):
                silent_s = time.monotonic() - began_s
                with self._lock:
                    if not answered.is_set():
                        self._say(
                            f"{url} has not answered for {silent_s:.0f} s;"
                            f" waiting for {max(limit_s - silent_s, 0):.0f} s more"
                        )

        watcher = threading.Thread(target=watch, name="notice", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            with self._lock:
                answered.set()

    def tell(self, why: str, attempt: int, left_s: float) -> None:
        """The ``attempt``-th try failed; it goes on for ``left_s``."""
        if self._out is not None:
            with self._lock:
                self._say(
                    f"{why.rstrip('.')}; trying again ({attempt}), for {max(left_s, 0):.0f} s more"
                )

    def _say(self, line: str) -> None:
        assert self._out is not None
        now_s = time.monotonic()
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
