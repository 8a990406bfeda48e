"""Follow the log: keep a process's image, and wake the tasks that wait for an epoch."""

import asyncio
from collections.abc import Callable, Set
from typing import Final, NamedTuple

from stele.domain.evolve import Delta
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.registry import KNOWN_FEATURES
from stele.log.errors import OtherHistoryError
from stele.log.fold import BEGINNING_FOR_FOLLOWERS, Fold, Start
from stele.log.port import HasRoom, Log, always
from stele.log.reader import OnStray, TopicReader


class Floor(NamedTuple):
    """An epoch that was certainly in the log. A process below it is not up to date.

    ``who`` names the source of this evidence; by default it is this process's earlier
    acknowledgement. ``log_id`` is the epoch's log id as 32 hex digits, or empty.
    """

    epoch: int
    state_id: bytes
    who: str = "this process acknowledged"
    log_id: str = ""

    def is_older(self, log_id: bytes) -> bool:
        """Return whether ``log_id`` is an earlier incarnation; log ids are ordered by time."""
        return log_id.hex() < self.log_id

    def below(self, log_id: bytes, epoch: int) -> str:
        """Return why ``epoch`` cannot be the log's end; empty when it may be."""
        if self.is_older(log_id):
            return (
                f"The log was read to epoch {epoch} of log {log_id.hex()}; {self.who} epoch {self.epoch} of log"
                f" {self.log_id} before, so its end is not known yet."
            )
        if epoch >= self.epoch:
            return ""
        return (
            f"The log was read to epoch {epoch}; {self.who} epoch {self.epoch} before, so its end is not"
            " known yet."
        )

    def check(self, offset: int, log_id: bytes, epoch: int, state_id: bytes) -> None:
        """Raise OtherHistoryError when the floor's epoch has another state id here.

        An older log may have other epochs, without which it was recovered.
        """
        if self.epoch == epoch and self.state_id != state_id and not self.is_older(log_id):
            raise OtherHistoryError(
                offset,
                f"epoch {epoch} has state id {state_id.hex()}; {self.who} {self.state_id.hex()}."
                " The log has lost winners: restore the topic from a copy that has them, or `stele recover`.",
                self.epoch,
            )


Listener = Callable[[Image, Delta], None]
OnWinner = Callable[[int, bytes, Epoch], None]
"""Called with the offset, the bytes and the epoch of each winner, before the listeners."""

WAIT_S: Final = 30.0


class LogFollower:
    """Keeps ``image`` up to date with the log; calls listeners once for each epoch, in order.

    A record that it cannot read, such as one that needs an unsupported feature, stops it
    permanently. ``failure`` then holds the error, and the process becomes unhealthy.
    """

    def __init__(
        self,
        log: Log,
        start: Start = BEGINNING_FOR_FOLLOWERS,
        floor: Floor | None = None,
        on_stray: OnStray = lambda offset, name: None,
        on_winner: OnWinner = lambda offset, value, epoch: None,
        has_room: HasRoom = always,
        supported: Set[str] = KNOWN_FEATURES,
    ) -> None:
        self.fold = Fold(*start, supported=supported)
        self.failure: Exception | None = None
        self.failed = asyncio.Event()
        """Set when ``failure`` is set."""
        self._floor = floor
        self._on_winner = on_winner
        self._reader = TopicReader(
            log, self.fold, self._take, self._wake, self.fail, on_stray, has_room
        )
        self._listeners: list[Listener] = []
        self._waiters = dict[asyncio.Future[Image], Callable[[], bool]]()

    @property
    def image(self) -> Image:
        return self.fold.image

    @property
    def log_id(self) -> bytes:
        """Id of the log that is followed; ``NO_LOG`` until its founding was read."""
        return self.fold.chain.log_id

    @property
    def trouble(self) -> str:
        """Why the image may not match the log; empty when it does."""
        return self._reader.trouble or self._below_floor()

    @property
    def is_suspended(self) -> bool:
        """True while nothing may be acknowledged; see ``TopicReader``."""
        return self._reader.is_suspended

    @property
    def is_at_end(self) -> bool:
        """True when everything up to the end at the last look was read, whatever the floor is."""
        end = self._reader.end
        return end is not None and self.fold.next_offset >= end and not self._reader.is_suspended

    def state_id_of(self, epoch: int) -> bytes | None:
        """Return the state id of one of the last epochs; None when it is not kept."""
        return self.fold.chain.state_id_of(epoch)

    def listen(self, listener: Listener) -> None:
        """Call ``listener(image, delta)`` in the event loop after each epoch from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        self._reader.start()

    def stop(self) -> None:
        """Stop reading. The creator of the log closes it."""
        self._reader.stop()

    async def wait_for_epoch(self, epoch: int, timeout_s: float = WAIT_S) -> Image:
        """Wait for ``epoch``; return the image at it or later.

        Raises TimeoutError, or the reader's failure.
        """
        try:
            return await self._wait(lambda: self.image.epoch >= epoch, timeout_s)
        except TimeoutError:
            text = f"epoch {epoch} did not come within {timeout_s:g} s; at epoch {self.image.epoch}"
            raise TimeoutError(text) from None

    async def wait_for_end(self, timeout_s: float = WAIT_S) -> Image:
        """Wait until everything that was in the log at the call is applied (level ``barrier``).

        The end comes from a look that also found the anchor. An end below the floor does not count,
        so the wait continues. Raises TimeoutError, or the reader's failure.
        """
        if self.failure is not None:
            raise self.failure
        async with asyncio.timeout(timeout_s):
            end = (await self._reader.look()).end
            return await self._wait(lambda: self._has_read(end), timeout_s)

    def _has_read(self, end: int) -> bool:
        return (
            self.fold.next_offset >= end
            and not self._reader.is_suspended
            and not self._below_floor()
        )

    def _below_floor(self) -> str:
        return "" if self._floor is None else self._floor.below(self.log_id, self.image.epoch)

    async def _wait(self, passed: Callable[[], bool], timeout_s: float) -> Image:
        if self.failure is not None:
            raise self.failure
        if passed():
            return self.image
        future: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        self._waiters[future] = passed
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:  # if no record arrives, the waiter is removed only here
            del self._waiters[future]

    def _take(self, offset: int, value: bytes) -> None:
        before = self.fold.image
        epoch = self.fold.offer(offset, value)
        if epoch is not None:
            # Check the floor before any listener acts on the epoch of another history.
            if self._floor is not None:
                self._floor.check(offset, epoch.log_id, epoch.epoch, epoch.state_id)
            self._on_winner(offset, value, epoch)
            delta = Delta(before, epoch)
            for listener in self._listeners:
                listener(self.image, delta)

    def _wake(self) -> None:
        for future, passed in self._waiters.items():
            if not future.done() and passed():
                future.set_result(self.image)

    def fail(self, error: Exception) -> None:
        """Stop reading with ``error``, and pass it to all tasks that wait."""
        self._reader.stop()
        self.failure = error
        self.failed.set()
        for future in self._waiters:
            if not future.done():
                future.set_exception(error)
