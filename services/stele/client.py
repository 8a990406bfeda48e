"""Follow the history of a metadata-log over HTTP: the state once, then server-sent events.

A follower uses one of several instances at a time. It reads the whole state again only when its
known state is not in the history of an instance.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from stele.domain.image import Image
from stele.runtime.answers.common import code_in
from stele.runtime.http_tls import certificate_refused
from stele.runtime.transport import FAILURES, Transport, answer_of

__all__ = [
    "SILENT_S",
    "HistoryChangedError",
    "HistoryFollower",
    "ServiceAwayError",
    "check",
    "plain",
]

ANSWER_S: Final = 30.0
SILENT_S: Final = 25.0
"""A stream without any bytes for this time is dead, in seconds.

Its pings come every ten seconds.
"""
RETRY_S: Final = 0.2
LONGEST_RELOAD_S: Final = 5.0
"""Longest pause before the whole state is read again, in seconds.

The state may be large. The pause grows up to this while no change is applied in between.
"""
HTTP_OK: Final = 200
HTTP_NOT_FOUND: Final = 404
HTTP_GONE: Final = 410
OF_AN_EPOCH: Final = "epoch_"
"""Prefix of the codes of a 404 for an epoch: the log does not have it yet, or no longer."""
SHOWN: Final = 300
"""How many characters of a response an error text shows."""


class HistoryChangedError(Exception):
    """The known state does not lead to the service's state. The whole state is read again."""


class ServiceAwayError(Exception):
    """The service does not answer the request. Another instance may."""


class HistoryFollower(ABC):
    """Reads the state and the events from one metadata-log at a time.

    A subclass reads the state in ``read_state`` and applies events in ``follow``. Both raise
    HistoryChangedError, ServiceAwayError, and errors of the transport. ``trouble`` receives the
    reason why no events arrive, and "" when they arrive again. No event has more than
    ``line_bytes``.
    """

    def __init__(
        self,
        http: Transport,
        urls: Sequence[str],
        trouble: Callable[[str], None],
        line_bytes: int,
    ) -> None:
        self._http = http
        self._urls = [url.rstrip("/") for url in urls]
        self._trouble = trouble
        self._line_bytes = line_bytes
        self._pause_s = RETRY_S

    @abstractmethod
    async def read_state(self, url: str) -> None:
        """Read the whole state, of ``url`` or of any other instance of the log."""

    @abstractmethod
    async def follow(self, url: str) -> None:
        """Apply events as long as the service sends them."""

    async def run(self) -> None:
        """Follow one service after another until cancelled."""
        known, turn = False, 0
        while True:
            url, was_known = self._urls[turn % len(self._urls)], known
            pause_s = RETRY_S
            try:
                if not known:
                    await self.read_state(url)
                known = True
                await self.follow(url)
            except HistoryChangedError as error:
                known, pause_s = False, self._reload_s()
                self._trouble(f"{url}: {error}")
                turn += not was_known  # its latest state does not lead further either
            except ServiceAwayError as error:
                self._trouble(f"{url}: {error}")
                turn += 1
            except FAILURES as error:
                self._trouble(f"{url} does not answer: {plain(error)}")
                turn += 1
            except Exception as error:  # no response may end the follower
                known, pause_s = False, self._reload_s()
                self._trouble(f"{url} is not understood: {error!r}")
                turn += 1
            await asyncio.sleep(pause_s)

    def note_progress(self) -> None:
        """Record that an event was applied: the next reload may follow soon."""
        self._pause_s = RETRY_S

    def _reload_s(self) -> float:
        """Return the pause before the state is read again, in seconds, and double the next one."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_RELOAD_S)
        return pause_s

    async def get(self, url: str, path: str, params: dict[str, object]) -> bytes:
        """Return the body of a successful answer."""
        asked = {name: str(value) for name, value in params.items()}
        status, body = await answer_of(self._http, url + path, ANSWER_S, asked)
        check(path, status, body)
        return body

    @asynccontextmanager
    async def reading(
        self, url: str, path: str, image: Image, on_event: Callable[[bytes], None]
    ) -> AsyncIterator[asyncio.Task[None]]:
        """Read the stream of events after ``image`` inside the block, in the yielded task."""
        task = asyncio.create_task(self._read(url, path, image, on_event))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _read(
        self, url: str, path: str, image: Image, on_event: Callable[[bytes], None]
    ) -> None:
        lines, said = _Lines(self._line_bytes), bytearray()

        def take(status: int, piece: bytes) -> None:
            if status != HTTP_OK:
                said.extend(piece)
                return
            self._trouble("")
            for line in lines.of(piece):
                if line.startswith(b"data:"):
                    on_event(line[5:])

        headers = {"accept": "text/event-stream", "last-event-id": str(image.epoch)}
        params = {"state_id": image.state_id.hex(), "log_id": image.log_id.hex()}
        status = await self._http.ask(url + path, take, None, params, headers)
        check(path, status, said)


class _Lines:
    """Splits a stream of bytes into lines of at most ``most_bytes``."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._rest = bytearray()

    def of(self, piece: bytes) -> Iterator[bytes]:
        """Return the lines that this piece completes.

        Raises HistoryChangedError for a line that is too long: the state is shorter than the event.
        """
        self._rest += piece
        if b"\n" in piece:
            *lines, self._rest = self._rest.split(b"\n")
            yield from map(bytes, lines)
        if len(self._rest) > self._most_bytes:
            raise HistoryChangedError(f"an event has more than {self._most_bytes} bytes")


def check(path: str, status: int, body: bytes | bytearray) -> None:
    """Raise an error unless the status is 200.

    HistoryChangedError: the log's history lacks the requested epoch (410, or 404 with a code of an
    epoch). ServiceAwayError: any other response; no healthy metadata-log gives one.
    """
    if status == HTTP_OK:
        return
    text = f"{path} answers {status}: {body[:SHOWN].decode(errors='replace')}"
    if status == HTTP_GONE or (status == HTTP_NOT_FOUND and code_in(body).startswith(OF_AN_EPOCH)):
        raise HistoryChangedError(text)
    raise ServiceAwayError(text)


def plain(error: BaseException, limit_s: float = ANSWER_S) -> str:
    """Return a readable text of a connection error."""
    if isinstance(error, TimeoutError):
        return f"no answer within {limit_s:g} s"
    if refused := certificate_refused(error):
        return refused
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"nothing answers at {error.host}:{error.port}"
    return " ".join(str(error).split())[:160] or type(error).__name__
