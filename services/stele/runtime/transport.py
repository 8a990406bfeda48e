"""Port for HTTP requests to other processes: aiohttp in production, messages in the simulator."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

import aiohttp

from stele.runtime.http_tls import AUTHORITIES

# Outgoing HTTP connections. TLS uses the authorities of this machine, or of SSL_CERT_FILE.


_VARIABLES: Final = (AUTHORITIES, "SSL_CERT_DIR")
"""OpenSSL's own variables. aiohttp reads them when it is imported, which may be long before."""


def connector(**options: Any) -> aiohttp.TCPConnector:
    """Return a connector with aiohttp's ``options``. Call it inside the event loop."""
    given = tuple(os.environ.get(name, "") for name in _VARIABLES)
    return aiohttp.TCPConnector(ssl=_context(given) if any(given) else True, **options)


@cache
def _context(given: tuple[str, ...]) -> ssl.SSLContext:
    """Return the one TLS context of the process: reading the authorities takes 20 ms."""
    return ssl.create_default_context()


CONNECT_S: Final = 1.0
SILENT_S: Final = 10.0
"""Timeout between two pieces of an answer, in seconds."""
PIECE_BYTES: Final = 1 << 20
_NO_PARAMS: Final[Mapping[str, str]] = {}

FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""Errors of a transport when there is no complete answer.

ValueError covers an address that no resolver accepts, such as ``http://node..local``. Its
UnicodeError is not one of the client's own errors.
"""

OnPiece = Callable[[int, bytes], None]
"""Called with the status and a piece of the body, as it arrives. The first piece is empty: it comes
with the status, when the body may still be far.
"""


class Transport(Protocol):
    """A transport. Create it inside the event loop, and close it."""

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
        """Ask ``url``.

        Return the status once ``on_piece`` has received the whole body. Raises ``FAILURES``.
        """

    async def close(self) -> None: ...


class HttpReply(NamedTuple):
    """A service's answer, success or not."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


async def answer_of(
    transport: Transport,
    url: str,
    total_s: float | None,
    params: Mapping[str, str] = _NO_PARAMS,
    headers: Mapping[str, str] = _NO_PARAMS,
    method: str = "GET",
    body: bytes | None = None,
    most_bytes: int | None = None,
) -> HttpReply:
    """Return a whole answer. Raises ``FAILURES``, also for one of more than ``most_bytes``."""
    found = bytearray()

    def keep(_: int, piece: bytes) -> None:
        found.extend(piece)
        if most_bytes is not None and len(found) > most_bytes:
            raise aiohttp.ClientPayloadError(f"its answer has more than {most_bytes} bytes")

    status = await transport.ask(url, keep, total_s, params, headers, method, body)
    return HttpReply(status, bytes(found))


class HttpTransport:
    """Sends requests over real connections, which are kept open.

    Without ``redirects``, a redirection is an answer like others.
    """

    def __init__(self, silent_s: float = SILENT_S, *, redirects: bool = True) -> None:
        self._silent_s = silent_s
        self._redirects = redirects
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
            method,
            url,
            params=params,
            headers=headers,
            data=body,
            timeout=timeout,
            allow_redirects=self._redirects,
        ) as answer:
            on_piece(answer.status, b"")
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                on_piece(answer.status, piece)
            return answer.status

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
