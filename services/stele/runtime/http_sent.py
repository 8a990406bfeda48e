"""Large answers that whoever asks takes in his own time: how many there are at once is bounded, and how long.

What is written to a connection at once stays in memory until the other side has read it. So a large body is
handed over piece by piece, as it is taken, and whoever does not take it is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stele.runtime.http_errors import ErrorCode, HttpError
from stele.runtime.logs import get_logger

MOST: Final = 8
"""Large answers of a process at once."""
WAIT_S: Final = 5.0
"""For one of these places; whoever asks gives up soon after."""
TAKEN_S: Final = 20.0
"""Longer than those wait who ask: see ``runtime.catch_up``."""
PIECE_BYTES: Final = 256 * 1024

log = get_logger(__name__)


class Sending:
    """The places of one process's large answers. Make it inside the event loop."""

    def __init__(self, most: int = MOST, wait_s: float = WAIT_S, taken_s: float = TAKEN_S) -> None:
        self._places = asyncio.Semaphore(most)
        self._wait_s = wait_s
        self._taken_s = taken_s

    async def answer(self, body: Callable[[], Awaitable[bytes]], media_type: str) -> Response:
        """The answer with what ``body`` makes once there is a place for it.

        Raises HttpError when there is none, and what ``body`` raises.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        except TimeoutError:
            raise HttpError(
                503,
                ErrorCode.UNAVAILABLE,
                "Too many large answers are being sent.",
                hint="Ask another one, or again in some seconds.",
            ) from None
        try:
            return _InPieces(await body(), media_type, self._taken_s, self._places.release)
        except BaseException:
            self._places.release()
            raise


class _InPieces(Response):
    """Gives its place back when it is sent, or was not taken in time."""

    def __init__(
        self, body: bytes, media_type: str, taken_s: float, release: Callable[[], None]
    ) -> None:
        super().__init__(body, media_type=media_type)
        self._taken_s = taken_s
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._taken_s):
                await self._send(send)
        except TimeoutError:  # the server closes a connection whose answer has no end
            log.warning(
                "a large answer was not taken in time",
                client=scope.get("client"),
                size_bytes=len(self.body),
            )
        finally:
            self._release()

    async def _send(self, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        for begin in range(0, max(1, len(self.body)), PIECE_BYTES):
            end = begin + PIECE_BYTES
            more = end < len(self.body)
            piece = bytes(self.body[begin:end])
            await send({"type": "http.response.body", "body": piece, "more_body": more})
