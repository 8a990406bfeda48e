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
