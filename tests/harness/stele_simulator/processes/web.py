"""HTTP between simulated machines: the production handlers answer, by their routes, with real requests."""

import asyncio
import types
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Match
from starlette.types import Message

from stele.runtime.http import HttpError
from stele.runtime.transport import SILENT_S, OnPiece
from stele_simulator.kernel import Owner

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

CUT_SHARE: Final = 0.02
"""Answers whose connection breaks in the middle, where the weather is bad."""
LOST: Final = -1
REFUSED: Final = 0
OK: Final = 200
GOES_ON: Final = 1
EVENTS: Final = "text/event-stream"
STREAM_SILENT_S: Final = 25.0
"""Time after which a quiet stream is reopened. There are no pings."""
_NOTHING: Final[Mapping[str, str]] = {}

Reply = Callable[[int, bytes], None]


class Stream:
    """A streamed answer: its pieces arrive in order, until one side closes it or is unreachable."""

    def __init__(self) -> None:
        self.is_over = False
        self.newest_us = 0
        """When the last piece arrives."""


class Web:
    """Processes by address."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.machines: dict[str, Machine] = {}
        self.late_us: Callable[[Owner, Owner, str], int] = lambda source, target, path: 0
        self.on_served: Callable[[Machine, str], None] = lambda machine, path: None

    def ask(
        self,
        source: Owner,
        url: str,
        reply: Reply,
        params: Mapping[str, str] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
        body: bytes | None = None,
        method: str = "",
        seen: dict[str, str] | None = None,
    ) -> None:
        """Send a request. ``reply`` is called at the source with status and body, or never. 0: connection
        refused. ``seen`` receives the headers of the answer before that.
        """
        network, parts = self._world.network, urlsplit(url)
        target = self.machines[parts.netloc]
        query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), *params.items()])

        draw, loss = network.chance("web", source.name), network.weather.loss

        def answer(status: int, content: bytes) -> None:
            if network.reaches(target.name, source.name) and draw() >= loss:
                self._carry(source, reply, status, content)

        if not network.reaches(source.name, target.name) or draw() < loss:
            return
        if not target.alive or not target.routes:
            answer(REFUSED, b"")
            return
        method = method or ("GET" if body is None else "POST")
        request = _request(method, parts.path, query, headers, body)
        late_us = self.late_us(source, target, parts.path)
        if late_us:
            kernel = self._world.kernel
            kernel.deliver(
                kernel.now_us + late_us, target, self._serve, target, request, answer, seen
            )
        else:
            self._carry(target, self._serve, target, request, answer, seen)

    def follow(
        self,
        source: Owner,
        url: str,
        params: Mapping[str, str],
        on_piece: Callable[[bytes], None],
        on_end: Reply,
    ) -> Stream:
        """Follow server-sent events, piece by piece. ``on_end`` gets the status, with the reason unless it is
        200. When the other side dies or is cut off, no more pieces arrive and there is no error.
        """
        stream, network, parts = Stream(), self._world.network, urlsplit(url)
        target = self.machines[parts.netloc]
        headers = {"accept": "text/event-stream"}
        request = _request("GET", parts.path, urlencode([*params.items()]), headers, None)

        def end(status: int, content: bytes) -> None:
            if network.reaches(target.name, source.name):
                self._carry(source, on_end, status, content)

        if not network.reaches(source.name, target.name):
            return stream
        if not target.alive or not target.routes:
            end(REFUSED, b"")
        else:
            given = target, request, (source, stream, on_piece), end
            self._carry(target, self._serve_stream, *given)
        return stream

    def _serve_stream(self, target: "Machine", *given: Any) -> None:
        if target.loop is not None:
            target.loop.create_task(self._send_stream(target, *given))

    async def _send_stream(
        self,
        target: "Machine",
        request: Request,
        to: tuple[Owner, Stream, Callable[[bytes], None]],
        end: Reply,
    ) -> None:
        source, stream, on_piece = to
        route = next(each for each in target.routes if each.matches(request.scope)[0] is Match.FULL)
        request.scope.update(route.matches(request.scope)[1])
        try:
            response = await request.scope["endpoint"](request)
        except HttpError as error:
            end(error.status, msgspec.json.encode(error.body))
            return
        if not isinstance(response, StreamingResponse | EventSourceResponse):
            end(response.status_code, await _sent(request, response))
            return
        kernel, network = self._world.kernel, self._world.network
        body: Any = response.body_iterator
        async with aclosing(body) as pieces:
            async for piece in pieces:
                if stream.is_over or not network.reaches(target.name, source.name):
                    return
                later_us = kernel.now_us + network.delay_us(network.chance("web", target.name))
                stream.newest_us = max(stream.newest_us, later_us)
                kernel.deliver(stream.newest_us, source, _while_open, stream, on_piece, piece)
        end(OK, b"")

    def _carry(self, owner: Owner, call: Callable[..., None], *args: Any) -> None:
        kernel, network = self._world.kernel, self._world.network
        delay_us = network.delay_us(network.chance("web", owner.name))
        kernel.deliver(kernel.now_us + delay_us, owner, call, *args)

    def _serve(
        self, target: "Machine", request: Request, answer: Reply, seen: dict[str, str] | None
    ) -> None:
        if target.loop is not None:
            target.loop.create_task(self._handle(target, request, answer, seen))

    async def _handle(
        self, target: "Machine", request: Request, answer: Reply, seen: dict[str, str] | None
    ) -> None:
        for route in target.routes:
            match, more = route.matches(request.scope)
            if match is Match.FULL:
                request.scope.update(more)
                try:
                    response = await request.scope["endpoint"](request)
                except HttpError as error:
                    answer(error.status, msgspec.json.encode(error.body))
                    return
                self.on_served(target, request.url.path)
                if seen is not None:
                    seen.update(response.headers)
                answer(*await _content(target, request, response))
                return
        answer(404, b"there is nothing of this name")


def _while_open(stream: Stream, on_piece: Callable[[bytes], None], piece: bytes) -> None:
    if not stream.is_over:
        on_piece(piece)


def _request(
    method: str, path: str, query: str, headers: Mapping[str, str], body: bytes | None
) -> Request:
    asked = False

    async def receive() -> dict[str, Any]:
        """The request once; who asks stays connected."""
        nonlocal asked
        if asked:
            await asyncio.get_running_loop().create_future()
        asked = True
        return {"type": "http.request", "body": body or b"", "more_body": False}

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "scheme": "http",
        "server": ("sim", 80),
        "query_string": query.encode(),
        "app": types.SimpleNamespace(state=types.SimpleNamespace(stopping=asyncio.Event())),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    return Request(scope, receive)


async def _content(target: "Machine", request: Request, response: Response) -> tuple[int, bytes]:
    if not isinstance(response, FileResponse):
        return response.status_code, await _sent(request, response)
    try:
        content = target.plug.path(str(response.path)).read_bytes()
    except FileNotFoundError:
        return 500, b"the file is gone"
    begin = request.headers.get("range", "").removeprefix("bytes=").removesuffix("-")
    return (206, content[int(begin) :]) if begin else (200, content)


async def _sent(request: Request, response: Response) -> bytes:
    body = bytearray()

    async def send(message: Message) -> None:
        body.extend(message.get("body", b""))

    await response(request.scope, request.receive, send)
    return bytes(body)


class WebTransport:
    """A process's way to others: the production port."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine

    async def ask(
        self,
        url: str,
        on_piece: OnPiece,
        total_s: float | None,
        params: Mapping[str, str] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
        method: str = "GET",
        body: bytes | None = None,
    ) -> int:
        if headers.get("accept") == EVENTS:
            return await self._listen(url, on_piece, params)
        machine = self._machine
        future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

        def reply(status: int, content: bytes) -> None:
            if not future.done():
                future.set_result((status, content))

        machine.world.web.ask(machine, url, reply, params, headers, body, method)
        async with asyncio.timeout(total_s or SILENT_S):
            status, content = await future
        if status == REFUSED:
            raise ConnectionRefusedError(url)
        if machine.world.network.weather.loss and machine.chance.random() < CUT_SHARE:
            on_piece(status, content[: len(content) // 2])
            raise ConnectionResetError(url)
        on_piece(status, content)
        return status

    async def _listen(self, url: str, on_piece: OnPiece, params: Mapping[str, str]) -> int:
        """Until the other lets go, or nothing has come for long."""
        came = asyncio.Queue[tuple[int, bytes]]()
        stream = self._machine.world.web.follow(
            self._machine,
            url,
            params,
            lambda piece: came.put_nowait((GOES_ON, piece)),
            lambda *ended: came.put_nowait(ended),
        )
        try:
            while True:
                async with asyncio.timeout(STREAM_SILENT_S):
                    status, piece = await came.get()
                if status == REFUSED:
                    raise ConnectionRefusedError(url)
                on_piece(OK if status == GOES_ON else status, piece)
                if status != GOES_ON:
                    return status
        finally:
            stream.is_over = True

    async def close(self) -> None:
        """Do nothing."""
