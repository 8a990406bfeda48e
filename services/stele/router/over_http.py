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

from stele.domain.addresses import why_no_address
from stele.domain.image import Image
from stele.router.events import Change, State, image_of, moved_on, with_diff
from stele.router.router import READY_S, Router, kept_current, listed
from stele.runtime.answers.errors import code_in
from stele.runtime.transport import FAILURES, HttpTransport, Transport

ANSWER_S: Final = 30.0
SILENT_S: Final = 25.0
"""A stream is dead when not even its pings come, which are sent every ten seconds."""
RETRY_S: Final = 0.2
LONGEST_ANEW_S: Final = 5.0
"""The whole state is asked for, and may be large: the pause grows up to this while nothing else comes of it."""
LACKS_S: Final = 1.0
"""Another service is asked when an epoch is waited for, and nothing has come for so long."""
LINE_BYTES: Final = 8 * 1024 * 1024
"""An event is one line: with thousands of requests in it, a long one."""
HTTP_OK: Final = 200
HTTP_NOT_FOUND: Final = 404
HTTP_GONE: Final = 410
OF_AN_EPOCH: Final = "epoch_"
"""Codes of a 404 that begin so say that an epoch is not there: not yet, or not any more."""
SHOWN: Final = 300
"""Of what was answered, in letters."""


class _Anew(Exception):
    """What is known does not lead to what the service has: the whole state is read again."""


class _Away(Exception):
    """The service does not give what is asked for: another one may."""


@asynccontextmanager
async def http_router(
    urls: str | Sequence[str], ready_s: float = READY_S, transport: Transport | None = None
) -> AsyncIterator[Router]:
    """A router that follows metadata-log at the first of ``urls`` that answers, inside the block.

    A string has them with commas between, as ``STELE_METADATA_LOG_URLS`` does. ``transport`` is closed at the
    end; without one there is one of real connections.

    Raises NotReady when nothing was read within ``ready_s`` seconds, and ValueError for what is no address.
    """
    addresses = listed(urls)
    if not addresses:
        raise ValueError("http_router needs the address of a metadata-log at least")
    for url in addresses:
        why = why_no_address(url)
        if why:
            raise ValueError(f"'{url}' is no address of a metadata-log: {why}")
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
        self._pause_s = RETRY_S
        router.on_awaited = self._came.set

    async def run(self) -> None:
        known, turn = False, 0
        while True:
            url, was_known = self._urls[turn % len(self._urls)], known
            pause_s = RETRY_S
            try:
                if not known:
                    self._take(await self._state(url))
                known = True
                await self._follow(url, self._router.image)
            except _Anew as error:
                known, pause_s, self._router.trouble = False, self._anew_s(), f"{url}: {error}"
                turn += not was_known  # what it gave just now does not lead on either
            except _Away as error:
                self._router.trouble = f"{url}: {error}"
                turn += 1
            except FAILURES as error:
                self._router.trouble = f"{url} does not answer: {str(error) or repr(error)}"
                turn += 1
            except Exception as error:  # whatever is answered, it does not end the router
                known, pause_s = False, self._anew_s()
                self._router.trouble = f"{url} is not understood: {error!r}"
                turn += 1
            await asyncio.sleep(pause_s)

    def _anew_s(self) -> float:
        """How long to wait before the state is read again."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_ANEW_S)
        return pause_s

    def _take(self, image: Image) -> None:
        self._router.take(image)
        self._router.trouble = ""

    async def _state(self, url: str) -> Image:
        body = await self._get(url, "/v1/state", {"level": "barrier"})
        image = await asyncio.to_thread(lambda: image_of(msgspec.json.decode(body, type=State)))
        why = self._router.refuses(image)
        if why:
            raise _Anew(why)
        return image

    async def _follow(self, url: str, image: Image) -> None:
        """For as long as it gives what comes. Raises _Anew, _Away, and what the connection raises."""
        self._take_newest()
        reading = asyncio.create_task(self._read(url, image))
        reading.add_done_callback(self._ended)
        lacks = _Lacks(self._router)
        try:
            while True:
                self._came.clear()
                to, routes = self._take_newest()
                if to is not None:
                    image = await self._at(url, image, to) if routes else moved_on(image, to)
                    self._pause_s = RETRY_S
                    self._take(image)
                elif reading.done():
                    reading.result()
                    raise _Away("its stream has ended")
                else:
                    await lacks.wait(self._came)
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    def _ended(self, reading: asyncio.Task[None]) -> None:
        """Its error is raised where it counts."""
        if not reading.cancelled():
            reading.exception()
        self._came.set()

    def _take_newest(self) -> tuple[Change | None, bool]:
        taken = self._newest, self._routes
        self._newest, self._routes = None, False
        return taken

    async def _at(self, url: str, image: Image, to: Change) -> Image:
        body = await self._get(url, "/v1/diff", {"from": image.epoch, "to": to.epoch})
        try:
            return with_diff(image, msgspec.json.decode(body), to)
        except Exception as error:  # of whatever shape it is
            raise _Anew(f"the difference to epoch {to.epoch} does not fit: {error!r}") from error

    async def _read(self, url: str, image: Image) -> None:
        """Note the newest event, and whether any since the last look may have moved a key."""
        following, lines, said = image.epoch + 1, _Lines(), bytearray()

        def take(status: int, piece: bytes) -> None:
            nonlocal following
            if status != HTTP_OK:
                said.extend(piece)
                return
            self._router.trouble = ""
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


class _Lacks:
    """Whether somebody waits for an epoch that the service does not give, though its stream is held."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._since: tuple[int, float] = 0, 0.0
        """At which epoch the router was when it began to wait, and when that was."""

    async def wait(self, came: asyncio.Event) -> None:
        """Until something has come. Raises _Away where another service may have what is waited for."""
        router, now_s = self._router, asyncio.get_running_loop().time()
        if router.awaited <= router.epoch:
            self._since = 0, 0.0
            await came.wait()
            return
        if not self._since[1] or self._since[0] != router.epoch:
            self._since = router.epoch, now_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._since[1] + LACKS_S):
                await came.wait()
                return
        if router.awaited > router.epoch:
            raise _Away(f"it has not given epoch {router.awaited}, which a request waits for")


class _Lines:
    """Whole lines, out of pieces as they come."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def of(self, piece: bytes) -> Iterator[bytes]:
        """Those that this piece ends. Raises _Anew for one that is too long."""
        self._rest += piece
        if b"\n" in piece:
            *lines, self._rest = self._rest.split(b"\n")
            yield from map(bytes, lines)
        if len(self._rest) > LINE_BYTES:
            raise _Anew(f"an event has more than {LINE_BYTES} bytes")


def _check(path: str, status: int, body: bytearray) -> None:
    """What is asked for is not in the history of this log (410, and 404 for an epoch): _Anew. All else is no
    answer of a metadata-log that is well: _Away.
    """
    if status == HTTP_OK:
        return
    text = f"{path} answers {status}: {body[:SHOWN].decode(errors='replace')}"
    if status == HTTP_GONE or (status == HTTP_NOT_FOUND and code_in(body).startswith(OF_AN_EPOCH)):
        raise _Anew(text)
    raise _Away(text)
