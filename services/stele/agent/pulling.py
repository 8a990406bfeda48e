"""STREAM orders: pull what this node gains, is to have again, or lacks, under the operation's session.

Everything that was acknowledged before the order's version is pulled; everything since goes to this node
too, as a write replica. Rows merge, so a repetition does no harm. What is reported as done is on the disk.
Here stands from whom which ranges are pulled, in what order, how often and how many at once; how a store's
data is read and kept is for ``Pulling`` to know.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from stele.agent.codes import Code
from stele.agent.orders import OrderProgress
from stele.agent.spans import Span, spans_of
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.ring.ranges import Range
from stele.domain.sessions import SessionClosedError, SessionGuard
from stele.domain.topology.facts import Transition
from stele.domain.topology.limits import STREAM_CONCURRENCY
from stele.domain.topology.operations.table import OPERATIONS
from stele.log.follower import LogFollower
from stele.runtime.logs import get_logger

log = get_logger(__name__)

PORTION_RANGES: Final = 32
"""Ranges that are pulled together: with many small ranges a call for each would cost more than the data."""
TRIES: Final = 3
RETRY_S: Final = 0.2

Piece = tuple[str, Range]
"""A placement's name and one of its ranges."""


class Answered(Protocol):
    """What a source answers: ``code`` is OK, or says with ``text`` why there is nothing."""

    @property
    def code(self) -> Code: ...
    @property
    def text(self) -> str: ...


A = TypeVar("A", bound=Answered)


def nothing_at(path: str, address: str) -> str:
    """What a store is told that asks one of another kind."""
    return (
        f"there is nothing at {path} of {address}: the store there speaks another protocol between nodes."
        " Let all members of the cluster run one kind of store"
    )


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


class Pulling(Protocol):
    """How a store's data comes here, under one order."""

    async def measure(self, reading: "Reading", source: str, spans: Sequence[Span]) -> int | None:
        """Bytes of these spans at a source; None when it does not answer."""
        ...

    async def pull(
        self, reading: "Reading", source: str, spans: Sequence[Span], progress: OrderProgress
    ) -> bool:
        """Take all rows of these spans from a source, and sync them; False when it stopped giving them.

        ``reading.guard`` is checked before each effect. Raises SessionClosedError.
        """
        ...


def portions_of(
    image: Image,
    transition: Transition,
    node_id: str,
    unavailable: Mapping[str, str],
    done: Set[Piece],
) -> list[Portion]:
    """What the node must pull in a transition and has not pulled yet; of who is unavailable the reason is
    known, or empty.

    Raises StreamFailed where too few sources are left to be sure of every acknowledged write.
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
                    f" {', '.join(sorted(unavailable)) or 'nobody else'} gave no data{''.join(reasons)}"
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
    """Asks sources under one order. ``failed`` are those who gave nothing, and why."""

    def __init__(
        self, order: Order, image: Image, guard: SessionGuard, done: set[Piece], *, compares: bool
    ) -> None:
        self.order = order
        self.guard = guard
        self.done = done
        self.compares = compares
        """Whether the operation asks for what differs alone; who cannot compare may pull all."""
        self.failed: dict[str, str] = {}
        self._image = image

    async def answer(self, source: str, ask: Callable[[str], Awaitable[A]]) -> A | None:
        """The answer at the source's address; None, after some tries, when there is none, and at once from who
        has failed before.

        Raises SessionClosedError.
        """
        if source in self.failed:
            return None
        node, why = self._image.node(source), ""
        assert node is not None  # a plan names members only
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
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
    """Carries STREAM orders out for one node."""

    def __init__(
        self, node_id: str, follower: LogFollower, sessions: Sessions, pulling: Pulling
    ) -> None:
        self._node_id = node_id
        self._follower = follower
        self._sessions = sessions
        self._pulling = pulling
        self._done: dict[str, set[Piece]] = {}

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Raises StreamFailed, SessionClosedError, and what the store raises; a second run goes on where it
        stopped.
        """
        with self._sessions.enter(order.session) as guard:
            image = self._follower.image
            # A host that is declared dead and hangs would take all the time.
            unavailable = dict.fromkeys(image.membership.excluded(), "")
            transition = image.topology.of_session(order.session)
            assert transition is not None  # the session is open
            done = self._done_of(order.session)
            compares = OPERATIONS[transition.kind].states[transition.state].compares
            while portions := portions_of(image, transition, self._node_id, unavailable, done):
                reading = Reading(order, image, guard, done, compares=compares)
                if not compares:
                    sizes = [await self._measure(reading, portion) for portion in portions]
                    progress.bytes_total = progress.bytes_done + sum(sizes)
                await self._pull_all(portions, reading, progress)
                unavailable |= reading.failed
            guard.check()

    def _done_of(self, session: str) -> set[Piece]:
        """What was pulled under a session; what was under sessions that have closed is forgotten."""
        sessions = self._follower.image.topology.sessions()
        self._done = {each: done for each, done in self._done.items() if each in sessions}
        return self._done.setdefault(session, set())

    async def _pull_all(
        self, portions: list[Portion], reading: Reading, progress: OrderProgress
    ) -> None:
        """So many portions at once as the log says at that time."""
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
        """Read as many sources through as are needed; the sources take turns to be the first."""
        first = turn % max(1, len(portion.sources))
        missing = portion.needed
        for source in (*portion.sources[first:], *portion.sources[:first]):
            if missing:
                missing -= await self._pulling.pull(reading, source, portion.spans(), progress)
        if not missing:
            reading.done.update((portion.placement, range_) for range_ in portion.ranges)

    async def _measure(self, reading: Reading, portion: Portion) -> int:
        """Bytes that the portion will cost: so many sources as are needed, of average size."""
        spans = portion.spans()
        sizes = [await self._pulling.measure(reading, source, spans) for source in portion.sources]
        found = [size for size in sizes if size is not None]
        return sum(found) * portion.needed // max(1, len(found))


def _data_ids(image: Image, placement: str) -> tuple[str, ...]:
    """Ids of the data of those that stand; nobody reads what is being dropped."""
    keyspaces = image.schema.using(placement)
    return tuple(sorted(k.data_id for k in keyspaces if not k.dropped_version))
