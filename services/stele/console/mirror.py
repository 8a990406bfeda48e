"""The state of the cluster in memory: read once, then updated from one stream of epochs."""

import asyncio
import io
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from stele.client import SILENT_S, HistoryChangedError, HistoryFollower, ServiceAwayError
from stele.console.upstream import DUMP_S, AwayError, Upstream
from stele.console.views import copied
from stele.domain.column import column_of
from stele.domain.evolve import evolve
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.ring.columns import Chunk, Columns
from stele.log.archive import snapshots
from stele.log.archive.container import Container
from stele.runtime.answers.history import EpochAnswer, SearchAnswer
from stele.runtime.http import HttpError
from stele.runtime.logs import get_logger
from stele.runtime.transport import HttpReply, HttpTransport

# ComputedAnswers states: the newest ones, which share unchanged parts, and a few of the past.
#
# The cost of one more image varies. One move copies one chunk of a large table, and a round of moves
# copies many. A past state that was read shares nothing. Bytes are therefore limited too.


NEWEST: Final = 1024
OLDER: Final = 12
MOST_BYTES: Final = 256 * 1024 * 1024
"""Limit of the bytes of all columns, for each of the two kinds."""
LEAST: Final = 2
"""Images that stay whatever they cost. A diff between two epochs needs both."""
CHUNK_BYTES: Final = 6_000
"""Cost of a chunk in addition to its columns: views of them and readers of single rows."""


class Images:
    """Images by epoch.

    The oldest of the newest, and the least recently used past ones, are dropped.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.newest = _Limited(NEWEST, most_bytes)
        self.older = _Limited(OLDER, most_bytes)

    def add(self, image: Image) -> None:
        """Keep the newest state."""
        self.newest.put(image)

    def keep(self, image: Image) -> None:
        """Keep a past state that was read."""
        self.older.put(image)

    def get(self, epoch: int) -> Image | None:
        found = self.newest.get(epoch)
        return self.older.used(epoch) if found is None else found

    def before(self, epoch: int, reach: int) -> Image | None:
        """Return the newest kept state of the ``reach`` epochs before ``epoch``, to fold from."""
        known = [e for e in (*self.newest, *self.older) if epoch - reach <= e < epoch]
        return self.get(max(known)) if known else None


class _Limited:
    """Images in order. ``bytes`` is the size of all columns; shared ones count once."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._images: OrderedDict[int, Image] = OrderedDict()
        self._held: dict[int, int] = {}
        """Number of images that hold a table or chunk, by its ``id()``. The images here keep it
        alive, so the id is not reused."""
        self.bytes = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._images)

    def __len__(self) -> int:
        return len(self._images)

    def get(self, epoch: int) -> Image | None:
        return self._images.get(epoch)

    def used(self, epoch: int) -> Image | None:
        """Return an image and mark it as recently used."""
        if epoch in self._images:
            self._images.move_to_end(epoch)
        return self._images.get(epoch)

    def put(self, image: Image) -> None:
        before = self._images.pop(image.epoch, None)
        self._images[image.epoch] = image
        self._count(image, 1)
        # The new image is counted before the old one is removed, so that shared chunks stay
        # counted.
        if before is not None:
            self._count(before, -1)
        while len(self) > self._most or (self.bytes > self._most_bytes and len(self) > LEAST):
            self._count(self._images.popitem(last=False)[1], -1)

    def _count(self, image: Image, more: int) -> None:
        for placement in image.ring.placements.values():
            table = placement.table
            if self._is_alone(table, more):
                for chunk in table.chunks:
                    if self._is_alone(chunk, more):
                        self.bytes += more * _bytes(chunk)

    def _is_alone(self, part: Columns | Chunk, more: int) -> bool:
        """Add or remove one holder.

        Return True for the first one added and the last one removed.
        """
        were = self._held.get(id(part), 0)
        if were + more:
            self._held[id(part)] = were + more
        else:
            del self._held[id(part)]
        return not (were if more > 0 else were + more)


def _bytes(chunk: Chunk) -> int:
    rows = chunk.rows
    return CHUNK_BYTES + rows.keys.nbytes + sum(column.nbytes for column in rows.values)


_decoder: msgspec.json.Decoder[EpochAnswer] = msgspec.json.Decoder(EpochAnswer, dec_hook=column_of)
_list_decoder: msgspec.json.Decoder[list[EpochAnswer]] = msgspec.json.Decoder(
    list[EpochAnswer], dec_hook=column_of
)
_searched_decoder: msgspec.json.Decoder[SearchAnswer] = msgspec.json.Decoder(
    SearchAnswer, dec_hook=column_of
)


def epoch_of(data: bytes) -> Epoch:
    """Decode an event of ``/v1/epochs``. Raises msgspec.DecodeError, ValueError."""
    return _epoch(_decoder.decode(data))


def epochs_of(data: bytes) -> list[Epoch]:
    """Decode an answer of ``/v1/epochs``. Raises msgspec.DecodeError, ValueError."""
    return [_epoch(answer) for answer in _list_decoder.decode(data)]


def facts_of(data: bytes) -> list[tuple[AnyFact, ...]]:
    """Return the facts of each epoch in an answer of ``/v1/epochs/search``.

    Raises msgspec.DecodeError, ValueError.
    """
    return [answer.facts for answer in _searched_decoder.decode(data).epochs]


def image_of(dump: bytes) -> Image:
    """Decode an answer of ``/v1/dump``.

    Raises DamagedFileError, UnreadableSnapshotError, ValueError.
    """
    container = Container(io.BytesIO(dump), snapshots.SCHEMA)
    head = snapshots.read_head(container)
    return head.start(snapshots.read_facts(container)).image


def _epoch(answer: EpochAnswer) -> Epoch:
    return copied(
        Epoch,
        answer,
        prev_state_id=bytes.fromhex(answer.prev_state_id),
        state_id=bytes.fromhex(answer.state_id),
        log_id=bytes.fromhex(answer.log_id),
        witness_state_id=bytes.fromhex(answer.witness_state_id),
        command_digest=bytes.fromhex(answer.command_digest),
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
