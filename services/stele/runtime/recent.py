"""The newest winners that a process has read, as recorded in the log.

An archive may not have them yet. When the topic is lost, the recovery collects them from every
process. A process that was restarted since has read none, but has its promise on disk.
"""

import asyncio
import io
from collections import deque
from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.domain.facts import Epoch
from stele.log.archive.container import (
    LAST_EPOCH,
    SCHEMA,
    Archived,
    Container,
    DamagedFileError,
    as_container,
    records_of,
)

EPOCHS: Final = 1000
BYTES: Final = 16 * 1024 * 1024
PATH: Final = "/v1/recent"
AVRO: Final = "avro/binary"
PROMISED: Final = "stele.promised"
"""Key of the promise in the metadata of the container."""
_Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Promised(msgspec.Struct, frozen=True):
    """The newest epoch that this process has acknowledged, noted on its disk before the ack was
    sent.

    It was read in the log ``log_id``, or in one from which that log descends.
    """

    log_id: _Id
    epoch: Annotated[int, msgspec.Meta(ge=1, le=LAST_EPOCH)]
    state_id: _Id


class Recent:
    """The last 1,000 winners, or fewer when they are large. An archive lags by a second at most."""

    def __init__(self) -> None:
        self._records: deque[Archived] = deque()
        self._size_bytes = 0

    def add(self, offset: int, value: bytes, epoch: Epoch) -> None:
        """Add the next winner."""
        self._records.append(Archived(epoch.epoch, offset, epoch.at_ms, value))
        self._size_bytes += len(value)
        while len(self._records) > EPOCHS or self._size_bytes > BYTES:
            self._size_bytes -= len(self._records.popleft().value)

    def records(self) -> list[Archived]:
        """Return the winners, the oldest first."""
        return [*self._records]


def promised_nothing() -> Promised | None:
    return None


def recent_route(
    records: Callable[[], list[Archived]],
    promised: Callable[[], Promised | None] = promised_nothing,
) -> Route:
    """Return ``GET /v1/recent``: the newest winners in the format of a segment, and the promise."""

    async def recent(_: Request) -> Response:
        body = await asyncio.to_thread(_packed, records(), promised())
        return Response(body, media_type=AVRO)

    return Route(PATH, recent, methods=["GET"])


def recent_from(content: bytes) -> tuple[list[Archived], Promised | None]:
    """Decode the answer of /v1/recent. Raises DamagedFileError."""
    container = Container(io.BytesIO(content), SCHEMA)
    told = container.metadata.get(PROMISED)
    try:
        promised = None if told is None else msgspec.json.decode(told, type=Promised)
    except msgspec.DecodeError as error:
        raise DamagedFileError(f"its metadata {PROMISED} cannot be read: {error}") from error
    return records_of(container), promised


def _packed(records: list[Archived], promised: Promised | None) -> bytes:
    out, metadata = io.BytesIO(), dict[str, str]()
    if promised is not None:
        metadata[PROMISED] = msgspec.json.encode(promised).decode()
    as_container(out, records, metadata)
    return out.getvalue()
