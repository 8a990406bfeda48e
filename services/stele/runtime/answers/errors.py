"""The one shape of every HTTP error."""

from collections.abc import Sequence

import msgspec

Detail = str | int | float | bool | None | Sequence[str | int]


class ErrorBody(msgspec.Struct, frozen=True):
    """``message`` is one sentence: what is the case; ``hint`` one: what to do."""

    code: str
    message: str
    hint: str = ""
    details: dict[str, Detail] = {}
