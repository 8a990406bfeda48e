"""How a process asks another one over HTTP, as a port: aiohttp in production, messages in the simulator."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import aiohttp

from stele.runtime.http_client import connector

CONNECT_S: Final = 1.0
SILENT_S: Final = 10.0
"""An answer that does not get on is given up."""
PIECE_BYTES: Final = 1 << 20
_NO_PARAMS: Final[Mapping[str, str]] = {}

FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""What a transport raises when there is no answer, or no more of it. ValueError: of an address that no resolver
takes, as of ``http://node..local``, whose UnicodeError is none of the client's own.
"""

OnPiece = Callable[[int, bytes], None]
"""Called with the status and a piece of the body, as it comes."""


class Transport(Protocol):
    """Make it inside the event loop, and close it."""

    async def ask(
        self,
        url: str,
        on_piece: OnPiece,
        total_s: float | None,
        params: Mapping[str, str] = _NO_PARAMS,
        headers: Mapping[str, str] = _NO_PARAMS,
        method: str = "GET",
        body: bytes | None = None,
    ) -> int:
        """Ask ``url``; the status, once the whole body was given to ``on_piece``. Raises ``FAILURES``."""

    async def close(self) -> None: ...


class HttpTransport:
    """Over real connections, which are kept."""

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self._silent_s = silent_s
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        url: str,
        on_piece: OnPiece,
        total_s: float | None,
        params: Mapping[str, str] = _NO_PARAMS,
        headers: Mapping[str, str] = _NO_PARAMS,
        method: str = "GET",
        body: bytes | None = None,
    ) -> int:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=connector())
        timeout = aiohttp.ClientTimeout(
            total=total_s, sock_connect=CONNECT_S, sock_read=self._silent_s
        )
        async with self._session.request(
            method, url, params=params, headers=headers, data=body, timeout=timeout
        ) as answer:
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                on_piece(answer.status, piece)
            return answer.status

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
