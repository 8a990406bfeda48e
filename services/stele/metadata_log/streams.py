"""Epochs as server-sent events: whole (/v1/epochs) or as what each changed (/v1/changes)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import Image, without_memory
from stele.domain.view import delta_view, epoch_view
from stele.log.history import EpochNotFoundError
from stele.metadata_log.questions import number, parse
from stele.metadata_log.writer import Writer
from stele.runtime.answers.history import ChangesAnswer

STREAM_EPOCHS: Final = 100
"""Epochs fetched at once for a stream."""
PING_S: Final = 10

_JSON: Final = msgspec.json.Encoder(order="deterministic")


class Streams:
    """Streams begin at ``from``, or after ``Last-Event-ID``, or with the next epoch."""

    def __init__(self, writer: Writer, timeout_s: float) -> None:
        self._writer = writer
        self._timeout_s = timeout_s

    def epochs(self, request: Request) -> Response:
        """Each epoch with all of its facts."""
        first = self._first(request)
        return self._answer(self._events(first, request, epoch_event))

    async def changes(self, request: Request) -> Response:
        """Each epoch with the sections of the diff that it touches."""
        first = self._first(request)
        before = await self._writer.history.image_at(min(first - 1, self._writer.image.epoch))
        changes = _Changes(before, self._writer)
        if first > before.epoch + 1:
            raise EpochNotFoundError(first, 1, before.epoch + 1)
        return self._answer(self._events(first, request, changes.event))

    def _first(self, request: Request) -> int:
        history = self._writer.history
        resumed = request.headers.get("last-event-id", "")
        after = parse("Last-Event-ID", resumed) + 1 if resumed else None
        first = number(request, "from", history.newest + 1) if after is None else after
        first = max(1, first)
        if first <= history.oldest:
            raise EpochNotFoundError(first, history.oldest + 1, history.newest)
        return first

    def _answer(self, events: AsyncIterator[ServerSentEvent]) -> Response:
        return EventSourceResponse(events, ping=PING_S, send_timeout=self._timeout_s)

    async def _events(
        self, epoch: int, request: Request, event: Callable[[Epoch], ServerSentEvent]
    ) -> AsyncIterator[ServerSentEvent]:
        """Epochs from ``epoch`` on for ever, each once and in order; a slow reader holds no memory."""
        stopping: asyncio.Event = request.app.state.stopping
        stopped = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                moved = self._writer.moved
                for found in await self._writer.history.epochs(epoch, STREAM_EPOCHS):
                    epoch = found.epoch + 1
                    yield event(found)
                if epoch > self._writer.image.epoch:
                    if self._writer.failure is not None:
                        return
                    waiting = asyncio.create_task(moved.wait())
                    await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
        finally:
            stopped.cancel()


class _Changes:
    """Folds beside the stream, so that each epoch is compared with the image before it."""

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
