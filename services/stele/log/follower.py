"""Following the log: a process's own image, always at some epoch, and those who wait for the next one."""

import asyncio
from collections.abc import Callable
from typing import Final

from stele.domain.facts import Epoch
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.log.fold import Fold
from stele.log.port import Log, Record

Listener = Callable[[Image, Epoch], None]

WAIT_S: Final = 30.0


class LogFollower:
    """Keeps ``image`` as new as the log that arrives; calls listeners once for each epoch, in order.

    A record that cannot be read stops it for good: ``failure`` then says why, and health turns bad.
    """

    def __init__(self, log: Log, image: Image = EMPTY_FOR_FOLLOWERS, next_offset: int = 0) -> None:
        self.fold = Fold(image, next_offset)
        self.failure: Exception | None = None
        self._log = log
        self._listeners: list[Listener] = []
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[Image]]] = []

    @property
    def image(self) -> Image:
        return self.fold.image

    def listen(self, listener: Listener) -> None:
        """Have ``listener(image, epoch)`` called in the event loop after each epoch from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        self._log.follow(self.fold.next_offset, self._on_records, self._fail)

    async def wait_for_epoch(self, epoch: int, timeout_s: float = WAIT_S) -> Image:
        """The image at ``epoch`` or later. Raises TimeoutError, or the reader's failure."""
        try:
            return await self._wait(lambda: self.image.epoch >= epoch, timeout_s)
        except TimeoutError:
            text = f"epoch {epoch} did not come within {timeout_s:g} s; at epoch {self.image.epoch}"
            raise TimeoutError(text) from None

    async def wait_for_end(self, timeout_s: float = WAIT_S) -> Image:
        """The image once everything that was in the log at the call is applied (level ``barrier``)."""
        async with asyncio.timeout(timeout_s):
            end = await self._log.end_offset()
            return await self._wait(lambda: self.fold.next_offset >= end, timeout_s)

    async def _wait(self, passed: Callable[[], bool], timeout_s: float) -> Image:
        if self.failure is not None:
            raise self.failure
        if passed():
            return self.image
        future: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        self._waiters.append((passed, future))
        return await asyncio.wait_for(future, timeout_s)

    def _on_records(self, records: list[Record]) -> None:
        if self.failure is not None:
            return
        try:
            for offset, value in records:
                epoch = self.fold.offer(offset, value)
                if epoch is not None:
                    self._tell(epoch)
        except Exception as error:  # whatever stops a reader must be seen, not swallowed
            self._fail(error)
        self._wake()

    def _tell(self, epoch: Epoch) -> None:
        for listener in self._listeners:
            listener(self.image, epoch)

    def _wake(self) -> None:
        for passed, future in self._waiters:
            if not future.done() and passed():
                future.set_result(self.image)
        self._waiters = [(p, f) for p, f in self._waiters if not f.done()]

    def _fail(self, error: Exception) -> None:
        self.failure = error
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
        self._waiters = []
