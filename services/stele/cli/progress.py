"""How far something is that takes minutes; on standard error, since standard output has its result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic  # in this process the simulator sets time.monotonic to its own clock
from typing import Final

from rich.live import Live
from rich.text import Text

from stele.cli.output import duration, error_console

EVERY_S: Final = 15.0
"""Between two lines where none can be written over."""
MOST_NAMED: Final = 3
"""Of those that run side by side."""


class Steps:
    """What is done, and what runs: the next ones in their order, as many as there are side by side."""

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
        """``3 of 9 seeds in 12.0 s, running: 4``."""
        left = [*self._left]
        running = left[: self._jobs]
        named = ", ".join(running[:MOST_NAMED]) or "none"
        more = f" and {len(running) - MOST_NAMED} more" if len(running) > MOST_NAMED else ""
        took = duration(monotonic() - self._began_s)
        return f"{self._total - len(left)} of {self._total} {self._what} in {took}, running: {named}{more}"

    @contextmanager
    def shown(self) -> Iterator[None]:
        """In one line of a terminal, that goes in the end; elsewhere by a line now and then."""
        out = error_console()
        if not out.is_terminal:
            with _every(lambda: out.print(self.line(), markup=False, soft_wrap=True)):
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
        """The line makes room for what is printed in the block."""
        if self._live is not None:
            self._live.stop()
        yield
        if self._live is not None:
            self._live.start(refresh=True)


@contextmanager
def _every(tell: Callable[[], None]) -> Iterator[None]:
    """Call it every ``EVERY_S`` until the block ends."""
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
