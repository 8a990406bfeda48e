"""The HTTP side of metadata-log: commands in, state, epochs and differences out."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec
from confluent_kafka import KafkaException
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.domain.commands import Outcome
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.requests import not_taken
from stele.domain.view import diff, epoch_view, view
from stele.log.errors import OffsetGoneError
from stele.log.history import EpochNotFoundError
from stele.metadata_log.api import CommandRequest, outcome_answer
from stele.metadata_log.openapi import openapi
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import BusyError, ReaderStoppedError, Writer
from stele.runtime.http import Direct, ErrorCode, HttpError, JsonResponse, parse_json
from stele.runtime.http_errors import ErrorBody

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""An answer with several epochs ends after so much; the client asks on from there."""
STREAM_EPOCHS: Final = 100
"""Epochs fetched at once for a stream."""
PING_S: Final = 10
RETRY_AFTER_S: Final = 1
LEVELS: Final = ("local", "barrier", "linearizable")

NOT_TAKEN: Final = {
    not_taken.BUSY: 503,
    not_taken.BAD_ID: 400,
    not_taken.FROM_THE_FUTURE: 400,
    not_taken.REUSED: 422,
    not_taken.EXPIRED: 410,
    not_taken.NOT_FOUNDED: 412,
    not_taken.OLDER_CLUSTER: 412,
    not_taken.OTHER_LOG: 412,
}
"""HTTP status of a command that was not taken."""

Handler = Callable[[Request], Awaitable[Response]]


class Api:
    """The handlers; they hold nothing but the writer and the last view that was asked for."""

    def __init__(self, writer: Writer, settings: MetadataLogSettings) -> None:
        self._writer = writer
        self._timeout_s = settings.request_timeout_s
        self._seen: tuple[bytes, bytes] = (b"", b"")

    def routes(self) -> list[Route]:
        """All routes of the service but those that every service has."""
        return [
            Route("/v1/state", self._guarded(self.get_state), methods=["GET"]),
            Route("/v1/epochs", self._guarded(self.get_epochs), methods=["GET"]),
            Route("/v1/epochs/{epoch}", self._guarded(self.get_epoch), methods=["GET"]),
            Route("/v1/diff", self._guarded(self.get_diff), methods=["GET"]),
            Route("/openapi.json", self.get_openapi, methods=["GET"]),
        ]

    def direct(self) -> dict[str, Direct]:
        """The path that takes commands."""
        return {"/v1/commands": self.post_command}

    async def post_command(self, body: bytes) -> Response:
        envelope = parse_json(body, CommandRequest).envelope()
        try:
            if not self._writer.ready:
                await self._writer.wait_ready(self._timeout_s)
            outcome = await self._writer.commit(envelope, self._timeout_s)
        except TimeoutError as error:
            raise HttpError(
                504,
                "outcome_unknown",
                f"No outcome within {self._timeout_s:g} s; whether the command is applied is unknown.",
                hint="Ask again with the same request_id: it takes effect at most once.",
                details={"request_id": envelope.request_id},
            ) from error
        except ReaderStoppedError as error:
            raise _stopped(error, {"request_id": envelope.request_id}) from error
        except BusyError as error:
            return _busy(error)
        if not outcome.taken:
            return _not_taken(outcome)
        return JsonResponse(outcome_answer(outcome), status_code=200 if outcome.applied else 409)

    async def get_state(self, request: Request) -> Response:
        level = request.query_params.get("level", LEVELS[0])
        if level not in LEVELS:
            raise _invalid(f"level is '{level}'", f"Use one of {', '.join(LEVELS)}.")
        image = await self._image(level)
        asked = _number(request, "epoch", -1)
        if asked >= 0:
            image = await self._writer.history.image_at(asked)
        return Response(self._view(image), media_type="application/json")

    async def get_epochs(self, request: Request) -> Response:
        newest = self._writer.image.epoch
        if "text/event-stream" in request.headers.get("accept", ""):
            resumed = request.headers.get("last-event-id", "")
            first = _parse("Last-Event-ID", resumed) + 1 if resumed else None
            first = _number(request, "from", newest + 1) if first is None else first
            return self._stream(max(1, first), request)
        first = _number(request, "from", 1)
        limit = _number(request, "limit", DEFAULT_LIMIT)
        if not 1 <= limit <= MAX_LIMIT:
            raise _invalid(f"limit is {limit}", f"Use 1 to {MAX_LIMIT}.")
        found = await self._writer.history.epochs(max(1, first), limit)
        return Response(_json_list(found), media_type="application/json")

    async def get_epoch(self, request: Request) -> Response:
        number = _parse("epoch", request.path_params["epoch"])
        found = await self._writer.history.epoch(number)
        return JsonResponse(epoch_view(found))

    async def get_diff(self, request: Request) -> Response:
        if "from" not in request.query_params:
            raise _invalid("'from' is missing", "Send from=<epoch before> and to=<epoch after>.")
        before = await self._writer.history.image_at(_number(request, "from", 0))
        after = await self._writer.history.image_at(
            _number(request, "to", self._writer.image.epoch)
        )
        return JsonResponse(diff(before, after))

    async def get_openapi(self, _: Request) -> Response:
        return JsonResponse(openapi())

    def _guarded(self, handler: Handler) -> Handler:
        """The service's own errors as HTTP errors."""

        async def guarded(request: Request) -> Response:
            try:
                if not self._writer.ready:
                    await self._writer.wait_ready(self._timeout_s)
                return await handler(request)
            except EpochNotFoundError as error:
                raise HttpError(
                    404,
                    "epoch_not_found",
                    str(error),
                    hint="Ask for an epoch in that span, or wait until it has come.",
                    details={"epoch": error.epoch, "oldest": error.oldest, "newest": error.newest},
                ) from error
            except OffsetGoneError as error:
                raise HttpError(
                    404,
                    "epoch_truncated",
                    str(error),
                    hint="The topic was truncated behind a snapshot; ask the catch-up service.",
                ) from error
            except BusyError as error:
                return _busy(error)
            except ReaderStoppedError as error:
                raise _stopped(error, {}) from error
            except TimeoutError as error:
                raise HttpError(
                    504,
                    ErrorCode.TIMED_OUT,
                    "The log's end was not reached in time.",
                    hint="Try again, or read at level local.",
                ) from error
            except KafkaException as error:
                raise HttpError(
                    503,
                    ErrorCode.UNAVAILABLE,
                    f"Kafka does not answer: {error}.",
                    hint="Try again, or read at level local.",
                ) from error

        guarded.__name__ = handler.__name__
        return guarded

    async def _image(self, level: str) -> Image:
        match level:
            case "barrier":
                return await self._writer.barrier(self._timeout_s)
            case "linearizable":
                return await self._writer.linearizable(self._timeout_s)
            case _:
                return self._writer.image

    def _view(self, image: Image) -> bytes:
        if self._seen[0] != image.state_id:
            self._seen = (image.state_id, msgspec.json.encode(view(image)))
        return self._seen[1]

    def _stream(self, first: int, request: Request) -> Response:
        history = self._writer.history
        if first <= history.oldest:
            raise EpochNotFoundError(first, history.oldest + 1, history.newest)
        events = self._events(first, request.app.state.stopping)
        return EventSourceResponse(events, ping=PING_S, send_timeout=self._timeout_s)

    async def _events(self, epoch: int, stopping: asyncio.Event) -> AsyncIterator[ServerSentEvent]:
        """Epochs from ``epoch`` on for ever, each once and in order; a slow reader holds no memory."""
        stopped = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                moved = self._writer.moved
                for found in await self._writer.history.epochs(epoch, STREAM_EPOCHS):
                    epoch = found.epoch + 1
                    yield _event(found)
                if epoch > self._writer.image.epoch:
                    if self._writer.failure is not None:
                        return
                    waiting = asyncio.create_task(moved.wait())
                    await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
        finally:
            stopped.cancel()


def _event(epoch: Epoch) -> ServerSentEvent:
    data = msgspec.json.encode(epoch_view(epoch)).decode()
    return ServerSentEvent(data=data, id=str(epoch.epoch), event="epoch")


def _json_list(epochs: list[Epoch]) -> bytes:
    """A JSON array, cut off at ``MAX_ANSWER_BYTES`` but never empty when there is something."""
    parts, size_bytes = list[bytes](), 0
    for epoch in epochs:
        part = msgspec.json.encode(epoch_view(epoch))
        if parts and size_bytes + len(part) > MAX_ANSWER_BYTES:
            break
        parts.append(part)
        size_bytes += len(part)
    return b"[" + b",".join(parts) + b"]"


def _not_taken(outcome: Outcome) -> Response:
    """The command was not decided; the error says why and what to do."""
    why = outcome.rejection
    assert why is not None
    body = ErrorBody(
        why.code, why.message, why.hint, {**why.details, "request_id": outcome.request_id}
    )
    headers = {"Retry-After": str(RETRY_AFTER_S)} if why.code == not_taken.BUSY else None
    return JsonResponse(body, status_code=NOT_TAKEN.get(why.code, 400), headers=headers)


def _busy(error: BusyError) -> Response:
    """503: nothing was done, so the caller may try again with any request id."""
    body = ErrorBody("busy", f"The service is busy: {error}.", "Try again in a moment.", {})
    return JsonResponse(body, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})


def _stopped(error: ReaderStoppedError, details: dict[str, str]) -> HttpError:
    return HttpError(
        503,
        "reader_stopped",
        f"This process cannot read the log any further: {error}",
        hint="Ask another instance. A command that was under way keeps its request id.",
        details=details,
    )


def _invalid(what: str, hint: str) -> HttpError:
    return HttpError(400, ErrorCode.INVALID_REQUEST, f"Not understood: {what}.", hint=hint)


def _number(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name)
    return default if given is None else _parse(name, given)


def _parse(name: str, text: str) -> int:
    """A number of at most 18 digits: epochs are 64-bit."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _invalid(f"{name} is '{text[:40]}'", "Send a whole number, 0 or more.")
    return int(text)
