"""Virtual time: one heap of events, one seed, no thread. All else in the simulator runs on this.

Time is an integer of microseconds and chance comes from ``random()`` alone, so a run is the same on every
machine: no float is rounded by a maths library, no set is walked in its own order, nothing reads a clock.
"""

import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from random import Random
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

SECOND: Final = 1_000_000
"""Microseconds."""


def us(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(seconds * SECOND)


Event = tuple[int, int, "Owner | None", int, Callable[..., None], tuple[Any, ...]]
"""Time, sequence, owner, the owner's incarnation, the call and its arguments."""


class Owner:
    """The process of an event. Events are lost while it is down, and late while it is paused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.incarnation = 0
        self.paused_until_us = 0
        self.backlog: list[Event] = []
        """Events that came during a pause, in their order."""


ANY_INCARNATION: Final = -1


class Kernel:
    """Runs events in the order of time, then of their making."""

    def __init__(self, seed: str) -> None:
        self.now_us = 0
        self.events = 0
        self._seed = seed
        self._heap: list[Event] = []
        self._at_once: deque[Event] = deque()
        """Events for the current instant. Those in the heap are older, so they run first."""
        self._sequence = 0

    @property
    def now_s(self) -> float:
        return self.now_us / SECOND

    def random(self, purpose: str) -> Random:
        """Return a separate random stream, so that draws for one purpose do not shift another's."""
        return Random(f"{self._seed}/{purpose}")

    def at(self, time_us: int, owner: Owner | None, call: Callable[..., None], *args: Any) -> None:
        """Call at a time; never if the owner has crashed since."""
        self._add(time_us, owner, 0 if owner is None else owner.incarnation, call, args)

    def deliver(self, time_us: int, owner: Owner, call: Callable[..., None], *args: Any) -> None:
        """Call at a time if the owner is then alive, whichever incarnation it is: mail finds its house."""
        self._add(time_us, owner, ANY_INCARNATION, call, args)

    def _add(
        self,
        time_us: int,
        owner: Owner | None,
        incarnation: int,
        call: Callable[..., None],
        args: tuple[Any, ...],
    ) -> None:
        if time_us <= self.now_us:
            self._at_once.append((self.now_us, 0, owner, incarnation, call, args))
            return
        self._sequence += 1
        heappush(self._heap, (time_us, self._sequence, owner, incarnation, call, args))

    def run_until(self, time_us: int) -> None:
        """Run all events up to a time; what they raise comes out here."""
        heap, at_once = self._heap, self._at_once
        while True:
            if heap and heap[0][0] <= self.now_us:
                event = heappop(heap)
            elif at_once:
                event = at_once.popleft()
            elif heap and heap[0][0] <= time_us:
                event = heappop(heap)
                self.now_us = event[0]
            else:
                break
            _, _, owner, incarnation, call, args = event
            if owner is not None:
                if owner.backlog:
                    owner.backlog.append(event)
                    continue
                if owner.paused_until_us > self.now_us:
                    owner.backlog.append(event)
                    self.at(owner.paused_until_us, None, self._wake, owner)
                    continue
                if not owner.alive or incarnation not in (owner.incarnation, ANY_INCARNATION):
                    continue
            self.events += 1
            call(*args)
        self.now_us = max(self.now_us, time_us)

    def _wake(self, owner: Owner) -> None:
        """A pause is over, unless it was made longer: all that came meanwhile happens now, in order."""
        if owner.paused_until_us > self.now_us:
            self.at(owner.paused_until_us, None, self._wake, owner)
            return
        backlog, owner.backlog = owner.backlog, []
        for done, event in enumerate(backlog):
            if owner.paused_until_us > self.now_us:  # it stands still again, in the midst of them
                owner.backlog = backlog[done:]
                self.at(owner.paused_until_us, None, self._wake, owner)
                return
            self._run(event, owner)

    def _run(self, event: Event, owner: Owner) -> None:
        _, _, _, incarnation, call, args = event
        if owner.alive and incarnation in (owner.incarnation, ANY_INCARNATION):
            self.events += 1
            call(*args)


class Future(Generic[T]):
    """A value that comes later; awaited by at most one task."""

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self._waiter: Callable[[T], None] | None = None

    def set(self, value: T) -> None:
        """The first value counts."""
        if self.done:
            return
        self.done, self._value = True, value
        if self._waiter is not None:
            self._waiter(value)

    def then(self, waiter: Callable[[T], None]) -> None:
        self._waiter = waiter
        if self.done:
            waiter(self._value)  # type: ignore[arg-type]

    @types.coroutine
    def wait(self) -> Generator["Future[T]", T, T]:
        if self.done:
            return self._value  # type: ignore[return-value]
        value = yield self
        return value


class Task:
    """A handler that waits in its middle. A crash of its owner leaves it there for ever."""

    def __init__(self, owner: Owner, body: Coroutine[Any, Any, None]) -> None:
        self._owner = owner
        self._incarnation = owner.incarnation
        self._body = body
        self.step(None)

    def step(self, value: object) -> None:
        if not self._owner.alive or self._owner.incarnation != self._incarnation:
            self._body.close()
            return
        try:
            future: Future[Any] | None = self._body.send(value)
            while future is None:  # it only gave way: nothing else can happen meanwhile
                future = self._body.send(None)
        except StopIteration:
            return
        future.then(self.step)


_MILLION: Final = 1_000_000


class Clock:
    """A process's own clocks: a wall clock that is wrong and jumps, a monotonic one that goes too fast or slow.

    ``skew_ms`` is the error of the one in milliseconds, ``drift_ppm`` that of the other in millionths.
    """

    def __init__(self, kernel: Kernel, skew_ms: int = 0, drift_ppm: int = 0) -> None:
        self._kernel = kernel
        self.skew_ms = skew_ms
        self.drift_ppm = drift_ppm

    EPOCH_MS: Final = 1_760_000_000_000
    """Where virtual time begins, in milliseconds since 1970."""

    def wall_ms(self) -> int:
        return self.EPOCH_MS + self._kernel.now_us // 1000 + self.skew_ms

    def monotonic_s(self) -> float:
        now_us = self._kernel.now_us
        return (now_us + now_us * self.drift_ppm // _MILLION) / SECOND

    def timer_us(self, seconds: float) -> int:
        """How long a timer of ``seconds`` really takes by this clock."""
        return us(seconds) * _MILLION // (_MILLION + self.drift_ppm)
