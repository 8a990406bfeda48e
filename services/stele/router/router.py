"""The router: the newest image that a source brought, look-ups in it, another try after a stale answer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final

from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.router.errors import NotReady, RouterStopped, StaleRoute, StaleTooLong
from stele.router.routes import Named, Replicas, named, replicas_of

READY_S: Final = 30.0
STALE_PAUSE_S: Final = 0.02
"""Between two tries when a replica refused a version and named nothing newer."""


class Attempt:
    """One try of a request: ``with attempt as replicas``. ``StaleRoute`` out of the block asks for another."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.stale: StaleRoute | None = None

    def __enter__(self) -> Replicas:
        return self.replicas

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, StaleRoute):
            self.stale = error
        return self.stale is not None


def listed(urls: str | Sequence[str]) -> list[str]:
    """The addresses; a string has commas between them."""
    if not isinstance(urls, str):
        return [*urls]
    return [url.strip() for url in urls.split(",") if url.strip()]


class Router:
    """Made by ``http_router`` or ``kafka_router``, which keep it current. Use it in their event loop."""

    def __init__(self) -> None:
        self._image = EMPTY_FOR_FOLLOWERS
        self._known: dict[str, Named] = {}
        self._stopped = ""
        self._changed = asyncio.Event()
        self._awaited = list[int]()
        self.on_awaited: Callable[[], None] = lambda: None
        """Called when somebody begins to wait for an epoch that is not known yet."""
        self.trouble = ""
        """Why what is known may be old; empty while the source is read."""

    @property
    def image(self) -> Image:
        """All that is known of the cluster at the newest epoch that was read."""
        return self._image

    @property
    def epoch(self) -> int:
        return self._image.epoch

    @property
    def version(self) -> int:
        return self._image.topology.version

    @property
    def awaited(self) -> int:
        """The newest epoch that somebody waits for; 0: nobody does."""
        return max(self._awaited, default=0)

    def lookup(self, name: str, key: bytes) -> Replicas:
        """The replicas of a key of keyspace ``name``, or of table ``keyspace.table`` where it has tablets.

        Raises UnknownName, NotReady.
        """
        found = self._known.get(name)
        if found is None:
            if not self._image.epoch:
                raise NotReady("The router has read nothing yet: `await router.wait_ready()`.")
            found = self._known[name] = named(self._image, name)
        return replicas_of(self._image, found, key)

    async def attempts(
        self, name: str, key: bytes, timeout_s: float = 5.0
    ) -> AsyncIterator[Attempt]:
        """``async for attempt in router.attempts(...)``: tries until one is not stale, each routed anew.

        Raises StaleTooLong once the time is up, and what ``lookup`` raises.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            attempt = Attempt(self.lookup(name, key))
            yield attempt
            if attempt.stale is None:
                return
            await self._newer_than(attempt.replicas.epoch, attempt.stale, until_s)

    async def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Raises NotReady when nothing was read in that time, RouterStopped."""
        try:
            await self.wait_for_epoch(1, timeout_s)
        except TimeoutError:
            why = self.trouble or "no source has answered"
            raise NotReady(f"Nothing was read within {timeout_s:g} s: {why}.") from None

    async def wait_for_epoch(self, epoch: int, timeout_s: float = READY_S) -> None:
        """Until the router has read up to ``epoch``. Raises TimeoutError, RouterStopped."""
        self._awaited.append(epoch)
        try:
            async with asyncio.timeout(timeout_s):
                while self._image.epoch < epoch:
                    if self._stopped:
                        raise RouterStopped(self._stopped)
                    self.on_awaited()
                    await self._changed.wait()
        finally:
            self._awaited.remove(epoch)

    def refuses(self, image: Image) -> str:
        """Why what a source has read anew does not go on from what is known; empty when it does."""
        known, other = self._image.founding, image.founding
        if not image.epoch:
            return "the log is empty"
        if not self._image.epoch:
            return ""
        if other.cluster_id != known.cluster_id:
            return (
                f"it is of cluster {other.name} ({other.cluster_id}), and this router of {known.name}"
                f" ({known.cluster_id}): mend the address, or make the router anew if the cluster was"
            )
        if other.log_id < known.log_id:
            return f"it is at log {other.log_id.hex()}, which was recovered as {known.log_id.hex()}"
        return ""

    def take(self, image: Image) -> None:
        """The source has read on: another image counts from now on."""
        before, self._image = self._image, image
        if before.ring is not image.ring or before.schema is not image.schema:
            self._known = {}
        self._wake()

    def stop(self, why: str) -> None:
        """Nothing will be read any more: whoever waits is told, and so is who reads ``trouble``."""
        self._stopped = self.trouble = why
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _newer_than(self, epoch: int, stale: StaleRoute, until_s: float) -> None:
        """What the replica asked for was read; or a pause is over, where it asked for nothing newer."""
        left_s = until_s - asyncio.get_running_loop().time()
        try:
            if left_s > 0:
                if self.epoch < stale.epoch:
                    return await self.wait_for_epoch(stale.epoch, left_s)
                if self.epoch > epoch:
                    return None
                await asyncio.sleep(min(left_s, STALE_PAUSE_S))
                return None
        except TimeoutError:
            pass
        why = f" ({self.trouble})" if self.trouble else ""
        raise StaleTooLong(
            f"Replicas refuse version {self.version} of epoch {self.epoch}{why}, and nothing newer came"
            f" in time: {stale}. Try again; if it goes on, see whether the metadata-log answers."
        ) from stale


@asynccontextmanager
async def kept_current(
    router: Router, source: Coroutine[None, None, None], ready_s: float
) -> AsyncIterator[Router]:
    """The router while ``source`` reads for it; stopped where that breaks. Raises NotReady, RouterStopped."""
    following = asyncio.create_task(source, name="router")

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        router.stop("The router was closed." if error is None else f"It reads no more: {error!r}.")

    following.add_done_callback(ended)
    try:
        await router.wait_ready(ready_s)
        yield router
    finally:
        following.cancel()
        await asyncio.wait({following})
