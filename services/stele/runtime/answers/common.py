"""What every service answers: the one shape of an HTTP error, and the position in the log."""

from collections.abc import Sequence
from typing import Final

import msgspec

LASTING: Final = "lasting"
"""Detail of a 503: true if an operator must repair it, so that a retry does not help."""

Detail = str | int | float | bool | None | Sequence[str | int]


class ErrorBody(msgspec.Struct, frozen=True):
    """An error. ``message`` states the problem in one sentence, ``hint`` the remedy."""

    code: str
    message: str
    hint: str = ""
    details: dict[str, Detail] = {}


def code_in(content: bytes | bytearray) -> str:
    """Return the code of an error body; empty if the body is not of Stele."""
    try:
        return msgspec.json.decode(content, type=ErrorBody).code
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


class Position(msgspec.Struct, frozen=True):
    """Answer of ``GET /v1/position``. All processes at one epoch have equal hashes.

    ``state_id`` and ``log_id`` have 32 hex digits, ``hash`` the 64 of ``domain.snapshot.state_hash``.
    """

    service: str
    instance: str
    epoch: int
    state_id: str
    log_id: str
    hash: str
