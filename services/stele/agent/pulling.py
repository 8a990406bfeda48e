"""STREAM orders: pull the data that this node gains, rebuilds or lacks, under a session.

Writes acknowledged before the order's version are pulled. Later writes reach this node directly,
because it is a write replica. Rows merge, so a repetition is harmless. Data that is reported as
done is on the disk.

This module decides the sources of each range, the order, the retries and the concurrency.
``Pulling`` reads and keeps the store's data.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from stele.agent.judging import Code
from stele.agent.orders import OrderProgress
from stele.agent.stores import Span, spans_of
from stele.domain.fencing import SessionClosedError, SessionGuard
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.model.schema import change_log_of
from stele.domain.model.settings import STREAM_CONCURRENCY
from stele.domain.model.transitions import Transition
from stele.domain.ring.ranges import Range
from stele.domain.rules.cdc import cdc_of
from stele.domain.topology.operations.table import OPERATIONS
from stele.log.follower import LogFollower
from stele.runtime.logs import get_logger

log = get_logger(__name__)

PORTION_RANGES: Final = 32
"""Ranges that are pulled together.

With many small ranges, a call for each would cost more than the data.
"""
TRIES: Final = 3
RETRY_S: Final = 0.2

Piece = tuple[str, Range]
"""The name of a placement and one of its ranges."""


class Answered(Protocol):
    """The answer of a source.

    ``code`` is OK, or ``code`` and ``text`` give the reason why there is no data.
    """

    @property
    def code(self) -> Code: ...
    @property
    def text(self) -> str: ...


A = TypeVar("A", bound=Answered)


def nothing_at(path: str, address: str) -> str:
    """Return the error text for a source that runs another kind of store."""
    return (
        f"there is nothing at {path} of {address}: the store there speaks another protocol between nodes."
        " Let all members of the cluster run one kind of store"
    )


class StreamFailed(Exception):
    """The data could not be pulled. The text names the sources that failed, with reasons."""


class Portion(msgspec.Struct, frozen=True):
    """Ranges of one placement that have the same sources.

    ``needed`` of the sources must be read completely.
    """

    placement: str
    data_ids: tuple[str, ...]
    ranges: tuple[Range, ...]
    sources: tuple[str, ...]
    needed: int

    def spans(self) -> list[Span]:
        return spans_of(self.data_ids, self.ranges)


class Sessions(Protocol):
    """The node's sessions; see ``domain.fencing.SessionManager``."""

    def enter(self, session: str) -> AbstractContextManager[SessionGuard]: ...


class Pulling(Protocol):
    """Transfers the store's data to this node, under one order.

    ``can_compare`` is False for a store that pulls all rows even if only differing ones are needed.
    """

    can_compare: bool

    async def measure(self, reading: Reading, source: str, spans: Sequence[Span]) -> int | None:
        """Return the size of these spans at a source, in bytes; None when it does not answer."""
        ...

    async def pull(
        self,
        reading: Reading,
        source: str,
        spans: Sequence[Span],
        progress: OrderProgress,
        *,
        differing: bool,
    ) -> bool:
        """Take all rows of these spans from a source, and sync them.

        Rows that this node already has may be left out if ``differing``. Return False when the
        source stops.

        Check ``reading.guard`` before each effect. Raises SessionClosedError.
        """
        ...


def portions_of(
    image: Image,
    transition: Transition,
    node_id: str,
    unavailable: Mapping[str, str],
    done: Set[Piece],
) -> list[Portion]:
    """Return what the node must still pull in a transition.

    ``unavailable`` maps sources that cannot be used to the reason, which may be empty. ``done`` are
    the pieces that were pulled.

    Raises StreamFailed if too few sources remain to include every acknowledged write.
    """
    sources_of = OPERATIONS[transition.kind].sources
    found: dict[tuple[str, tuple[str, ...], int], list[Range]] = defaultdict(list)
    for name, plan in sorted(transition.plans.items()):
        for row in plan.rows:
            asked = sources_of(image, transition, row, node_id, unavailable.keys())
            if asked is None or (name, Range(row.start, row.end)) in done:
                continue
            sources, needed = asked
            if len(sources) < needed:
                others = [other for other in row.old if other != node_id]
                reasons = (f"; {each}: {why}" for each in others if (why := unavailable.get(each)))
                raise StreamFailed(
                    f"({row.start}, {row.end}] needs {needed} of {', '.join(others)};"
                    f" {', '.join(sorted(unavailable)) or 'no other node'} gave no data{''.join(reasons)}"
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


class Reading:
    """Calls sources under one order. ``failed`` maps sources that gave no data to the reason."""

    def __init__(
        self, order: Order, image: Image, guard: SessionGuard, done: set[Piece], *, compares: bool
    ) -> None:
        self.order = order
        self.guard = guard
        self.done = done
        self.compares = compares
        """True if the operation needs only differing rows.

        A store that cannot compare may pull all.
        """
        self.failed: dict[str, str] = {}
        self._image = image

    async def answer(self, source: str, ask: Callable[[str], Awaitable[A]]) -> A | None:
        """Call the source at its address and return its answer, or None after ``TRIES`` failures.

        A source that has failed before is not called again. Raises SessionClosedError.
        """
        if source in self.failed:
            return None
        node, why = self._image.node(source), ""
        assert node is not None  # a plan names members only
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            # For each attempt: the session may have closed during the pause.
            self.guard.check()
            found = await ask(node.address)
            if found.code is Code.OK:
                return found
            why = f"{found.code}, {found.text}"
            if found.code is Code.SESSION_CLOSED:
                raise SessionClosedError(f"{source} answered {why}")
        self.failed[source] = why
        log.warning("a source gave no data", source=source, why=why)
        return None


class Puller:
    """Executes STREAM orders for one node."""

    def __init__(
        self, node_id: str, follower: LogFollower, sessions: Sessions, pulling: Pulling
    ) -> None:
        self._node_id = node_id
        self._follower = follower
        self._sessions = sessions
        self._pulling = pulling
        self._done: dict[str, set[Piece]] = {}

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Pull everything that the order's transition needs.

        A second run continues where the first one stopped.

        Raises StreamFailed, SessionClosedError, and errors of the store.
        """
        with self._sessions.enter(order.session) as guard:
            image = self._follower.image
            # A dead host that hangs would use up the time of every call.
            unavailable = dict.fromkeys(image.membership.excluded(), "")
            transition = image.topology.of_session(order.session)
            assert transition is not None  # the session is open
            done = self._done_of(order.session)
            compares = OPERATIONS[transition.kind].states[transition.state].compares
            # Each failed source changes the choice, so portions are computed again until none is
            # left.
            while portions := portions_of(image, transition, self._node_id, unavailable, done):
                reading = Reading(order, image, guard, done, compares=compares)
                if not compares:
                    sizes = [await self._measure(reading, portion) for portion in portions]
                    progress.bytes_total = progress.bytes_done + sum(sizes)
                await self._pull_all(portions, reading, progress)
                unavailable |= reading.failed
            # Success may be reported only under an open session (rule 42).
            guard.check()

    def _done_of(self, session: str) -> set[Piece]:
        """Return the pieces that were pulled under a session.

        Pieces of closed sessions are forgotten.
        """
        sessions = self._follower.image.topology.sessions()
        self._done = {each: done for each, done in self._done.items() if each in sessions}
        return self._done.setdefault(session, set())

    async def _pull_all(
        self, portions: list[Portion], reading: Reading, progress: OrderProgress
    ) -> None:
        """Pull the portions, as many at once as the log's setting allows at that time."""
        pull = partial(self._pull, reading=reading, progress=progress)
        waiting = deque(enumerate(portions))
        running = set[asyncio.Task[None]]()
        try:
            while waiting or running:
                while waiting and len(running) < STREAM_CONCURRENCY.of(self._settings()):
                    turn, portion = waiting.popleft()
                    running.add(asyncio.create_task(pull(portion, turn)))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    # Raises the first error at once; the other tasks are cancelled below.
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _settings(self) -> Mapping[str, str]:
        return self._follower.image.features.settings

    async def _pull(
        self, portion: Portion, turn: int, reading: Reading, progress: OrderProgress
    ) -> None:
        """Read as many sources as are needed.

        Portions start with different sources, to spread the load.
        """
        first = turn % max(1, len(portion.sources))
        missing, spans = portion.needed, portion.spans()
        for place, source in enumerate((*portion.sources[first:], *portion.sources[:first])):
            if missing:
                # The rows of the first source are here: from others, only differing ones are needed
                # (docs/decisions/080-rebuilds-compare.md).
                missing -= await self._pulling.pull(
                    reading, source, spans, progress, differing=reading.compares or place > 0
                )
        # Only a complete portion is done: a partial one may lack acknowledged writes.
        if not missing:
            reading.done.update((portion.placement, range_) for range_ in portion.ranges)

    async def _measure(self, reading: Reading, portion: Portion) -> int:
        """Return the expected bytes of a portion: those of as many average sources as are pulled
        in full.
        """
        spans = portion.spans()
        sizes = [await self._pulling.measure(reading, source, spans) for source in portion.sources]
        found = [size for size in sizes if size is not None]
        in_full = min(portion.needed, 1) if self._pulling.can_compare else portion.needed
        return sum(found) * in_full // max(1, len(found))


def _data_ids(image: Image, placement: str) -> tuple[str, ...]:
    """Return the ids of the data in a placement and of its change logs.

    Data that is being dropped is left out, since no request reads it.
    """
    found = [data.data_id for data in image.schema.using(placement) if not data.dropped_version]
    logs = (change_log_of(data_id) for data_id in found if cdc_of(image.schema, data_id))
    return tuple(sorted((*found, *logs)))


# A limit in bytes per second that may change at any time.


SLICE_S: Final = 0.2
"""A changed limit takes effect within this time, in seconds."""
BURST_S: Final = 0.2
"""A pause of up to this many seconds can be made up for.

Unused capacity of earlier time is lost.
"""
LEAST_BYTES: Final = 1.0
"""A debt below this many bytes is not waited for, since it is below the clock's resolution."""


class Pace:
    """Delays its callers to a rate of ``bytes_per_s()``, which must be above 0."""

    def __init__(
        self, bytes_per_s: Callable[[], float], clock: Callable[[], float] | None = None
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock or time.monotonic
        self._taken = 0.0
        self._paid = 0.0
        self._looked_at_s = self._clock()

    async def took(self, size_bytes: int) -> None:
        """Count bytes that were taken, and wait until they are within the limit.

        Each caller waits only for the bytes counted up to its own. If each waited for all, callers
        would continue together, in bursts.
        """
        self._pay()
        self._taken += size_bytes
        own = self._taken
        while own - self._paid >= LEAST_BYTES:
            await asyncio.sleep(min(SLICE_S, (own - self._paid) / self._bytes_per_s()))
            self._pay()

    def _pay(self) -> None:
        now_s, rate = self._clock(), self._bytes_per_s()
        paid = (now_s - self._looked_at_s) * rate
        self._paid = min(self._paid + paid, self._taken + BURST_S * rate)
        self._looked_at_s = now_s
