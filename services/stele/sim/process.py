"""What all simulated processes share: a life with crashes and pauses, a clock, calls, a copy of the log."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.snapshot import facts_to_image, image_to_facts
from stele.log.fold import Fold
from stele.log.port import Record
from stele.sim.kernel import Clock, Future, Owner, Task, us
from stele.sim.profiles import FAIR_CLOCK

if TYPE_CHECKING:
    from stele.sim.world import World

T = TypeVar("T")
Reply = Callable[[Any], None]
LOG_TIMEOUT_S: Final = 1.0
"""After which the log is asked again."""


class Process(Owner):
    """Dies and comes back with what is on its ``disk``; everything else it has is gone."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name)
        self.alive = False
        self.world = world
        clocks = world.scenario.clocks.get(name, FAIR_CLOCK)
        self.clock = Clock(world.kernel, clocks.skew_ms, clocks.drift_ppm)
        self.disk: dict[str, Any] = {}
        self.random = world.kernel.random(f"process/{name}").random

    def start(self) -> None:
        """Begin from the disk alone."""
        raise NotImplementedError

    def boot(self) -> None:
        if not self.alive:
            self.alive = True
            self.incarnation += 1
            self.paused_until_us = 0
            self.start()

    def crash(self) -> None:
        self.alive = False
        self.incarnation += 1
        self.backlog = []

    def pause(self, seconds: float) -> None:
        """Stop the world for this process alone: it wakes believing what it believed."""
        self.paused_until_us = max(self.paused_until_us, self.world.kernel.now_us + us(seconds))

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        due_us = self.world.kernel.now_us + self.clock.timer_us(seconds)
        self.world.kernel.at(due_us, self, call, *args)

    def spawn(self, body: Coroutine[Any, Any, None]) -> None:
        Task(self, body)

    async def sleep(self, seconds: float) -> None:
        future = Future[None]()
        self.after(seconds, future.set, None)
        await future.wait()

    def call(
        self, target: "Process", serve: Callable[..., None], *args: Any, timeout_s: float
    ) -> Future[Any]:
        """Ask another process; None when no answer came in time. ``serve(*args, reply)`` answers."""
        future = Future[Any]()
        incarnation = self.incarnation
        network = self.world.network

        def reply(value: object) -> None:
            network.send(target, self, self._answer, future, incarnation, value)

        network.send(self, target, serve, *args, reply)
        self.after(timeout_s, future.set, None)
        return future

    def _answer(self, future: Future[Any], incarnation: int, value: object) -> None:
        if incarnation == self.incarnation:
            future.set(value)


class Follower(Process):
    """A process that holds the image: it reads the log from its snapshot, or from the beginning."""

    fold: Fold

    def follow_log(self) -> None:
        self.fold = self._resume()
        self.world.witness.begins(self, self.fold.image)
        self.world.log.follow(self, self.fold.next_offset, self.on_records)

    @property
    def image(self) -> Image:
        return self.fold.image

    def on_records(self, records: list[Record]) -> None:
        for offset, value in records:
            before = self.fold.image
            epoch = self.offer(offset, value)
            if self.fold.image is not before:
                self.world.witness.applied(self, self.fold.image)
                self.on_epoch(epoch)

    def offer(self, offset: int, value: bytes) -> Epoch | None:
        return self.fold.offer(offset, value)

    def on_epoch(self, epoch: Epoch | None) -> None:
        """Called after each epoch that this process has applied; None when it wrote it itself."""

    def save_snapshot(self) -> None:
        image = self.fold.image
        facts = tuple(image_to_facts(image))
        self.disk["snapshot"] = (
            facts,
            image.epoch,
            image.state_id,
            self.fold.next_offset,
            self.fold.chain.anchor,
        )

    def _resume(self) -> Fold:
        saved = self.disk.get("snapshot")
        if saved is None:
            return Fold(EMPTY, 0)
        facts, epoch, state_id, next_offset, anchor = saved
        return Fold(facts_to_image(facts, epoch, state_id), next_offset, anchor)

    async def log_end(self) -> int:
        """The log's end at some moment after the call; asks again until it is told."""
        return await self._told(lambda answer: self.world.log.ask_end(self, answer))

    async def read(self, offset: int, limit: int) -> list[Record]:
        """The log's past; see ``stele.log.port``. Asks again until it is told."""
        log = self.world.log
        return await self._told(lambda answer: log.ask_records(self, offset, limit, answer))

    async def _told(self, ask: Callable[[Callable[[T], None]], None]) -> T:
        while True:
            future = Future[T | None]()
            ask(future.set)
            self.after(LOG_TIMEOUT_S, future.set, None)
            found = await future.wait()
            if found is not None:
                return found

    async def catch_up(self, poll_s: float = 0.02) -> None:
        """Return when everything that was durable at the call is applied here."""
        end = await self.log_end()
        while self.fold.next_offset < end:
            await self.sleep(poll_s)
