"""The one shape of every HTTP error."""

from collections.abc import Sequence
from typing import Final

import msgspec

LASTING: Final = "lasting"
"""The detail of a 503 that says whether somebody has to mend it: asking again later does not."""

Detail = str | int | float | bool | None | Sequence[str | int]


class ErrorBody(msgspec.Struct, frozen=True):
    """``message`` is one sentence: what is the case; ``hint`` one: what to do."""

    code: str
    message: str
    hint: str = ""
    details: dict[str, Detail] = {}


def code_in(content: bytes | bytearray) -> str:
    """The code of an error that was answered; empty where that is none of ours."""
    try:
        return msgspec.json.decode(content, type=ErrorBody).code
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
