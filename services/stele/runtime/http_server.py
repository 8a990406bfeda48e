"""Run an ASGI application inside the service's own event loop, on a socket of our own.

The socket is bound before uvicorn starts, so port 0 works and the chosen port is known. Signals
are the business of `runtime.service`, not of uvicorn.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

import uvicorn
from starlette.applications import Starlette

from stele.runtime.connections import Connections, most_connections
from stele.runtime.http_direct import protocol_of
from stele.runtime.http_handshake import ToHttp, behind_tls
from stele.runtime.settings import ConfigurationError

BACKLOG = 512  # connections waiting to be accepted
GRACE_S = 3.0  # for answers under way and open streams when the service stops; whole seconds
KEEP_ALIVE_S = 120
"""In which a connection that nothing is asked on stays open: longer than clients keep theirs (httpx 5 s,
aiohttp 15 s, Go 90 s). Whoever hangs up first must be the client: else its next request may meet a closed
connection, and whether it was taken is unknown to it."""


class Waitable(Protocol):
    async def wait(self) -> object: ...


class HttpSettings(Protocol):
    """The part of ServiceSettings that the server needs."""

    @property
    def http_host(self) -> str: ...
    @property
    def http_port(self) -> int: ...
    @property
    def instance_id(self) -> str: ...
    @property
    def http_tls(self) -> ssl.SSLContext | None: ...


class StartFailed(Exception):
    """The application's lifespan raised; the log has the trace."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ConfigurationError.

    It names its protocol: only then asyncio switches delays off (TCP_NODELAY) for its connections. Else each
    answer that is written as head and body costs 40 ms, in which the client holds back its acknowledgement.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigurationError(
            f"STELE_HTTP_HOST={host!r}, STELE_HTTP_PORT={port}: cannot listen there ({error})"
        ) from error
    sock.setblocking(False)
    return sock


def url_of(sock: socket.socket, tls: ssl.SSLContext | None = None) -> str:
    """The address that others on this machine reach the socket by."""
    scheme = "http" if tls is None else "https"
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (compared only)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def announce(service: str, instance: str, url: str) -> None:
    """Tell the parent process, by one JSON line on standard output, where we listen."""
    line = json.dumps({"service": service, "instance": instance, "http": url})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@asynccontextmanager
async def serving(
    app: Starlette,
    sock: socket.socket,
    *,
    tls: ssl.SSLContext | None = None,
    grace_s: float = GRACE_S,
) -> AsyncIterator[str]:
    """Serve inside the block; yields the address once requests are answered.

    `app.state.stopping` (asyncio.Event) is set when the block ends: streams must end on it.
    """
    app.state.stopping = asyncio.Event()
    connections = Connections(most_connections())
    http: ToHttp = protocol_of(app.state.direct, connections)
    if tls is not None:
        http = behind_tls(http, connections, tls)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=max(1, round(grace_s)),
            timeout_keep_alive=KEEP_ALIVE_S,
            server_header=False,
            proxy_headers=False,
            ws="none",  # uvicorn would take the connection away from us, and it would never be counted out
            http=http,  # type: ignore[arg-type]  # it is only called
        )
    )
    task = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    ready = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not server.started:
            raise StartFailed(f"{app.state.service} did not start: the log has the trace.")
        yield url_of(sock, tls)
    finally:
        ready.cancel()
        app.state.stopping.set()
        server.should_exit = True
        await task
        sock.close()


async def serve(
    app: Starlette,
    settings: HttpSettings,
    service: str,
    stop: Waitable,
    *,
    sock: socket.socket | None = None,
    grace_s: float = GRACE_S,
) -> None:
    """Serve and announce until `stop`; then finish what is under way, at most `grace_s`."""
    sock = sock or bind(settings.http_host, settings.http_port)
    async with serving(app, sock, tls=settings.http_tls, grace_s=grace_s) as url:
        announce(service, settings.instance_id, url)
        await stop.wait()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and with an event for the moment it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except SystemExit:  # uvicorn's answer to a lifespan that raised; ours is StartFailed
            self.should_exit = True
        self.ready.set()
