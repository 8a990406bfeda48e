"""Epochs as server-sent events: whole (/v1/epochs) or as the changes of each (/v1/changes)."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import Image, without_memory
from stele.domain.view import delta_view, epoch_view
from stele.log.history import EpochNotFoundError, with_decoded
from stele.metadata_log.questions import id_of, number, resumed_after
from stele.metadata_log.writer import Writer
from stele.runtime.answers.history import ChangesAnswer
from stele.runtime.http import HttpError

STREAM_EPOCHS: Final = 100
"""Epochs fetched at once for a stream."""
SHARED_EVENTS: Final = 256
LARGEST_SHARED_BYTES: Final = 64 * 1024
PING_S: Final = 10

_JSON: Final = msgspec.json.Encoder(order="deterministic")


class Streams:
    """Streams begin at ``from``, after ``Last-Event-ID``, or with the next epoch.

    A client that sends the ``state_id`` of the epoch before is rejected if the history differs. The
    log was then recovered without the state that the client has.
    """

    def __init__(self, writer: Writer, timeout_s: float) -> None:
        self._writer = writer
        self._timeout_s = timeout_s
        self._encoded: OrderedDict[int, bytes] = OrderedDict()

    async def epochs(self, request: Request) -> Response:
        """Stream each epoch with all of its facts."""
        first, after = await self._begin(request)
        return self._answer(self._events(first, after, request, epoch_event, self._encoded))

    async def changes(self, request: Request) -> Response:
        """Stream each epoch with the sections of the diff that it touches."""
        first, after = await self._begin(request)
        before = await self._writer.history.image_at(min(first - 1, self._writer.image.epoch))
        changes = _Changes(before, self._writer)
        if first > before.epoch + 1:
            raise EpochNotFoundError(first, 1, before.epoch + 1)
        return self._answer(self._events(first, after, request, changes.event))

    async def _begin(self, request: Request) -> tuple[int, bytes]:
        """Return the first epoch, and the state id to compare when the epoch before it arrives;
        empty: none.

        Raises ReaderStoppedError, because another instance must serve a stream that would end at
        once here.
        """
        self._writer.raise_failure()  # a reader of lost epochs could not notice it
        first, after = self._first(request), id_of(request, "state_id")
        if not after or first - 1 > self._writer.image.epoch:
            return first, after
        if await self._state_id_of(first - 1) != after:
            raise HttpError(
                410,
                "other_history",
                f"Epoch {first - 1} is not the state {after.hex()}: the log was recovered without that.",
                hint="Read the state again, and follow from its epoch.",
                details={"epoch": first - 1},
            )
        return first, b""

    async def _state_id_of(self, epoch: int) -> bytes:
        image = self._writer.image
        if epoch == image.epoch:
            return image.state_id
        return (await self._writer.history.epoch(epoch + 1)).prev_state_id

    def _first(self, request: Request) -> int:
        history = self._writer.history
        after = resumed_after(request)
        first = number(request, "from", history.newest + 1) if after is None else after + 1
        first = max(1, first)
        if first <= history.oldest:
            raise history.missing(first, history.oldest + 1)
        return first

    def _is_after_all(self, epoch: int) -> bool:
        """Return whether the history ends before this epoch.

        After a record was refused, the image has its epoch but the history does not.
        """
        return epoch > self._writer.history.newest

    def _answer(self, events: AsyncIterator[bytes]) -> Response:
        return EventSourceResponse(events, ping=PING_S, send_timeout=self._timeout_s)

    async def _events(
        self,
        epoch: int,
        after: bytes,
        request: Request,
        event: Callable[[Epoch], ServerSentEvent],
        encoded: OrderedDict[int, bytes] | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield epochs from ``epoch`` on, forever, each once and in order.

        A slow reader holds no memory. The stream ends when ``after`` turns out not to be the state
        before; the next request is then rejected. Streams of one kind share the cache ``encoded``,
        because a thousand followers need the newest epoch at once.
        """
        stopping: asyncio.Event = request.app.state.stopping
        stopped = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                # Take the event before reading. An epoch that arrives meanwhile sets this one, so
                # none is missed.
                moved = self._writer.moved
                if after and self._writer.image.epoch >= epoch - 1:
                    if await self._state_id_of(epoch - 1) != after:
                        return
                    after = b""
                while encoded is not None and epoch in encoded:
                    yield encoded[epoch]
                    epoch += 1
                async with aclosing(self._writer.history.winners(epoch, STREAM_EPOCHS)) as winners:
                    async for found in winners:
                        epoch = found.epoch + 1
                        content = await with_decoded([found], partial(_content, event))
                        if encoded is not None:
                            _remember(encoded, found.epoch, content)
                        yield content
                if self._is_after_all(epoch):
                    if self._writer.failure is not None:
                        return
                    waiting = asyncio.create_task(moved.wait())
                    try:
                        await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        waiting.cancel()
        finally:
            stopped.cancel()


def _content(event: Callable[[Epoch], ServerSentEvent], epochs: list[Epoch]) -> bytes:
    (epoch,) = epochs
    return event(epoch).encode()


def _remember(encoded: OrderedDict[int, bytes], epoch: int, content: bytes) -> None:
    if len(content) <= LARGEST_SHARED_BYTES:
        encoded[epoch] = content
        if len(encoded) > SHARED_EVENTS:
            encoded.popitem(last=False)


class _Changes:
    """Folds epochs beside the stream, so that each epoch is compared with the image before it."""

    def __init__(self, image: Image, writer: Writer) -> None:
        self._image = without_memory(image)
        self._writer = writer

    def event(self, epoch: Epoch) -> ServerSentEvent:
        before, newest = self._image, self._writer.image
        at_end = newest.epoch == epoch.epoch
        self._image = without_memory(newest) if at_end else evolve(before, epoch)
        answer = ChangesAnswer(
            epoch=epoch.epoch,
            state_id=epoch.state_id.hex(),
            command=epoch.command,
            request_id=epoch.request_id,
            actor=epoch.actor,
            at_ms=epoch.at_ms,
            changes=delta_view(before, self._image, epoch),
        )
        data = _JSON.encode(answer).decode()
        return ServerSentEvent(data=data, id=str(epoch.epoch), event="changes")


def epoch_event(epoch: Epoch) -> ServerSentEvent:
    data = msgspec.json.encode(epoch_view(epoch)).decode()
    return ServerSentEvent(data=data, id=str(epoch.epoch), event="epoch")
