"""The newest winners that a process has read, as they stood in the log: what an archive may not have yet.

When the topic is lost, whoever recovers the log asks every process for them.
"""

import asyncio
import io
from collections import deque
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.domain.facts import Epoch
from stele.log.archive.records import Archived, as_container
from stele.runtime.http_sent import Sending

EPOCHS: Final = 1000
BYTES: Final = 16 * 1024 * 1024
PATH: Final = "/v1/recent"
AVRO: Final = "avro/binary"


class Recent:
    """The last 1,000 winners, or fewer when they are large; an archive is behind by a second at most."""

    def __init__(self) -> None:
        self._records: deque[Archived] = deque()
        self._size_bytes = 0

    def add(self, offset: int, value: bytes, epoch: Epoch) -> None:
        """The winner that follows the one before."""
        self._records.append(Archived(epoch.epoch, offset, epoch.at_ms, value))
        self._size_bytes += len(value)
        while len(self._records) > EPOCHS or self._size_bytes > BYTES:
            self._size_bytes -= len(self._records.popleft().value)

    def records(self) -> list[Archived]:
        """They, the oldest first."""
        return [*self._records]


def recent_route(records: Callable[[], list[Archived]]) -> Route:
    """``GET /v1/recent``: the newest winners, in the format of a segment."""

    sending = Sending()

    async def recent(_: Request) -> Response:
        return await sending.answer(lambda: asyncio.to_thread(_packed, records()), AVRO)

    return Route(PATH, recent, methods=["GET"])


def _packed(records: list[Archived]) -> bytes:
    out = io.BytesIO()
    as_container(out, records)
    return out.getvalue()
