"""Callers that wait for the reader: for an offset, or in vain."""

import asyncio


class ReaderStoppedError(Exception):
    """The log cannot be read any further, so no command can be decided.

    The text is the reason. ``failure`` is the reader's error.
    """

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


class OffsetWaiters:
    """The callers of one event loop that wait for the reader to reach an offset."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def reached(self, offset: int, now: int) -> None:
        """Return when all records before ``offset`` were read.

        ``now`` is the reader's offset at the call. Raises the error of ``stop``.
        """
        if now < offset:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((offset, future))
            await future

    def read_to(self, now: int) -> None:
        """Release the callers that wait for this offset or an earlier one: all records before it
        were read.
        """
        if not self._waiting:
            return
        for offset, future in self._waiting:
            if offset <= now and not future.done():
                future.set_result(None)
        self._waiting = [(o, f) for o, f in self._waiting if not f.done()]

    def stop(self, error: Exception) -> None:
        """Raise ``error`` in all callers, because nothing more will be read."""
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
