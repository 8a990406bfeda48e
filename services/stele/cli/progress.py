"""Progress of work that takes minutes: a line, or a bar of bytes.

It is printed on standard error, because standard output has the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic  # in this process the simulator sets time.monotonic to its own clock
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from stele.cli.output import duration, error_console, print_line

EVERY_S: Final = 15.0
"""Interval of lines where they cannot be overwritten."""
MOST_NAMED: Final = 3
"""Limit of the names of parallel steps."""


class ProgressSteps:
    """Finished and running steps. The running ones are the next in order, one for each job."""

    def __init__(self, what: str, names: Iterable[str], jobs: int) -> None:
        self._what = what
        self._jobs = max(1, jobs)
        self._left = dict.fromkeys(names)
        self._total = len(self._left)
        self._began_s = monotonic()
        self._live: Live | None = None

    def done(self, name: str) -> None:
        self._left.pop(name, None)

    def line(self) -> str:
        """Return a line: ``3 of 9 seeds in 12.0 s, running: 4``."""
        left = [*self._left]
        running = left[: self._jobs]
        named = ", ".join(running[:MOST_NAMED]) or "none"
        more = f" and {len(running) - MOST_NAMED} more" if len(running) > MOST_NAMED else ""
        took = duration(monotonic() - self._began_s)
        return f"{self._total - len(left)} of {self._total} {self._what} in {took}, running: {named}{more}"

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress in one line of a terminal, removed at the end; elsewhere at times."""
        out = error_console()
        if not out.is_terminal:
            with _every(lambda: print_line(self.line(), out)):
                yield
            return
        self._live = Live(
            get_renderable=lambda: Text(self.line(), no_wrap=True, overflow="ellipsis"),
            console=out,
            transient=True,
            redirect_stdout=False,  # what is printed there may go to a file
            redirect_stderr=False,
        )
        with self._live:
            yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the line while the block prints."""
        if self._live is not None:
            self._live.stop()
        yield
        if self._live is not None:
            self._live.start(refresh=True)


@contextmanager
def _every(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` every ``EVERY_S`` until the block ends."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(EVERY_S):
            tell()

    thread = threading.Thread(target=go_on, name="progress")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def bytes_bar(out: Console) -> Progress:
    """Return a bar that vanishes at the end. Without a terminal it is not drawn."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[eta]}"),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )
