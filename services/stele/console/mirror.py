"""The state of the cluster in memory: read once, then folded on by the one stream of epochs."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import aiohttp
import msgspec

from stele.console.epochs import epoch_of, epochs_of, image_of
from stele.console.images import Images
from stele.console.upstream import CONNECT_S, DUMP_S, Answered, AwayError, Upstream, plain
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.log.archive.container import DamagedFileError
from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.runtime.http import HttpError
from stele.runtime.logs import get_logger

SERVICE: Final = "metadata-log"
SILENT_S: Final = 25.0
"""A stream is dead when not even its pings come, which are sent every ten seconds."""
RETRY_S: Final = 0.25
UNREADABLE_S: Final = 5.0
"""What cannot be read will hardly be readable at once: each try reads the whole state."""
LINE_BYTES: Final = 64 * 1024 * 1024
"""An event is one line; the longest is a part of a large change."""
NEAR: Final = 256
"""Epochs that are folded on rather than read as a whole state."""

_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, AwayError)
_UNREADABLE: Final = (
    msgspec.DecodeError,
    RecursionError,
    ValueError,
    DamagedFileError,
    UnreadableSnapshotError,
)

log = get_logger(__name__)

Taken = Callable[[Image, Epoch, Image], None]


class _Anew(Exception):
    """What is known does not lead to what the service has."""


class Mirror:
    """``taken`` gets each epoch that came with the images before and after it; ``reset``: all is anew."""

    def __init__(self, upstream: Upstream, taken: Taken, reset: Callable[[], None]) -> None:
        self._upstream = upstream
        self._taken = taken
        self._reset = reset
        self._images = Images()
        self._turn = asyncio.Lock()
        self.image: Image = EMPTY_FOR_FOLLOWERS
        self.trouble = "The metadata-log has not answered yet."
        self.heard_s = 0.0
        """When the stream last gave a sign of life, by the monotonic clock; 0: never."""
        self._stream: aiohttp.ClientResponse | None = None

    async def run(self) -> None:
        """Follow the log until cancelled, at whichever instance answers."""
        turn, known = 0, False
        urls = self._upstream.services[SERVICE]
        while True:
            try:
                if not known:
                    self._begin(await self._dump({}))
                    known = True
                await self._follow(urls[turn % len(urls)])
            except _Anew as error:
                known = self._failed(str(error))
            except _FAILURES as error:
                why = error.why if isinstance(error, AwayError) else plain(error)
                self._failed(f"The metadata-log does not answer: {why}.")
                turn += 1
            except _UNREADABLE as error:
                known = self._failed(f"What the metadata-log says cannot be read: {error!r}")
                turn += 1
                await asyncio.sleep(UNREADABLE_S)
            except HttpError as error:
                known = self._failed(error.body.message)
                turn += 1
            await asyncio.sleep(RETRY_S)

    def newest(self) -> Image:
        """The newest state. Raises HttpError while none is known."""
        if not self.image.epoch:
            raise HttpError(503, "not_ready", self.trouble, hint="Try again in a moment.")
        return self.image

    def silent_s(self) -> float:
        """How long ago the stream gave a sign of life."""
        return time.monotonic() - self.heard_s if self.heard_s else 0.0

    def leave(self) -> None:
        """End the stream that is followed: the next one is of another instance, if there is one."""
        if self._stream is not None:
            self._stream.close()

    async def at(self, epoch: int) -> Image:
        """The state at an epoch. Raises HttpError when it cannot be had, AwayError."""
        self.newest()
        known = self._images.get(epoch)
        if known is not None:
            return known
        async with self._turn:
            known, images = self._images.get(epoch), self._images
            if known is None:
                known = await self._past(epoch)
            if self._images is images:  # else it is of a history that is over
                images.keep(known)
            return known

    async def state_id_at(self, epoch: int) -> str:
        """In hex, without reading the whole state. Raises HttpError, AwayError."""
        known = self._images.get(epoch)
        if known is None:
            (found, *_) = await self.epochs(epoch, 1)
            return found.state_id.hex()
        return known.state_id.hex()

    def of_this_log(self) -> dict[str, str]:
        """Parameters of a question about the past: another log, as of a cluster made anew, refuses it."""
        return {"log_id": self.image.log_id.hex()}

    async def epochs(self, first: int, count: int) -> list[Epoch]:
        """Up to so many epochs. Raises HttpError, AwayError."""
        asked: dict[str, object] = {"from": first, "limit": count, **self.of_this_log()}
        return await self._decoded(epochs_of, "/v1/epochs", asked)

    async def _past(self, epoch: int) -> Image:
        near = self._images.before(epoch, NEAR)
        asked: dict[str, object] = {"epoch": epoch, **self.of_this_log()}
        if near is None:
            return await self._dump(asked)
        found = near
        while found.epoch < epoch:
            for each in await self.epochs(found.epoch + 1, epoch - found.epoch):
                if each.prev_state_id != found.state_id:
                    return await self._dump(asked)
                found = evolve(found, each)
        return found

    async def _dump(self, params: dict[str, object]) -> Image:
        answer = await self._upstream.ask(SERVICE, "/v1/dump", params, limit_s=DUMP_S)
        _check(answer)
        return await asyncio.to_thread(image_of, answer.body)

    async def _decoded(
        self,
        decode: Callable[[bytes], list[Epoch]],
        path: str,
        params: dict[str, object],
    ) -> list[Epoch]:
        answer = await self._upstream.ask(SERVICE, path, params)
        _check(answer)
        found = await asyncio.to_thread(decode, answer.body)
        if found:
            return found
        first = int(str(params["from"]))
        if first <= self.image.epoch:
            raise HttpError(
                503,
                "not_ready",
                f"The metadata-log that was asked has not read epoch {first} yet.",
                hint="Try again in a moment.",
            )
        raise HttpError(404, "epoch_not_found", f"There is no epoch {first}.")

    def _begin(self, image: Image) -> None:
        """The whole state was read; what was known of before may be another history."""
        self._images = Images()
        self.image = image
        self._images.add(image)
        self._reset()

    async def _follow(self, url: str) -> None:
        """Until the stream ends. Raises _Anew, and what the connection raises."""
        image = self.image
        headers = {"accept": "text/event-stream", "last-event-id": str(image.epoch)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        params = {"state_id": image.state_id.hex(), "log_id": image.log_id.hex()}
        stream = self._upstream.http.get(
            f"{url}/v1/epochs", params=params, headers=headers, timeout=timeout
        )
        async with stream as answer:
            if answer.status != 200:
                _check_stream(answer.status, await answer.text())
            self.trouble, self.heard_s, self._stream = "", time.monotonic(), answer
            try:
                async for raw in answer.content:
                    self.heard_s = time.monotonic()
                    if raw.startswith(b"data:"):
                        self._take(epoch_of(raw[5:]))
            finally:
                self._stream = None
        raise AwayError(SERVICE, "its stream ended")

    def _take(self, epoch: Epoch) -> None:
        before = self.image
        if epoch.epoch != before.epoch + 1 or epoch.prev_state_id != before.state_id:
            raise _Anew(f"Epoch {epoch.epoch} does not follow epoch {before.epoch}.")
        self.image = evolve(before, epoch)
        self._images.add(self.image)
        self._taken(before, epoch, self.image)

    def _failed(self, why: str) -> bool:
        if why != self.trouble:
            log.warning("the log is not followed", why=why)
        self.trouble = why
        return False


def _check(answer: Answered) -> None:
    """Raises HttpError with the service's own words."""
    if answer.ok:
        return
    raise refused(answer)


def refused(answer: Answered) -> HttpError:
    """A service's error as one of ours."""
    try:
        body = msgspec.json.decode(answer.body, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        body = {}
    return HttpError(
        answer.status,
        str(body.get("code", "http_error")),
        str(body.get("message", f"The service answered {answer.status}.")),
        hint=str(body.get("hint", "")),
    )


def _check_stream(status: int, text: str) -> None:
    """4xx says that what is known is not in this history; 5xx that another may know."""
    if 400 <= status < 500:
        raise _Anew(f"The metadata-log answers {status}: {text[:300]}")
    raise AwayError(SERVICE, f"status {status}: {text[:300]}")
