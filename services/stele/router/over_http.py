"""Keeping a router current over HTTP: the state once, then what each epoch changes, as server-sent events.

The stream says which epochs came and what they touch; only where one may have moved a key is the difference
asked for, once for all that came meanwhile. What is not certain to go on from what is known is read anew.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from stele.domain.image import Image
from stele.domain.ring.spans import PlacementError
from stele.router.events import Change, State, image_of, moved_on, with_diff
from stele.router.router import READY_S, Router, kept_current, listed
from stele.runtime.transport import FAILURES, HttpTransport, Transport

ANSWER_S: Final = 30.0
SILENT_S: Final = 25.0
"""A stream is dead when not even its pings come, which are sent every ten seconds."""
RETRY_S: Final = 0.2
LINE_BYTES: Final = 8 * 1024 * 1024
"""An event is one line: with thousands of requests in it, a long one."""
HTTP_OK: Final = 200
SHOWN: Final = 300
"""Of what was answered, in letters."""

_FAILURES: Final = (*FAILURES, msgspec.DecodeError, ValueError)


class _Anew(Exception):
    """What is known does not lead to what the service has: the whole state is read again."""


class _Away(Exception):
    """The service answers that it cannot just now: another one may."""


@asynccontextmanager
async def http_router(
    urls: str | Sequence[str], ready_s: float = READY_S, transport: Transport | None = None
) -> AsyncIterator[Router]:
    """A router that follows metadata-log at the first of ``urls`` that answers, inside the block.

    A string has them with commas between, as ``STELE_METADATA_LOG_URLS`` does. ``transport`` is closed at the
    end; without one there is one of real connections.

    Raises NotReady when nothing was read within ``ready_s`` seconds.
    """
    addresses = listed(urls)
    if not addresses:
        raise ValueError("http_router needs the address of a metadata-log at least")
    router = Router()
    http = transport or HttpTransport(SILENT_S)
    try:
        async with kept_current(router, _Source(router, http, addresses).run(), ready_s):
            yield router
    finally:
        await http.close()


class _Source:
    def __init__(self, router: Router, http: Transport, urls: Sequence[str]) -> None:
        self._router = router
        self._http = http
        self._urls = [url.rstrip("/") for url in urls]
        self._newest: Change | None = None
        self._routes = False
        self._came = asyncio.Event()

    async def run(self) -> None:
        known, turn = False, 0
        while True:
            url = self._urls[turn % len(self._urls)]
            try:
                if not known:
                    self._router.take(await self._state(url))
                known, self._router.trouble = True, ""
                await self._follow(url, self._router.image)
            except _Anew as error:
                known, self._router.trouble = False, str(error)
            except (_Away, *_FAILURES) as error:
                self._router.trouble = f"{url} does not answer: {error!r}"
                turn += 1
            await asyncio.sleep(RETRY_S)

    async def _state(self, url: str) -> Image:
        body = await self._get(url, "/v1/state", {"level": "barrier"})
        return await asyncio.to_thread(lambda: image_of(msgspec.json.decode(body, type=State)))

    async def _follow(self, url: str, image: Image) -> None:
        """Until the stream ends. Raises _Anew, and what the connection raises."""
        self._take_newest()
        reading = asyncio.create_task(self._read(url, image))
        try:
            while True:
                self._came.clear()
                to, routes = self._take_newest()
                if to is None:
                    if reading.done():
                        return reading.result()
                    came = asyncio.create_task(self._came.wait())
                    await asyncio.wait({came, reading}, return_when=asyncio.FIRST_COMPLETED)
                    came.cancel()
                    continue
                image = await self._at(url, image, to) if routes else moved_on(image, to)
                self._router.take(image)
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reading

    def _take_newest(self) -> tuple[Change | None, bool]:
        taken = self._newest, self._routes
        self._newest, self._routes = None, False
        return taken

    async def _at(self, url: str, image: Image, to: Change) -> Image:
        body = await self._get(url, "/v1/diff", {"from": image.epoch, "to": to.epoch})
        try:
            return with_diff(image, msgspec.json.decode(body), to)
        except (KeyError, PlacementError, msgspec.ValidationError) as error:
            raise _Anew(f"the difference to epoch {to.epoch} does not fit: {error!r}") from error

    async def _read(self, url: str, image: Image) -> None:
        """Note the newest event, and whether any since the last look may have moved a key."""
        following, lines, said = image.epoch + 1, _Lines(), bytearray()

        def take(status: int, piece: bytes) -> None:
            nonlocal following
            if status != HTTP_OK:
                said.extend(piece)
                return
            for line in lines.of(piece):
                if not line.startswith(b"data:"):
                    continue
                change = msgspec.json.decode(line[5:], type=Change)
                if change.epoch != following:
                    raise _Anew(f"epoch {change.epoch} came where {following} was to come")
                following += 1
                self._newest, self._routes = change, self._routes or change.routes
                self._came.set()

        headers = {"accept": "text/event-stream", "last-event-id": str(image.epoch)}
        params = {"state_id": image.state_id.hex(), "log_id": image.log_id.hex()}
        status = await self._http.ask(f"{url}/v1/changes", take, None, params, headers)
        _check("/v1/changes", status, said)

    async def _get(self, url: str, path: str, params: dict[str, object]) -> bytes:
        asked, body = {name: str(value) for name, value in params.items()}, bytearray()
        status = await self._http.ask(
            url + path, lambda _, piece: body.extend(piece), ANSWER_S, asked
        )
        _check(path, status, body)
        return bytes(body)


class _Lines:
    """Whole lines, out of pieces as they come."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def of(self, piece: bytes) -> Iterator[bytes]:
        """Those that this piece ends. Raises ValueError for one that is too long."""
        self._rest += piece
        if b"\n" in piece:
            *lines, self._rest = self._rest.split(b"\n")
            yield from map(bytes, lines)
        if len(self._rest) > LINE_BYTES:
            raise ValueError(f"a line of the stream has more than {LINE_BYTES} bytes")


def _check(path: str, status: int, body: bytearray) -> None:
    """4xx says that what is asked for is not in this history; 5xx that another may know."""
    if status == HTTP_OK:
        return
    text = f"{path} answers {status}: {body[:SHOWN].decode(errors='replace')}"
    if 400 <= status < 500:
        raise _Anew(text)
    raise _Away(text)
