"""Progress of steps that take minutes, as one line on standard error."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Final

from stele.cli.notice import ProgressLine
from stele.words.units import duration

MOST_NAMED: Final = 3
"""Limit of the names of parallel steps."""


class ProgressSteps:
    """Finished and running steps. The running ones are the next in order, one for each job."""

    def __init__(self, what: str, names: Iterable[str], jobs: int) -> None:
        self._what = what
        self._jobs = max(1, jobs)
        self._left = dict.fromkeys(names)
        self._total = len(self._left)
        self._shown = ProgressLine()

    def done(self, name: str) -> None:
        self._left.pop(name, None)

    def line(self) -> str:
        """Return a line: ``3 of 9 seeds in 12.0 s, running: 4``."""
        left = [*self._left]
        running = left[: self._jobs]
        named = ", ".join(running[:MOST_NAMED]) or "none"
        more = f" and {len(running) - MOST_NAMED} more" if len(running) > MOST_NAMED else ""
        took = duration(self._shown.passed_s())
        return f"{self._total - len(left)} of {self._total} {self._what} in {took}, running: {named}{more}"

    def shown(self) -> AbstractContextManager[None]:
        """Show the progress in one line of a terminal, removed at the end; elsewhere at times."""
        return self._shown.shown(self.line)

    def aside(self) -> AbstractContextManager[None]:
        """Hide the line while the block prints."""
        return self._shown.aside()
