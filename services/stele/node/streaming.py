"""STREAM orders: pull what this node gains, is to have again, or lacks, under the operation's session.

Everything that was acknowledged before the order's version is pulled; everything since goes to this node
too, as a write replica. Rows merge by last write wins, so a repetition does no harm. Each page is synced
before the next one is counted, so what is reported as done is on the disk.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.ring.ranges import Range
from stele.domain.sessions import SessionClosedError, SessionGuard
from stele.domain.topology.facts import Transition
from stele.domain.topology.limits import STREAM_CONCURRENCY, STREAM_MIB_PER_S
from stele.domain.topology.operations.table import OPERATIONS
from stele.log.follower import LogFollower
from stele.node.cells import Row
from stele.node.clock import HybridClock
from stele.node.comparing import SourceGone, differing
from stele.node.digests import Digest
from stele.node.orders import OrderProgress
from stele.node.pace import Pace
from stele.node.partitions import placed, write_partitions
from stele.node.spans import Span, spans_of
from stele.node.store import Cursor, Store
from stele.node.wire import Code, Compare, Compared, Scan, Scanned
from stele.runtime.logs import get_logger

log = get_logger(__name__)

PAGE_BYTES: Final = 2 * 1024 * 1024
PORTION_RANGES: Final = 32
"""Ranges that are pulled together: with many small ranges a call for each would cost more than the data."""
MIB: Final = 1024 * 1024
TRIES: Final = 3
RETRY_S: Final = 0.2

A = TypeVar("A", Scanned, Compared)

Piece = tuple[str, Range]
"""A placement's name and one of its ranges."""


PullFrom = Callable[[str, Sequence[Span]], Awaitable[bool]]
"""Reads spans of one source through to the end; False when it stopped giving them."""


class StreamFailed(Exception):
    """The data could not be pulled; the text names who did not give it, and why."""


class Portion(msgspec.Struct, frozen=True):
    """Ranges of one placement that the same sources have; ``needed`` of them must be read through."""

    placement: str
    data_ids: tuple[str, ...]
    ranges: tuple[Range, ...]
    sources: tuple[str, ...]
    needed: int

    def spans(self) -> list[Span]:
        return spans_of(self.data_ids, self.ranges)


class Sessions(Protocol):
    """The node's sessions; see domain.sessions and the agent."""

    def enter(self, session: str) -> AbstractContextManager[SessionGuard]: ...


class Source(Protocol):
    """Pages of other nodes, and digests of them; see ``peers.Peers``."""

    async def scan(self, node_id: str, address: str, scan: Scan) -> Scanned: ...
    async def digests(self, node_id: str, address: str, compare: Compare) -> Compared: ...


def portions_of(
    image: Image, transition: Transition, node_id: str, unavailable: Set[str], done: Set[Piece]
) -> list[Portion]:
    """What the node must pull in a transition and has not pulled yet.

    Raises StreamFailed where too few sources are left to be sure of every acknowledged write.
    """
    sources_of = OPERATIONS[transition.kind].sources
    found: dict[tuple[str, tuple[str, ...], int], list[Range]] = defaultdict(list)
    for name, plan in sorted(transition.plans.items()):
        for row in plan.rows:
            asked = sources_of(image, transition, row, node_id, unavailable)
            if asked is None or (name, Range(row.start, row.end)) in done:
                continue
            sources, needed = asked
            if len(sources) < needed:
                others = ", ".join(other for other in row.old if other != node_id)
                raise StreamFailed(
                    f"({row.start}, {row.end}] needs {needed} of {others};"
                    f" {', '.join(sorted(unavailable)) or 'nobody else'} gave no data"
                )
            found[name, sources, needed].append(Range(row.start, row.end))
    return [
        Portion(
            placement=name,
            data_ids=_data_ids(image, name),
            ranges=tuple(ranges[at : at + PORTION_RANGES]),
            sources=sources,
            needed=needed,
        )
        for (name, sources, needed), ranges in sorted(found.items())
        for at in range(0, len(ranges), PORTION_RANGES)
    ]


class Streamer:
    """Carries STREAM orders out for one node."""

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        sessions: Sessions,
        store: Store,
        clock: HybridClock,
        peers: Source,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._node_id = node_id
        self._follower = follower
        self._sessions = sessions
        self._store = store
        self._clock = clock
        self._peers = peers
        self._on_bytes = on_bytes
        self._pace = Pace(lambda: MIB * STREAM_MIB_PER_S.of(self._settings()))
        self._done: dict[str, set[Piece]] = {}

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Raises StreamFailed, SessionClosedError or StoreError; a second run goes on where it stopped."""
        with self._sessions.enter(order.session) as guard:
            image = self._follower.image
            # A host that is declared dead and hangs would take all the time.
            unavailable = {*image.membership.excluded()}
            transition = image.topology.of_session(order.session)
            assert transition is not None  # the session is open
            done = self._done_of(order.session)
            compares = OPERATIONS[transition.kind].states[transition.state].compares
            pull = self._pull_what_differs if compares else self._pull_from
            while portions := portions_of(image, transition, self._node_id, unavailable, done):
                reader = _Reader(order, image, guard, self._peers, done)
                if not compares:
                    sizes = [await _measure(reader, portion) for portion in portions]
                    progress.bytes_total = progress.bytes_done + sum(sizes)
                await self._pull_all(
                    portions, partial(pull, reader=reader, progress=progress), reader
                )
                unavailable |= reader.failed.keys()
            guard.check()

    def _done_of(self, session: str) -> set[Piece]:
        """What was pulled under a session; what was under sessions that have closed is forgotten."""
        sessions = self._follower.image.topology.sessions()
        self._done = {each: done for each, done in self._done.items() if each in sessions}
        return self._done.setdefault(session, set())

    async def _pull_all(self, portions: list[Portion], pull: PullFrom, reader: "_Reader") -> None:
        """So many portions at once as the log says at that time."""
        waiting = deque(enumerate(portions))
        running = set[asyncio.Task[None]]()
        try:
            while waiting or running:
                while waiting and len(running) < STREAM_CONCURRENCY.of(self._settings()):
                    number, portion = waiting.popleft()
                    running.add(asyncio.create_task(self._pull(portion, number, pull, reader)))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _settings(self) -> Mapping[str, str]:
        return self._follower.image.features.settings

    async def _pull(self, portion: Portion, turn: int, pull: PullFrom, reader: "_Reader") -> None:
        """Read as many sources through as are needed; the sources take turns to be the first."""
        first = turn % max(1, len(portion.sources))
        missing = portion.needed
        for source in (*portion.sources[first:], *portion.sources[:first]):
            if missing and source not in reader.failed:
                missing -= await pull(source, portion.spans())
        if not missing:
            reader.done.update((portion.placement, range_) for range_ in portion.ranges)

    async def _digests(self, spans: Sequence[Span]) -> list[Digest | None]:
        return await self._store.digests(placed(self._follower.image, self._node_id, spans))

    def _into(self, rows: Sequence[Row], place: int) -> Sequence[str]:
        row = rows[place]
        return write_partitions(self._follower.image, self._node_id, row.keyspace, row.token)

    def _may_keep(self, reader: "_Reader", rows: Sequence[Row], place: int) -> bool:
        """Under an open session, and not what was truncated away meanwhile: that is gone for good."""
        schema = self._follower.image.schema
        return reader.guard.is_open and schema.of_data(rows[place].keyspace) is not None

    async def _pull_what_differs(
        self, source: str, spans: Sequence[Span], reader: "_Reader", progress: OrderProgress
    ) -> bool:
        """Read what this node has not of one source's rows; False when it stopped giving them."""

        def equal(digest: Digest) -> None:
            progress.bytes_compared += digest.size_bytes

        theirs = partial(reader.digests, source)
        try:
            async for some in differing(spans, self._digests, theirs, equal):
                if not await self._pull_from(source, some, reader, progress):
                    return False
        except SourceGone:
            return False
        return True

    async def _pull_from(
        self, source: str, spans: Sequence[Span], reader: "_Reader", progress: OrderProgress
    ) -> bool:
        """Read one source's rows through to the end; False when it stopped giving them."""
        cursor: Cursor | None = None
        while True:
            page = await reader.scan(source, spans, cursor, PAGE_BYTES)
            if page is None:
                return False
            reader.guard.check()
            if page.rows:
                self._clock.see(max(row.timestamp for row in page.rows))
                await self._store.write(
                    page.rows,
                    partial(self._may_keep, reader, page.rows),
                    partial(self._into, page.rows),
                )
                reader.guard.check()
            self._on_bytes(page.size_bytes)
            await self._pace.took(page.size_bytes)
            progress.add(page.size_bytes, page.keys)
            cursor = page.cursor
            if cursor is None:
                return True


class _Reader:
    """Asks sources for pages under one order. ``failed`` are those who gave none, and why."""

    def __init__(
        self,
        order: Order,
        image: Image,
        guard: SessionGuard,
        peers: Source,
        done: set[Piece],
    ) -> None:
        self.guard = guard
        self.done = done
        self.failed: dict[str, str] = {}
        self._order = order
        self._image = image
        self._peers = peers

    async def scan(
        self, source: str, spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int
    ) -> Scanned | None:
        """None when the source does not answer. Raises SessionClosedError."""
        scan = Scan(
            epoch=self._order.epoch,
            session=self._order.session,
            spans=[*spans],
            cursor=cursor,
            limit_bytes=limit_bytes,
        )
        return await self._answer(source, lambda at: self._peers.scan(source, at, scan))

    async def digests(self, source: str, spans: Sequence[Span]) -> list[Digest | None] | None:
        """None when the source does not answer. Raises SessionClosedError."""
        order = self._order
        compare = Compare(epoch=order.epoch, session=order.session, spans=[*spans])
        found = await self._answer(source, lambda at: self._peers.digests(source, at, compare))
        return None if found is None else found.digests

    async def _answer(self, source: str, ask: Callable[[str], Awaitable[A]]) -> A | None:
        """The answer at the source's address; None, after some tries, when there is none."""
        node, why = self._image.node(source), ""
        assert node is not None  # a plan names members only
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            self.guard.check()
            found = await ask(node.address)
            if found.code is Code.OK:
                return found
            why = f"{source} answered {found.code}: {found.text}"
            if found.code is Code.SESSION_CLOSED:
                raise SessionClosedError(why)
        self.failed[source] = why
        log.warning("a source gave no data", source=source, why=why)
        return None


async def _measure(reader: _Reader, portion: Portion) -> int:
    """Bytes that the portion will cost: so many sources as are needed, of average size."""
    spans = portion.spans()
    sizes = [await reader.scan(source, spans, None, 0) for source in portion.sources]
    found = [scanned.size_bytes for scanned in sizes if scanned is not None]
    return sum(found) * portion.needed // max(1, len(found))


def _data_ids(image: Image, placement: str) -> tuple[str, ...]:
    """Ids of the data of those that stand; nobody reads what is being dropped."""
    keyspaces = image.schema.using(placement)
    return tuple(sorted(k.data_id for k in keyspaces if not k.dropped_version))
