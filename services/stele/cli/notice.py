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


class ProgressLine:
    """The progress of one operation: one overwritten line on a terminal, else a line at times.

    Where the share that is done is known, the line has the time left.
    """

    def __init__(self, out: TextIO | None = None, *, at_once: bool = False) -> None:
        """``at_once``: show the first line without a pause where there is no terminal."""
        self._out = out or sys.stderr
        self._is_terminal = self._out.isatty()
        self._is_shown = False
        self._began_s = monotonic()
        self._told_at_s = float("-inf") if at_once else self._began_s
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
                self._is_shown = True
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
        try:
            with self.repeated(line, TICK_S):
                yield
        finally:
            self.end()

    @contextmanager
    def repeated(self, line: Callable[[], str], every_s: float) -> Iterator[None]:
        """Show a line at intervals while the block runs, and leave the last one."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(every_s):
                self.tell(line())

        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Remove the line while the block prints."""
        with self._lock:
            self.end()
            yield

    def end(self) -> None:
        """Remove the line from a terminal."""
        if self._is_shown:
            self._is_shown = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class RetryNotice:
    """Shows that a service does not answer, from the first failure on. Without ``out``, nothing."""

    def __init__(self, out: TextIO | None) -> None:
        self._line = None if out is None else ProgressLine(out, at_once=True)

    @contextmanager
    def waiting(self, url: str, limit_s: float) -> Iterator[None]:
        """Show that an address is silent, during a request to it.

        A failed attempt would report that only after ``limit_s``.
        """
        if self._line is None:
            yield
            return
        began_s = monotonic()

        def silence() -> str:
            silent_s = monotonic() - began_s
            left_s = max(limit_s - silent_s, 0)
            return f"{url} has not answered for {silent_s:.0f} s; waiting for {left_s:.0f} s more"

        with self._line.repeated(silence, SILENT_AFTER_S):
            yield

    def tell(self, why: str, attempt: int, left_s: float) -> None:
        """Show that attempt number ``attempt`` failed and that retries continue for ``left_s``."""
        if self._line is not None:
            left = f"for {max(left_s, 0):.0f} s more"
            self._line.tell(f"{why.rstrip('.')}; trying again ({attempt}), {left}")

    def end(self) -> None:
        """Remove the line: the request was answered or given up."""
        if self._line is not None:
            self._line.end()
