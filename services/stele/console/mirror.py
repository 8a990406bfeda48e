"""The state of the cluster in memory: read once, then updated from one stream of epochs."""

import asyncio
import io
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from stele.client import SILENT_S, HistoryChangedError, HistoryFollower, ServiceAwayError
from stele.console.images import Images
from stele.console.upstream import DUMP_S, AwayError, Upstream
from stele.domain.column import column_of
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.log.archive import snapshots
from stele.log.archive.container import Container
from stele.runtime.answers.history import EpochAnswer, SearchAnswer
from stele.runtime.http import HttpError
from stele.runtime.logs import get_logger
from stele.runtime.transport import HttpReply, HttpTransport

_decoder: msgspec.json.Decoder[EpochAnswer] = msgspec.json.Decoder(EpochAnswer, dec_hook=column_of)
_list_decoder: msgspec.json.Decoder[list[EpochAnswer]] = msgspec.json.Decoder(
    list[EpochAnswer], dec_hook=column_of
)
_searched_decoder: msgspec.json.Decoder[SearchAnswer] = msgspec.json.Decoder(
    SearchAnswer, dec_hook=column_of
)


class Searched(NamedTuple):
    """The result of a search for epochs; see ``SearchAnswer``."""

    epochs: tuple[Epoch, ...]
    newest: int
    looked_at: int
    next_before: int
    begins: int


def epoch_of(data: bytes) -> Epoch:
    """Decode an event of ``/v1/epochs``. Raises msgspec.DecodeError, ValueError."""
    return _epoch(_decoder.decode(data))


def epochs_of(data: bytes) -> list[Epoch]:
    """Decode an answer of ``/v1/epochs``. Raises msgspec.DecodeError, ValueError."""
    return [_epoch(answer) for answer in _list_decoder.decode(data)]


def searched(data: bytes) -> Searched:
    """Decode an answer of ``/v1/epochs/search``. Raises msgspec.DecodeError, ValueError."""
    found = _searched_decoder.decode(data)
    epochs = tuple(map(_epoch, found.epochs))
    return Searched(epochs, found.newest, found.looked_at, found.next_before, found.begins)


def image_of(dump: bytes) -> Image:
    """Decode an answer of ``/v1/dump``.

    Raises DamagedFileError, UnreadableSnapshotError, ValueError.
    """
    container = Container(io.BytesIO(dump), snapshots.SCHEMA)
    head = snapshots.read_head(container)
    return head.start(snapshots.read_facts(container)).image


def _epoch(answer: EpochAnswer) -> Epoch:
    return Epoch(
        prev_state_id=bytes.fromhex(answer.prev_state_id),
        state_id=bytes.fromhex(answer.state_id),
        log_id=bytes.fromhex(answer.log_id),
        witness_state_id=bytes.fromhex(answer.witness_state_id),
        epoch=answer.epoch,
        witness_epoch=answer.witness_epoch,
        request_id=answer.request_id,
        command=answer.command,
        facts=answer.facts,
        command_digest=bytes.fromhex(answer.command_digest),
        actor=answer.actor,
        reason=answer.reason,
        origin=answer.origin,
        at_ms=answer.at_ms,
        required_features=answer.required_features,
    )


SERVICE: Final = "metadata-log"
LINE_BYTES: Final = 64 * 1024 * 1024
"""Longest line of the stream. An event is one line; the longest is a part of a large change."""
NEAR: Final = 256
"""Distance up to which a past state is folded from a kept one instead of read as a whole."""

log = get_logger(__name__)

Taken = Callable[[Image, Epoch, Image], None]


class Mirror(HistoryFollower):
    """Follows the metadata-log and keeps the newest image and some older ones.

    ``taken`` receives each new epoch with the images before and after it. ``reset`` is called after
    the whole state was read again: everything sent before may be of another history.
    """

    def __init__(self, upstream: Upstream, taken: Taken, reset: Callable[[], None]) -> None:
        super().__init__(
            HttpTransport(SILENT_S), upstream.services[SERVICE], self._note, LINE_BYTES
        )
        self._upstream = upstream
        self._taken = taken
        self._reset = reset
        self._images = Images()
        self._turn = asyncio.Lock()
        self.image: Image = EMPTY_FOR_FOLLOWERS
        self.trouble = "The metadata-log has not answered yet."
        self.heard_s = 0.0
        """Monotonic time of the last line of the stream, in seconds; 0 before the first one."""
        self._stream: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._http.close()

    async def read_state(self, url: str) -> None:
        try:
            self._begin(await self._dump({}))
        except HttpError as error:
            raise ServiceAwayError(error.body.message) from error
        except AwayError as error:
            raise ServiceAwayError(str(error)) from error

    async def follow(self, url: str) -> None:
        take: Callable[[bytes], None] = lambda data: self._take(epoch_of(data))  # noqa: E731
        async with self.reading(url, "/v1/epochs", self.image, take) as self._stream:
            await asyncio.wait({self._stream})
        if not self._stream.cancelled():
            self._stream.result()
        raise ServiceAwayError("its stream has ended")

    def newest(self) -> Image:
        """Return the newest state. Raises HttpError while none is known."""
        if not self.image.epoch:
            raise HttpError(503, "not_ready", self.trouble, hint="Try again in a moment.")
        return self.image

    def silent_s(self) -> float:
        """Return the seconds since the last line of the stream; 0 before the first one."""
        return time.monotonic() - self.heard_s if self.heard_s else 0.0

    def leave(self) -> None:
        """Close the followed stream. The next one is of another instance, if there is one."""
        if self._stream is not None:
            self._stream.cancel()

    async def at(self, epoch: int) -> Image:
        """Return the state at an epoch.

        Raises HttpError when it is not available, and AwayError.
        """
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
        """Return the state id of an epoch in hex, without reading the whole state.

        Raises HttpError, AwayError.
        """
        known = self._images.get(epoch)
        if known is None:
            (found, *_) = await self.epochs(epoch, 1)
            return found.state_id.hex()
        return known.state_id.hex()

    def of_this_log(self) -> dict[str, str]:
        """Return the parameters that bind a query about the past to this log.

        Another log, such as that of a cluster created again, rejects the query.
        """
        return {"log_id": self.image.log_id.hex()}

    async def epochs(self, first: int, count: int) -> list[Epoch]:
        """Return up to ``count`` epochs from ``first`` on. Raises HttpError, AwayError."""
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
        """Start from a whole state. Older images are dropped: they may be of another history."""
        self._images = Images()
        self.image = image
        self._images.add(image)
        self._reset()

    def _take(self, epoch: Epoch) -> None:
        before = self.image
        if epoch.epoch != before.epoch + 1 or epoch.prev_state_id != before.state_id:
            # Epochs have no gaps (docs/design.md, rule 1). Any other epoch needs a new read of the
            # state.
            raise HistoryChangedError(f"Epoch {epoch.epoch} does not follow epoch {before.epoch}.")
        self.image = evolve(before, epoch)
        self._images.add(self.image)
        self.note_progress()
        self._taken(before, epoch, self.image)

    def _note(self, trouble: str) -> None:
        if not trouble:
            self.trouble, self.heard_s = "", time.monotonic()
            return
        why = f"The metadata-log at {trouble}"
        if why != self.trouble:
            log.warning("the log is not followed", why=why)
        self.trouble = why


def _check(answer: HttpReply) -> None:
    """Raise HttpError with the service's own message unless the answer is a success."""
    if answer.ok:
        return
    raise refused(answer)


def refused(answer: HttpReply) -> HttpError:
    """Return a service's error answer as an HttpError."""
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
