"""Notices while a command runs: retries of an unreachable service, and progress."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic  # the simulator sets time.monotonic to its own clock
from typing import Final, TextIO

from stele.words.units import duration

AGAIN_EVERY_S: Final = 5.0
"""Interval of notices where lines cannot be overwritten."""
WIDTH: Final = 200
SILENT_AFTER_S: Final = 1.0
"""Time after which a silent address is named, and the interval after that."""
TICK_S: Final = 2.0
"""Interval of progress, and the time after which it is shown first."""


class RetryNotice:
    """A notice: one overwritten line on a terminal, elsewhere lines at intervals."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._is_terminal = out is not None and out.isatty()
        self._told_at_s = float("-inf")
        self._open = False
        self._lock = threading.Lock()

    @contextmanager
    def waiting(self, url: str, limit_s: float) -> Iterator[None]:
        """Print that an address is silent, during a request to it.

        A failed attempt would report that only after ``limit_s``.
        """
        answered = threading.Event()
        if self._out is None:
            yield
            return

        def watch() -> None:
            began_s = monotonic()
            while not answered.wait(SILENT_AFTER_S):
                silent_s = monotonic() - began_s
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
        """Print that attempt number ``attempt`` failed and that retries continue for ``left_s``."""
        if self._out is not None:
            with self._lock:
                self._say(
                    f"{why.rstrip('.')}; trying again ({attempt}), for {max(left_s, 0):.0f} s more"
                )

    def _say(self, line: str) -> None:
        assert self._out is not None
        now_s = monotonic()
        if self._is_terminal:
            self._out.write(f"\r\x1b[K{line[:WIDTH]}")
            self._open = True
        elif now_s - self._told_at_s >= AGAIN_EVERY_S:
            self._out.write(f"stele: {line}\n")
            self._told_at_s = now_s
        self._out.flush()

    def end(self) -> None:
        """Remove the line: the request was answered or given up."""
        if self._open and self._out is not None:
            self._out.write("\r\x1b[K")
            self._out.flush()
        self._open = False


class ProgressLine:
    """The progress of one operation: one overwritten line on a terminal, else a line at times.

    Where the share that is done is known, the line has the time left.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._is_terminal = self._out.isatty()
        self._began_s = self._told_at_s = monotonic()
        self._lock = threading.Lock()

    def passed_s(self) -> float:
        """Return the time since the operation began."""
        return monotonic() - self._began_s

    def tell(self, line: str, share: float = 0.0) -> None:
        """Show the progress. ``share`` is the part that is done, between 0 and 1; 0: unknown."""
        now_s = monotonic()
        if share > 0 and now_s > self._began_s:
            line += f", about {duration((now_s - self._began_s) * (1 - share) / share)} to go"
        with self._lock:
            if self._is_terminal:
                self._write(f"\r\x1b[K{line[:WIDTH]}")
            elif now_s - self._told_at_s >= AGAIN_EVERY_S:
                self._told_at_s = now_s
                self._write(f"stele: {line}\n")

    def running(self, what: str) -> AbstractContextManager[None]:
        """Show for how long the block has run, where its share is not known."""
        return self.shown(lambda: f"{what}, for {duration(self.passed_s())}")

    @contextmanager
    def shown(self, line: Callable[[], str]) -> Iterator[None]:
        """Show a line that changes while the block runs."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(TICK_S):
                self.tell(line())

        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            self.end()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Remove the line while the block prints."""
        with self._lock:
            self.end()
            yield

    def end(self) -> None:
        """Remove the line from a terminal."""
        if self._is_terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
