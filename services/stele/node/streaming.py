"""STREAM orders: pull what this node gains from those who have it, under the operation's session.

Everything that was acknowledged before the order's version is pulled; everything since goes to this node
too, as a write replica. Rows merge by last write wins, so a repetition does no harm. Each page is synced
before the next one is counted, so what is reported as done is on the disk.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from typing import Final, Protocol

import msgspec

from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.ring.ranges import Range
from stele.domain.ring.transition import stream_sources
from stele.domain.sessions import SessionClosedError, SessionGuard
from stele.domain.topology.facts import Transition
from stele.domain.topology.planning import given_up
from stele.log.follower import LogFollower
from stele.node.clock import HybridClock
from stele.node.orders import OrderProgress
from stele.node.store import Cursor, Store, spans_of
from stele.node.wire import Code, Scan, Scanned
from stele.runtime.logs import get_logger

log = get_logger(__name__)

PAGE_BYTES: Final = 2 * 1024 * 1024
PORTION_RANGES: Final = 32
"""Ranges that are pulled together: with many small ranges a call for each would cost more than the data."""
CONCURRENT: Final = 3
"""Portions that are pulled at the same time."""
TRIES: Final = 3
RETRY_S: Final = 0.2

Piece = tuple[str, Range]
"""A placement's name and one of its ranges."""


class StreamFailed(Exception):
    """The data could not be pulled; the text names who did not give it, and why."""


class Portion(msgspec.Struct, frozen=True):
    """Ranges of one placement that the same sources have; ``needed`` of them must be read through."""

    placement: str
    keyspaces: tuple[str, ...]
    ranges: tuple[Range, ...]
    sources: tuple[str, ...]
    needed: int


class Sessions(Protocol):
    """The node's sessions; see domain.sessions and the agent."""

    def enter(self, session: str) -> AbstractContextManager[SessionGuard]: ...


class Source(Protocol):
    """Pages of other nodes; see ``peers.Peers.scan``."""

    async def scan(self, node_id: str, address: str, scan: Scan) -> Scanned: ...


def portions_of(
    image: Image, transition: Transition, node_id: str, unavailable: Set[str], done: Set[Piece]
) -> list[Portion]:
    """What the node must be given in a transition and has not pulled yet.

    Raises StreamFailed where too few sources are left to be sure of every acknowledged write. Who forces it
    gives up what only excluded nodes have: the others must still give all that they have.
    """
    lost = given_up(image, transition)
    found: dict[tuple[str, tuple[str, ...], int], list[Range]] = defaultdict(list)
    for name, plan in sorted(transition.plans.items()):
        for row in plan.rows:
            if node_id not in row.receiving() or (name, Range(row.start, row.end)) in done:
                continue
            sources, needed = stream_sources(row, node_id, unavailable)
            if lost:
                needed = min(needed, len({*row.old} - lost))
            if len(sources) < needed:
                raise StreamFailed(
                    f"({row.start}, {row.end}] needs {needed} of {', '.join(row.old)};"
                    f" {', '.join(sorted(unavailable))} gave no data"
                )
            found[name, sources, needed].append(Range(row.start, row.end))
    return [
        Portion(
            placement=name,
            keyspaces=_keyspaces(image, name),
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
            while portions := portions_of(image, transition, self._node_id, unavailable, done):
                reader = _Reader(order, image, guard, self._peers, done)
                sizes = [await _measure(reader, portion) for portion in portions]
                progress.bytes_total = progress.bytes_done + sum(sizes)
                await self._pull_all(portions, reader, progress)
                unavailable |= reader.failed.keys()
            guard.check()

    def _done_of(self, session: str) -> set[Piece]:
        """What was pulled under a session; what was under sessions that have closed is forgotten."""
        sessions = self._follower.image.topology.sessions()
        self._done = {each: done for each, done in self._done.items() if each in sessions}
        return self._done.setdefault(session, set())

    async def _pull_all(
        self, portions: list[Portion], reader: "_Reader", progress: OrderProgress
    ) -> None:
        places = asyncio.Semaphore(CONCURRENT)

        async def one(number: int, portion: Portion) -> None:
            async with places:
                await self._pull(portion, number, reader, progress)

        try:
            async with asyncio.TaskGroup() as tasks:
                for number, portion in enumerate(portions):
                    tasks.create_task(one(number, portion))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group

    async def _pull(
        self, portion: Portion, turn: int, reader: "_Reader", progress: OrderProgress
    ) -> None:
        """Read as many sources through as are needed; the sources take turns to be the first."""
        first = turn % max(1, len(portion.sources))
        missing = portion.needed
        for source in (*portion.sources[first:], *portion.sources[:first]):
            if missing and source not in reader.failed:
                missing -= await self._pull_from(source, portion, reader, progress)
        if not missing:
            reader.done.update((portion.placement, range_) for range_ in portion.ranges)

    async def _pull_from(
        self, source: str, portion: Portion, reader: "_Reader", progress: OrderProgress
    ) -> bool:
        """Read one source's rows through to the end; False when it stopped giving them."""
        cursor: Cursor | None = None
        while True:
            page = await reader.scan(source, portion, cursor, PAGE_BYTES)
            if page is None:
                return False
            reader.guard.check()
            if page.rows:
                self._clock.see(max(row.timestamp for row in page.rows))
                await self._store.write(page.rows, lambda _: reader.guard.is_open)
                reader.guard.check()
            self._on_bytes(page.size_bytes)
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
        self, source: str, portion: Portion, cursor: Cursor | None, limit_bytes: int
    ) -> Scanned | None:
        """None when the source does not answer. Raises SessionClosedError."""
        node = self._image.node(source)
        assert node is not None  # a plan names members only
        scan = Scan(
            epoch=self._order.epoch,
            session=self._order.session,
            spans=spans_of(portion.keyspaces, portion.ranges),
            cursor=cursor,
            limit_bytes=limit_bytes,
        )
        why = ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            self.guard.check()
            page = await self._peers.scan(source, node.address, scan)
            if page.code is Code.OK:
                return page
            why = f"{source} answered {page.code}: {page.text}"
            if page.code is Code.SESSION_CLOSED:
                raise SessionClosedError(why)
        self.failed[source] = why
        log.warning("a source gave no data", source=source, why=why)
        return None


async def _measure(reader: _Reader, portion: Portion) -> int:
    """Bytes that the portion will cost: so many sources as are needed, of average size."""
    sizes = [await reader.scan(source, portion, None, 0) for source in portion.sources]
    found = [scanned.size_bytes for scanned in sizes if scanned is not None]
    return sum(found) * portion.needed // max(1, len(found))


def _keyspaces(image: Image, placement: str) -> tuple[str, ...]:
    """Ids of those that stand; nobody reads what is being dropped."""
    keyspaces = image.schema.using(placement)
    return tuple(sorted(k.keyspace_id for k in keyspaces if not k.dropped_version))
