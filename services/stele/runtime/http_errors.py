"""The one shape of every HTTP error: `{"code", "message", "hint", "details"}`.

The shell's own codes are in `ErrorCode`; a service adds its closed set and raises `HttpError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stele.domain.base import Rejection
from stele.runtime.answers.errors import Detail, ErrorBody
from stele.runtime.logs import get_logger

CLIENT_LEFT: Final = 499
"""What proxies name it; HTTP has no status for it."""

log = get_logger(__name__)

T = TypeVar("T")


class ErrorCode(StrEnum):
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    HEAD_TOO_LARGE = "head_too_large"
    MALFORMED_HTTP = "malformed_http"
    MALFORMED_JSON = "malformed_json"
    INVALID_REQUEST = "invalid_request"
    UNAVAILABLE = "unavailable"
    TIMED_OUT = "timed_out"
    HTTP_ERROR = "http_error"
    INTERNAL = "internal"


class HttpError(Exception):
    """Raise in a handler to answer with an error. `status` is the HTTP status, 400 to 599."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str = "",
        details: Mapping[str, Detail] | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = ErrorBody(str(code), message, hint, dict(details or {}))

    @classmethod
    def refused(cls, status: int, why: Rejection) -> HttpError:
        """What the core says is not to be."""
        return cls(status, why.code, why.message, hint=why.hint, details=why.details)


class JsonResponse(Response):
    """A response encoded by msgspec: structs, dataclasses, dicts."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return msgspec.json.encode(content)


async def read_json(request: Request, kind: type[T]) -> T:
    """The body as a typed value. Raises HttpError 400 when it is no JSON, or misfits."""
    return parse_json(await request.body(), kind)


def parse_json(body: bytes, kind: type[T]) -> T:
    """As ``read_json``, for a body that is there already."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise HttpError(
            400,
            ErrorCode.INVALID_REQUEST,
            f"The body does not fit: {error}.",
            hint="Correct the field that the message names.",
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(
            400,
            ErrorCode.MALFORMED_JSON,
            f"The body is not JSON: {error}.",
            hint="Send one JSON value in UTF-8.",
            details={"size_bytes": len(body)},
        ) from error


async def answer_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return JsonResponse(error.body, status_code=error.status, headers=dict(error.headers))


async def answer_starlette_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors: no such path, method not allowed, and what its parsers raise."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    details: dict[str, Detail] = {"path": path, "method": method}
    match error.status_code:
        case 404:
            body = ErrorBody(
                ErrorCode.NOT_FOUND, f"There is nothing at {path}.", "Check the path.", details
            )
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            details["allowed"] = sorted(part.strip() for part in allowed.split(",") if part.strip())
            body = ErrorBody(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"{path} does not take {method}.",
                f"Use {allowed or 'another method'}.",
                details,
            )
        case _:
            body = ErrorBody(ErrorCode.HTTP_ERROR, str(error.detail), "", details)
    return JsonResponse(body, status_code=error.status_code, headers=error.headers)


async def answer_client_that_left(_: Request, __: Exception) -> Response:
    """It went in the midst of its upload: nobody reads this, the metrics alone show it."""
    return Response(status_code=CLIENT_LEFT)


async def answer_internal_error(request: Request, error: Exception) -> Response:
    """A bug of ours: the caller learns that, the log has the trace."""
    path, method = request.url.path, request.method
    log.error("request failed", path=path, error=repr(error))
    return JsonResponse(internal_error({"path": path, "method": method}), status_code=500)


def internal_error(details: Mapping[str, Detail]) -> ErrorBody:
    """What a caller is told of a bug of ours."""
    return ErrorBody(
        ErrorCode.INTERNAL,
        "The service failed on this request.",
        "Report it with the service's log; whether a change took effect is unknown.",
        dict(details),
    )
