"""What is refused before any handler sees it, and the limits that it broke."""

from __future__ import annotations

from typing import Final

from stele.runtime.answers.errors import ErrorBody
from stele.runtime.http_errors import ErrorCode

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a request before its body: cursors, the longest that clients of ours send, have some hundred."""
MAX_HEADERS: Final = 200
ARRIVAL_S: Final = 60.0
"""In which a request must have arrived once it began, and the first of a connection once that is there."""
LENGTH_DIGITS: Final = 19
"""Of a length: a number of bytes."""


def head_too_large() -> ErrorBody:
    return ErrorBody(
        ErrorCode.HEAD_TOO_LARGE,
        f"The request's path and headers have more than {MAX_HEAD_BYTES} bytes.",
        "Send less; what is long goes into the body.",
        {"limit_bytes": MAX_HEAD_BYTES},
    )


def too_many_headers() -> ErrorBody:
    return ErrorBody(
        ErrorCode.HEAD_TOO_LARGE,
        f"The request has more than {MAX_HEADERS} headers.",
        "Send less; what is long goes into the body.",
        {"limit_headers": MAX_HEADERS},
    )


def not_to_be_taken(headers: list[tuple[bytes, bytes]], upgrades: bool) -> ErrorBody | None:
    """Why a request with this head is refused before its body is looked at.

    The parser takes the body of one that offers another protocol for the next request.
    """
    lengths = [value for name, value in headers if name == b"content-length"]
    if any(len(value) > LENGTH_DIGITS for value in lengths):
        message, hint = "No body has a length of so many digits.", "Send its number of bytes."
    elif upgrades and (lengths or any(name == b"transfer-encoding" for name, _ in headers)):
        message = "A request with a body may not offer another protocol by the header upgrade."
        hint = "Send HTTP/1.1 without upgrade; Java's HttpClient does with version(HTTP_1_1)."
    else:
        return None
    return ErrorBody(ErrorCode.MALFORMED_HTTP, message, hint, {})


def too_many() -> ErrorBody:
    return ErrorBody(
        ErrorCode.UNAVAILABLE,
        "As many connections are being answered as there may be.",
        "Ask another instance, or again in some seconds.",
        {},
    )


def arrives_too_slowly(limit_s: float) -> ErrorBody:
    return ErrorBody(
        ErrorCode.TIMED_OUT,
        f"The request did not arrive within {limit_s:g} s.",
        "Send it again at once; it was not looked at.",
        {"limit_s": limit_s},
    )
