"""The router: the newest image of a source, look-ups in it, and retries after a stale answer."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, TypeVar

import msgspec

from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.model.schema_objects import TableSchema
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.placement import Placement
from stele.domain.ring.quorum import read_satisfied, write_satisfied
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.routed import Routed

# Errors between a key and its replicas: a closed set. Each text says what to do.


class RoutingError(Exception):
    """Base of all errors that the router raises. ``StaleRoute`` is raised by its user instead."""


class NotReady(RoutingError):
    """The router has read no state of the cluster yet. ``wait_ready`` waits for it."""


class UnknownName(RoutingError):
    """No keyspace or table of this name serves requests at the epoch that the router has read."""


class RouterStopped(RoutingError):
    """The router is closed, or cannot follow the log. The text gives the reason."""


class StaleRoute(Exception):
    """Raise this when a replica refuses a request's version.

    The router reads on and routes again.

    ``epoch`` is one that the replica asks the sender to read first; 0 means none.
    """

    def __init__(self, epoch: int = 0, text: str = "") -> None:
        super().__init__(text or f"a replica has another version; read epoch {epoch}")
        self.epoch = epoch


class StaleTooLong(RoutingError):
    """Replicas refused until the time was up, because the router read nothing newer."""


class Unavailable(RoutingError):
    """Too few replicas succeeded. A write may be at some of them, and may still take effect.

    ``answered`` are the nodes that succeeded. ``refused`` maps the others to the reason.
    """

    def __init__(self, text: str, answered: frozenset[str], refused: Mapping[str, str]) -> None:
        super().__init__(text)
        self.answered = answered
        self.refused = refused


# From a name and a key to replicas: pure functions of one image. A look-up is a bisection.


class Place(msgspec.Struct, frozen=True):
    """The address and the location of a node."""

    node_id: str
    address: str
    dc: str
    rack: str


class Replicas(msgspec.Struct, frozen=True, gc=False):
    """The replicas of one key, and the data that a request to them must carry.

    A replica judges the request by ``version`` and ``epoch`` (``docs/reference/agent_protocol.md``).
    ``data_id`` names the data itself, so that a request never reaches a successor of dropped or truncated
    data under the same name.
    """

    name: str
    data_id: str
    token: int
    key: bytes
    row: RangeReplicas
    image: Image

    def __repr__(self) -> str:
        """Return a text without the image, which contains the whole cluster."""
        return (
            f"Replicas(name={self.name!r}, key={self.key!r}, reads={self.reads!r},"
            f" writes={self.writes!r}, version={self.version}, epoch={self.epoch})"
        )

    @property
    def version(self) -> int:
        """The topology version that these replicas were chosen by."""
        return self.image.topology.version

    @property
    def epoch(self) -> int:
        return self.image.epoch

    @property
    def log_id(self) -> str:
        """The id of the log that was read, 32 hex digits."""
        return self.image.log_id.hex()

    @property
    def columns(self) -> TableSchema | None:
        """The columns of the table; None for a keyspace, and for a table without columns."""
        return self.image.schema.columns_of(self.data_id)

    @property
    def reads(self) -> tuple[str, ...]:
        """The nodes that serve reads, the primary first."""
        return self.row.reads

    @property
    def writes(self) -> tuple[str, ...]:
        """The nodes that receive writes.

        They are ``reads``, and the sources and targets of a moving range.
        """
        return self.row.writes

    def headers(self, place: Place, *, reads: bool = False) -> dict[str, str]:
        """Return the HTTP headers of a request to this replica; ``stele.agent`` reads them.

        Set ``reads`` if the request only reads. A GET needs no mark. They contain the version of the
        table's columns, so a replica that has older ones reads the log before it serves.
        """
        columns = self.columns
        routed = Routed(
            version=self.version,
            epoch=self.epoch,
            data_id=self.data_id,
            token=self.token,
            replica=place.node_id,
            log_id=self.log_id,
            host_id=self.image.membership.nodes[place.node_id].host_id,
            reads=reads,
            table_version=0 if columns is None else columns.version,
        )
        return routed.headers()

    def place(self, node_id: str) -> Place:
        """Return the place of one of these nodes."""
        node = self.image.membership.nodes[node_id]
        return Place(node.node_id, node.address, node.dc, node.rack)

    def written(self, acks: set[str]) -> bool:
        """Return whether a quorum write may be acknowledged.

        A moving range needs a quorum of both sides.
        """
        return write_satisfied(acks, self.row)

    def read(self, answers: set[str]) -> bool:
        """Return whether these answers are a read quorum.

        One answer of a read quorum has every acknowledged write.
        """
        return read_satisfied(answers, self.row)


class Named(msgspec.Struct, frozen=True):
    """The data and the placement that serve requests under a name."""

    name: str
    data_id: str
    placement: Placement


def named(image: Image, name: str) -> Named:
    """Return what serves a keyspace without tablets, or a table ``keyspace.table``.

    Raises UnknownName.
    """
    serving = image.schema.serving(name)
    placement = None if serving is None else image.ring.placements.get(serving.placement)
    if serving is None or placement is None:
        raise UnknownName(_why_unknown(image, name))
    return Named(name, serving.data_id, placement)


def replicas_of(image: Image, found: Named, key: bytes) -> Replicas:
    token = token_of(key)
    row = found.placement.row_for(token)
    return Replicas(found.name, found.data_id, token, key, row, image)


def _why_unknown(image: Image, name: str) -> str:
    """Return the text of UnknownName, with what to do."""
    keyspace = image.schema.named(name)
    at = f"at epoch {image.epoch}"
    if keyspace is not None and keyspace.dropped_version:
        return f"Keyspace '{name}' is being dropped {at}."
    if keyspace is not None:
        tables = ", ".join(f"{name}.{t.name}" for t in image.schema.tables_of(keyspace)) or "none"
        return (
            f"Keyspace '{name}' has tablets: its data is in its tables. Ask for one of: {tables}."
        )
    what = "table" if "." in name else "keyspace"
    return f"There is no {what} '{name}' {at}: check the name, or wait until it was made."


READY_S: Final = 30.0
STALE_PAUSE_S: Final = 0.02
"""Pause between two attempts when a replica refused a version without a newer epoch, in seconds."""


class Attempt:
    """One attempt of a request: ``with attempt as replicas``.

    A ``StaleRoute`` in the block requests another attempt.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.stale: StaleRoute | None = None

    def __enter__(self) -> Replicas:
        return self.replicas

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, StaleRoute):
            self.stale = error
        return self.stale is not None


def listed(urls: str | Sequence[str]) -> list[str]:
    """Return the addresses as a list. In a string they are separated by commas."""
    if not isinstance(urls, str):
        return [*urls]
    return [url.strip() for url in urls.split(",") if url.strip()]


class Router:
    """Looks up replicas. ``http_router`` or ``kafka_router`` creates it and keeps it current.

    Use it in their event loop.
    """

    def __init__(self) -> None:
        self._image = EMPTY_FOR_FOLLOWERS
        self._known: dict[str, Named] = {}
        self._stopped = ""
        self._changed = asyncio.Event()
        self._awaited = list[int]()
        self.on_awaited: Callable[[], None] = lambda: None
        """Called when a caller begins to wait for an epoch that was not read yet."""
        self.trouble = ""
        """The reason why the image may be old; empty while the source is read."""

    @property
    def image(self) -> Image:
        """The state of the cluster at the newest epoch that was read."""
        return self._image

    @property
    def epoch(self) -> int:
        return self._image.epoch

    @property
    def version(self) -> int:
        return self._image.topology.version

    @property
    def awaited(self) -> int:
        """The newest epoch that a caller waits for; 0 if there is none."""
        return max(self._awaited, default=0)

    def lookup(self, name: str, key: bytes) -> Replicas:
        """Return the replicas of a key of ``name``: a keyspace, or ``keyspace.table``.

        Tables are looked up if their keyspace has tablets.

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
        """Yield attempts until one is not stale: ``async for attempt in router.attempts(...)``.

        Each attempt is routed again. Raises StaleTooLong once ``timeout_s`` is over, and the errors
        of ``lookup``.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            attempt = Attempt(self.lookup(name, key))
            yield attempt
            if attempt.stale is None:
                return
            await self._newer_than(attempt.replicas.epoch, attempt.stale, until_s)

    async def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Wait until a state was read. Raises NotReady after ``timeout_s``, and RouterStopped."""
        try:
            await self.wait_for_epoch(1, timeout_s)
        except TimeoutError:
            why = self.trouble or "no source has answered"
            raise NotReady(f"Nothing was read within {timeout_s:g} s: {why}.") from None

    async def wait_for_epoch(self, epoch: int, timeout_s: float = READY_S) -> None:
        """Wait until the router has read up to ``epoch``. Raises TimeoutError, RouterStopped."""
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
        """Return why a newly read image does not continue the known one; empty if it does."""
        known, other = self._image.founding, image.founding
        if not image.epoch:
            return "the log is empty"
        if not self._image.epoch:
            return ""
        if other.cluster_id != known.cluster_id:
            return (
                f"it is of cluster {other.name} ({other.cluster_id}), and this router of {known.name}"
                f" ({known.cluster_id}): correct the address, or create a new router for a recreated cluster"
            )
        # A recovery creates a greater log id: a smaller one is the past.
        if other.log_id < known.log_id:
            return f"it is at log {other.log_id.hex()}, which was recovered as {known.log_id.hex()}"
        return ""

    def take(self, image: Image) -> None:
        """Use a newer image from now on."""
        before, self._image = self._image, image
        # Cached names point into the ring and the schema, so they end with these.
        if before.ring is not image.ring or before.schema is not image.schema:
            self._known = {}
        self._wake()

    def stop(self, why: str) -> None:
        """Record that no more will be read. All waiting callers receive RouterStopped.

        ``trouble`` gives the reason too.
        """
        self._stopped = self.trouble = why
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _newer_than(self, epoch: int, stale: StaleRoute, until_s: float) -> None:
        """Wait until the replica's epoch was read, or pause if the replica named none.

        Raises StaleTooLong.
        """
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
            f"Replicas refuse version {self.version} of epoch {self.epoch}{why}, and no newer state arrived"
            f" in time: {stale}. Try again. If it persists, check the metadata-log."
        ) from stale


@asynccontextmanager
async def kept_current(
    router: Router, source: Coroutine[None, None, None], ready_s: float
) -> AsyncIterator[Router]:
    """Run ``source`` for the router inside the block. The router stops when ``source`` ends.

    Raises NotReady, RouterStopped.
    """
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


# Quorum calls: all replicas of a key are called at once, until enough of them have succeeded.


A = TypeVar("A")
Send = Callable[[Place], Awaitable[A]]
"""Calls one replica, and returns when it has done the work.

It raises StaleRoute when the replica refuses the version. Any other exception, including
CancelledError, means that the replica did not do it, or that this is unknown.
"""

_under_way: Final = set[asyncio.Task[object]]()
"""Writes without a waiting caller.

They continue, because the other replicas should receive them too.
"""


async def write_quorum(replicas: Replicas, send: Send[A], timeout_s: float = 5.0) -> dict[str, A]:
    """Call all write replicas, and return the answers by node once they are a write quorum.

    The other calls continue. ``timeout_s`` limits each call.

    Raises StaleRoute and Unavailable. After either, the write may be at some replicas: send it
    again with the same timestamp, or read.
    """
    return await _ask(replicas, replicas.writes, send, replicas.written, timeout_s, lasting=True)


async def read_quorum(replicas: Replicas, send: Send[A], timeout_s: float = 5.0) -> dict[str, A]:
    """Call all read replicas, and return the answers by node once they are a read quorum.

    At least one of them has every write that was acknowledged before. Raises StaleRoute,
    Unavailable.
    """
    return await _ask(replicas, replicas.reads, send, replicas.read, timeout_s, lasting=False)


async def _ask(
    replicas: Replicas,
    nodes: Iterable[str],
    send: Send[A],
    enough: Callable[[set[str]], bool],
    timeout_s: float,
    *,
    lasting: bool,
) -> dict[str, A]:
    """Call the nodes until those that succeeded are ``enough``, or can no longer become enough.

    If ``lasting``, the remaining calls continue in the background; otherwise they are cancelled.
    Raises StaleRoute, Unavailable.
    """
    calls = {
        asyncio.ensure_future(_call(send, replicas.place(node_id), timeout_s)): node_id
        for node_id in nodes
    }
    answers, refused = dict[str, A](), dict[str, str]()
    waiting = set(calls)
    try:
        while not enough({*answers}):
            if not enough({*answers, *(calls[task] for task in waiting)}):
                raise _unavailable(replicas, answers, refused)
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            stale: StaleRoute | None = None
            for task in done:
                # the call's own task was cancelled, which says nothing about the others
                if task.cancelled():
                    refused[calls[task]] = "the call was cancelled"
                    continue
                error = task.exception()
                if error is None:
                    answers[calls[task]] = task.result()
                    continue
                refused[calls[task]] = str(error) or repr(error)
                stale = error if isinstance(error, StaleRoute) else stale
            # A stale refusal does not matter once the others are a quorum.
            if stale is not None and not enough({*answers}):
                raise stale
        return answers
    finally:
        for task in calls:
            if lasting:
                _under_way.add(task)
                task.add_done_callback(_ended)
            else:
                task.cancel()
                task.add_done_callback(_ended)


async def _call(send: Send[A], place: Place, timeout_s: float) -> A:
    if not place.address:
        raise ConnectionError(f"{place.node_id} has no known address")
    try:
        async with asyncio.timeout(timeout_s):
            return await send(place)
    except TimeoutError:
        raise TimeoutError(f"{place.address} did not answer within {timeout_s:g} s") from None


def _ended(task: asyncio.Task[A]) -> None:
    """Remove the task and mark its error as retrieved: ``_ask`` has used it, or has ended."""
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()


def _unavailable(replicas: Replicas, answers: dict[str, A], refused: dict[str, str]) -> Unavailable:
    told = "; ".join(f"{node_id}: {why}" for node_id, why in sorted(refused.items())) or "none"
    return Unavailable(
        f"Only {sorted(answers)} of {list(replicas.writes)} did it ({told}), which is no quorum. Check which"
        " nodes are down: `stele nodes`.",
        frozenset(answers),
        refused,
    )
