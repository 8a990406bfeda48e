"""Who waits for a result: each is told once, in the turn in which it is known, or that its time is over."""

import asyncio
import time
from collections.abc import Callable
from math import inf

from stele.domain.commands import Outcome
from stele.log.flight import Reply

Result = Outcome | Exception
Tell = Callable[[Result], None]


class ReaderStoppedError(Exception):
    """The log cannot be read any further, so nothing can be decided. The text says why; ``failure`` is what the
    reader met.
    """

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Callers:
    """Lives in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Tell, float] = {}
        """Until when, by the monotonic clock."""
        self._at_offset: list[tuple[int, asyncio.Future[None]]] = []

    def ask(self, ask: Callable[[Reply], None], tell: Tell, timeout_s: float) -> None:
        """``tell`` is told what is replied to ``ask``. Raises what ``ask`` raises: then nothing is told."""
        waiting = self._waiting

        def reply(outcome: Outcome) -> None:
            if waiting.pop(tell, None) is not None:
                tell(outcome)

        assert tell not in waiting, "one for each call"
        waiting[tell] = time.monotonic() + timeout_s
        try:
            ask(reply)
        except BaseException:
            waiting.pop(tell, None)
            raise

    async def outcome(self, ask: Callable[[Reply], None]) -> Outcome:
        """What is replied to ``ask``; whoever awaits it sets the limit."""
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def tell(result: Result) -> None:
            if future.done():
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.ask(ask, tell, inf)
        try:
            return await future
        finally:
            self._waiting.pop(tell, None)

    async def reached(self, offset: int, now: int) -> None:
        """Return when all before ``offset`` was read; ``now`` is how far it is at the call."""
        if now < offset:
            future: asyncio.Future[None] = self._loop.create_future()
            self._at_offset.append((offset, future))
            await future

    def read_to(self, now: int) -> None:
        """All before this offset was read."""
        if not self._at_offset:
            return
        for offset, future in self._at_offset:
            if offset <= now and not future.done():
                future.set_result(None)
        self._at_offset = [(o, f) for o, f in self._at_offset if not f.done()]

    def look_at_clock(self) -> None:
        """Tell those whose time is over."""
        self._tell(TimeoutError(), time.monotonic())

    def stop(self, error: Exception) -> None:
        """There will be no results."""
        self._tell(error, inf)
        for _, future in self._at_offset:
            if not future.done():
                future.set_exception(error)
        self._at_offset = []

    def _tell(self, error: Exception, until_s: float) -> None:
        for tell in [tell for tell, end_s in self._waiting.items() if end_s <= until_s]:
            del self._waiting[tell]
            tell(error)
