"""CDC generations but for their streams."""

from typing import Final

import msgspec

STREAM_BYTES: Final = 16
"""Of each id of a stream."""


class GenerationHead(msgspec.Struct, frozen=True, kw_only=True):
    """A generation but for its streams.

    ``epoch`` wrote it, for ``transition_id``. It holds for writes from ``since_ms`` on; that and
    ``committed_epoch`` are 0 until it is committed.
    """

    generation_id: str
    transition_id: str
    epoch: int
    since_ms: int = 0
    committed_epoch: int = 0
    published: bool = False


class GenerationSummary(GenerationHead, frozen=True, kw_only=True):
    """A generation as people see it: how many streams it has."""

    streams: int
