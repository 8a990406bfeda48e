"""The HTTP API of metadata-log: commands in, state, epochs and differences out."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from confluent_kafka import KafkaException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.domain import not_taken
from stele.domain.commands import Outcome
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.snapshot import state_hash
from stele.domain.staging import of_names
from stele.domain.view import diff
from stele.log.errors import OffsetGoneError
from stele.log.history import EpochNotFoundError, with_decoded
from stele.log.kafka import TopicMissingError
from stele.metadata_log.openapi import openapi, query_parameters
from stele.metadata_log.pages import PageHandlers, dump_of, state_parts
from stele.metadata_log.questions import (
    ImageReads,
    fact_names,
    id_of,
    invalid,
    known_alone,
    limit_of,
    number,
    parse,
    resumed_after,
)
from stele.metadata_log.schema_request import Agreement, SchemaOutcome, SchemaRequest
from stele.metadata_log.searching import Searching, as_json
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.streams import Streams
from stele.metadata_log.writer import BusyError, ReaderStoppedError, Writer
from stele.runtime.answers.common import LASTING, ErrorBody
from stele.runtime.answers.metadata_log import CommandRequest, outcome_answer
from stele.runtime.callers import Caller, Callers, require_actor
from stele.runtime.http import (
    ErrorCode,
    HttpAnswer,
    HttpError,
    JsonResponse,
    PlainHandler,
    json_answer,
    parse_json,
)
from stele.runtime.http_encoding import etag_of, not_modified, respond, respond_in_pieces
from stele.runtime.starting import is_lasting

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
RETRY_LATER: Final = (("retry-after", "1"),)

NOT_TAKEN: Final = {
    not_taken.BUSY: 503,
    not_taken.BAD_ID: 400,
    not_taken.FROM_THE_FUTURE: 400,
    not_taken.REUSED: 422,
    not_taken.EXPIRED: 410,
    not_taken.NOT_FOUNDED: 412,
    not_taken.OLDER_CLUSTER: 412,
    not_taken.OTHER_LOG: 412,
    not_taken.FROZEN: 423,
    not_taken.SINGLE_USER: 423,
}
"""HTTP status by the code of a command that was not taken."""

Handler = Callable[[Request], Awaitable[Response]]


class MetadataLogApi:
    """The request handlers and their shared state.

    ``topic_trouble`` returns what is wrong with the log's topic. Without ``callers`` no request is
    authenticated. Without ``agreement`` no change of the schema waits for agreement.
    """

    def __init__(
        self,
        writer: Writer,
        settings: MetadataLogSettings,
        topic_trouble: Callable[[], str] = lambda: "",
        callers: Callers | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        self._writer = writer
        self._topic_trouble = topic_trouble
        self._callers = callers
        self._agreement = agreement
        self._timeout_s = settings.request_timeout_s
        self._reads = ImageReads(writer, self._timeout_s)
        self._pages = PageHandlers(self._reads)
        self._streams = Streams(writer, self._timeout_s)
        self._searching = Searching(writer)
        self._encoding = asyncio.Lock()
        self._comparing = asyncio.Lock()
        self._hash: tuple[bytes, str] = (b"", "")

    def routes(self) -> list[Route]:
        """Return the routes of this service, without those that every service has."""
        handlers: dict[str, Handler] = {
            **self._pages.handlers(),
            "/v1/state": self.get_state,
            "/v1/dump": self.get_dump,
            "/v1/epochs": self.get_epochs,
            **self._searching.handlers(),
            "/v1/epochs/{epoch}": self.get_epoch,
            "/v1/changes": self._streams.changes,
            "/v1/diff": self.get_diff,
        }
        return [
            *(
                Route(path, self._guarded(path, handler), methods=["GET"])
                for path, handler in handlers.items()
            ),
            Route("/openapi.json", self.get_openapi, methods=["GET"]),
        ]

    def plain(self) -> dict[str, PlainHandler]:
        """Return the handlers that run before Starlette: the path that takes commands."""
        return {"/v1/commands": self.post_command, "/v1/schema": self.post_schema}

    async def post_command(self, body: bytes, authorization: str) -> HttpAnswer:
        """Decide a command and answer with its outcome.

        The token is checked before the body is parsed.
        """
        caller = None if self._callers is None else self._callers.who(authorization)
        request = parse_json(body, CommandRequest)
        if caller is None:
            require_actor(request.actor, authorization)
        return await self._commit(request, caller)

    async def post_schema(self, body: bytes, authorization: str) -> HttpAnswer:
        """Decide a batch of schema changes, and wait until the live members have applied them."""
        caller = None if self._callers is None else self._callers.who(authorization)
        # Parsing CQL of a thousand tables takes a second, in which commands must not wait.
        asked = parse_json(body, SchemaRequest)
        if caller is None:
            require_actor(asked.actor, authorization)
        request = await asyncio.to_thread(asked.command_request)
        return await self._commit(request, caller, None if asked.no_wait else asked.wait_s)

    async def _commit(
        self, request: CommandRequest, caller: Caller | None, wait_s: int | None = None
    ) -> HttpAnswer:
        """Commit a command. With ``wait_s``, wait for the agreement of the members."""
        envelope = request.envelope(self._writer.horizon_ms, caller)
        details = {"request_id": envelope.request_id}
        try:
            if not self._writer.ready:
                await self._writer.wait_ready(self._timeout_s)
            outcome = await self._writer.commit(envelope, self._timeout_s)
        except TimeoutError as error:
            raise HttpError(
                504,
                "outcome_unknown",
                f"No outcome within {self._timeout_s:g} s; whether the command is applied is unknown."
                + (f" {trouble}" if (trouble := self._topic_trouble()) else ""),
                hint="Ask again with the same request_id: it takes effect at most once.",
                details=details,
            ) from error
        except ReaderStoppedError as error:
            raise _stopped(error, details) from error
        except BusyError as error:
            return json_answer(_busy(error), 503, RETRY_LATER)
        if not outcome.taken:
            return _not_taken(outcome)
        answer = outcome_answer(outcome)
        if self._agreement is not None and wait_s is not None and outcome.applied:
            found = await self._agreement(outcome.epoch, wait_s)
            if found is not None:
                fields = msgspec.structs.asdict(answer)
                answer = SchemaOutcome(**fields, agreed=found.agreed, behind=found.behind)
        return json_answer(answer, 200 if outcome.applied else 409)

    async def get_state(self, request: Request) -> Response:
        """Return the whole state, encoded in pieces, because it may have hundreds of thousands
        of rows.
        """
        image = await self._reads.image(request)
        etag = etag_of(image.state_id)
        unchanged = not_modified(request, etag)
        if unchanged is not None:
            return unchanged
        parts = state_parts(image, await self._hash_of(image))
        return respond_in_pieces(request, parts, self._encoding, etag)

    async def get_dump(self, request: Request) -> Response:
        """Return the whole state in the archive's snapshot format, to start another log from."""
        image = await self._reads.image(request)
        async with self._comparing:
            body = await asyncio.to_thread(dump_of, image)
        return Response(body, media_type="application/octet-stream")

    async def get_epochs(self, request: Request) -> Response:
        if "text/event-stream" in request.headers.get("accept", ""):
            return await self._streams.epochs(request)
        # Malformed parameters are refused here too.
        resumed_after(request)
        id_of(request, "state_id")
        first = number(request, "from", 1)
        limit = limit_of(request, DEFAULT_LIMIT, MAX_LIMIT)
        names = fact_names(request)
        found = self._writer.history.winners(max(1, first), limit)
        body = await with_decoded([winner async for winner in found], partial(_page, names))
        return await respond(request, body)

    async def get_epoch(self, request: Request) -> Response:
        asked = parse("epoch", request.path_params["epoch"])
        found = await self._writer.history.winner(asked)
        (body,) = await with_decoded([found], as_json)
        return await respond(request, body)

    async def get_diff(self, request: Request) -> Response:
        if "from" not in request.query_params:
            raise invalid("'from' is missing", "Send from=<epoch before> and to=<epoch after>.")
        before = await self._reads.image_at(number(request, "from", 0))
        after = await self._reads.image_at(number(request, "to", self._writer.image.epoch))
        async with self._comparing:
            body = await asyncio.to_thread(lambda: msgspec.json.encode(diff(before, after)))
        return await respond(request, body)

    async def get_openapi(self, _: Request) -> Response:
        return JsonResponse(openapi())

    def _guarded(self, path: str, handler: Handler) -> Handler:
        """Wrap a handler: reject unknown parameters and other logs, and map the service's errors
        to HTTP errors.
        """
        known = query_parameters().get(path, frozenset())

        async def guarded(request: Request) -> Response:
            known_alone(request, known)
            try:
                if not self._writer.ready:
                    await self._writer.wait_ready(self._timeout_s)
                _check_log(id_of(request, "log_id"), self._writer.image.log_id)
                return await handler(request)
            except EpochNotFoundError as error:
                raise _not_found(error) from error
            except OffsetGoneError as error:
                raise HttpError(
                    404,
                    "epoch_truncated",
                    str(error),
                    hint="The topic was truncated behind a snapshot; ask the catch-up service.",
                ) from error
            except BusyError as error:
                return JsonResponse(_busy(error), 503, dict(RETRY_LATER))
            except ReaderStoppedError as error:
                raise _stopped(error, {}) from error
            except TimeoutError as error:
                raise HttpError(
                    504,
                    ErrorCode.TIMED_OUT,
                    "The log's end was not reached in time.",
                    hint="Try again, or read at level local.",
                ) from error
            except TopicMissingError as error:
                raise self._missing(error) from error
            except KafkaException as error:
                raise HttpError(
                    503,
                    ErrorCode.UNAVAILABLE,
                    f"Kafka does not answer: {error}.",
                    hint="Try again, or read at level local.",
                ) from error

        guarded.__name__ = handler.__name__
        return guarded

    def _missing(self, error: TopicMissingError) -> HttpError:
        """Return the error for a missing topic.

        Before the first record is read, the topic may not exist yet.

        Every service creates it at its start.
        """
        was_read = self._writer.image.epoch > 0
        hint = "Bring Kafka's data back, or see what can be had: `stele recover --dry-run`."
        return HttpError(
            503,
            "topic_missing",
            f"Nothing is decided: {error}.",
            hint=hint if was_read else "It is made by each service that starts. Try again.",
            details={LASTING: was_read},
        )

    async def _hash_of(self, image: Image) -> str:
        """Return the state hash.

        It is computed in a thread, one at a time, and reused for the same state.
        """
        async with self._comparing:
            if self._hash[0] != image.state_id:
                self._hash = (image.state_id, await asyncio.to_thread(state_hash, image))
            return self._hash[1]


def _page(names: frozenset[str], epochs: list[Epoch]) -> bytes:
    """Encode epochs, with facts of these names only, if any are given."""
    if names:
        epochs = [
            msgspec.structs.replace(each, facts=tuple(of_names(each.facts, names)))
            for each in epochs
        ]
    return b"[" + b",".join(as_json(epochs)) + b"]"


def _check_log(asked: bytes, log_id: bytes) -> None:
    """Raise HttpError when the client's state is of another log.

    Later epochs would not fit that state, and an epoch that does not exist yet would return
    nothing.
    """
    if asked and asked != log_id:
        raise HttpError(
            410,
            "other_history",
            f"This log is {log_id.hex()}, and not {asked.hex()}.",
            hint="Read the state again, and continue from its epoch.",
            details={"log_id": log_id.hex()},
        )


def _not_found(error: EpochNotFoundError) -> HttpError:
    details = {"epoch": error.epoch, "oldest": error.oldest, "newest": error.newest}
    if not error.is_deleted:
        hint = "Ask for an epoch in that span, or wait until the log reaches it."
        return HttpError(404, "epoch_not_found", str(error), hint=hint, details=details)
    hint = "Ask for a later one. `stele restore STORE` makes an archive of what a store has."
    stores = ",".join(error.stores)
    return HttpError(
        404, "epoch_deleted", str(error), hint=hint, details={**details, "stores": stores}
    )


def _not_taken(outcome: Outcome) -> HttpAnswer:
    """Answer for a command that was not decided. The error states why and what to do."""
    why = outcome.rejection
    assert why is not None
    body = ErrorBody(
        why.code, why.message, why.hint, {**why.details, "request_id": outcome.request_id}
    )
    headers = RETRY_LATER if why.code == not_taken.BUSY else ()
    return json_answer(body, NOT_TAKEN.get(why.code, 400), headers)


def _busy(error: BusyError) -> ErrorBody:
    """Return the body of a 503.

    The command was not taken, so any request id may be used for a retry.
    """
    return ErrorBody("busy", f"The service is busy: {error}.", "Try again in a moment.", {})


def _stopped(error: ReaderStoppedError, details: dict[str, str]) -> HttpError:
    return HttpError(
        503,
        "reader_stopped",
        f"This process cannot read the log any further: {error}",
        hint="Ask another instance. A command that was under way keeps its request id.",
        details={**details, LASTING: is_lasting(error.failure)},
    )
