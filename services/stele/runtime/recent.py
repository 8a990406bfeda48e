"""The newest winners that a process has read, as they stood in the log: what an archive may not have yet.

When the topic is lost, whoever recovers the log asks every process for them. A process that was started since
has read none; what it has promised it knows by its disk.
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
from stele.log.archive.container import Container, DamagedFileError
from stele.log.archive.records import SCHEMA, Archived, as_container, records_of
from stele.log.archive.spans import LAST_EPOCH
from stele.runtime.http_sent import Sending

EPOCHS: Final = 1000
BYTES: Final = 16 * 1024 * 1024
PATH: Final = "/v1/recent"
AVRO: Final = "avro/binary"
PROMISED: Final = "stele.promised"
"""Its key in the metadata of the container."""
_Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Promised(msgspec.Struct, frozen=True):
    """The newest epoch that others count on this process to know, which it noted on its disk before it said so;
    read in the log ``log_id``, or in one that this came from.
    """

    log_id: _Id
    epoch: Annotated[int, msgspec.Meta(ge=1, le=LAST_EPOCH)]
    state_id: _Id


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


def promised_nothing() -> Promised | None:
    return None


def recent_route(
    records: Callable[[], list[Archived]],
    promised: Callable[[], Promised | None] = promised_nothing,
) -> Route:
    """``GET /v1/recent``: the newest winners, in the format of a segment, and what was promised."""

    sending = Sending()

    async def recent(_: Request) -> Response:
        return await sending.answer(lambda: asyncio.to_thread(_packed, records(), promised()), AVRO)

    return Route(PATH, recent, methods=["GET"])


def recent_from(content: bytes) -> tuple[list[Archived], Promised | None]:
    """What such an answer holds. Raises DamagedFileError."""
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
