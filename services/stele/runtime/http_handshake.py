"""TLS in front of HTTP, where a connection counts from its beginning on.

A server that the loop makes with TLS tells of a connection once the handshake is over: whoever never ends his
would hold files that nobody counts, and leave a process none to ask others with.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from stele.runtime.connections import Connections
from stele.runtime.http_refusals import ARRIVAL_S

ToHttp = Callable[..., asyncio.Protocol]
"""Makes the protocol of a connection, with uvicorn's options."""


def behind_tls(http: ToHttp, connections: Connections, context: ssl.SSLContext) -> ToHttp:
    return partial(_Handshake, http, connections, context)


class _Handshake(asyncio.Protocol):
    """Takes the place of HTTP's protocol until both sides have shaken hands. Whom there is no room for is cut
    off without words.
    """

    def __init__(
        self, http: ToHttp, connections: Connections, context: ssl.SSLContext, **options: Any
    ) -> None:
        self._http = partial(http, **options)
        self._connections = connections
        self._context = context
        self._early = bytearray()
        """Of HTTP. asyncio's own loop gives it before it tells that the handshake is over."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first step of ``start_tls`` is taken here: in a task uvloop would have read meanwhile what has
        come, for nobody.
        """
        if not self._connections.add(transport):
            self._connections.remove(transport)
            transport.abort()
            return
        shaking = asyncio.get_running_loop().start_tls(
            transport, self, self._context, server_side=True, ssl_handshake_timeout=ARRIVAL_S
        )
        over: asyncio.Future[None] = shaking.send(None)
        over.add_done_callback(partial(self._shaken, transport, shaking))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def _shaken(
        self,
        transport: asyncio.Transport,
        shaking: Coroutine[Any, Any, asyncio.Transport | None],
        _: asyncio.Future[None],
    ) -> None:
        self._connections.remove(transport)
        try:
            shaking.send(None)
        except StopIteration as end:
            secured: asyncio.Transport = end.value
        except OSError:  # TLS's own among them
            return
        if transport.is_closing() or secured.is_closing():
            return
        http = self._http()
        secured.set_protocol(http)
        http.connection_made(secured)
        if self._early:
            http.data_received(bytes(self._early))
