"""A machine with one production process: a supervisor, a disk, clocks, an address, and a life with crashes."""

import asyncio
import errno
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from starlette.routing import BaseRoute

from stele.domain.image import Image
from stele.log.archive.container import DamagedFileError
from stele.runtime.announce import Build
from stele.runtime.settings import ConfigurationError
from stele_simulator.kernel import Clock, Owner, us
from stele_simulator.processes.disk import Disk, Plug
from stele_simulator.processes.event_loop import VirtualLoop
from stele_simulator.processes.releases import is_new
from stele_simulator.processes.threads import Strand

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

RESTART_S: Final = 2.0
"""Longest until a supervisor starts what ended."""
SLOWER: Final = 200
"""So much longer takes what threads do, on their disk most of all, while that is slow: up to 0.8 s."""
BUGS: Final = (
    AssertionError,
    AttributeError,
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    UnboundLocalError,
    asyncio.InvalidStateError,
)
"""No process ends by one of these because of what the world does to it."""


def _is_by_its_disk(error: BaseException | None) -> bool:
    """It ends by a disk that is full or has lost something, in which it has no say."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_by_its_disk(each) for each in error.exceptions)
    is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    return is_full or isinstance(error, DamagedFileError)


class Machine(Owner):
    """Runs ``main`` as one process after the other. Their memory is lost with them."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name)
        self.alive = False
        self.world = world
        self.installed = world.first_build
        """Build of its next process."""
        self.build = self.installed
        """Build of its process, or of its last one."""
        self.started_us = 0
        self._is_replaced = False
        """It was asked to end since another build is installed."""
        error = world.scenario.clocks.get(name)
        self.clock = Clock(
            world.kernel, error.skew_ms if error else 0, error.drift_ppm if error else 0
        )
        self.chance: Random = world.kernel.random(f"machine/{name}")
        self.disk = Disk(world.kernel.random(f"disk/{name}").random)
        self.disk.on_trap = self._die_in_a_job
        self.mounted: Disk | None = None
        """Another machine's disk, which is in this one by mistake."""
        self.url = f"http://{name}"
        self.routes: list[BaseRoute] = []
        self.is_off = False
        """Whether restarts are disabled."""
        self.ended_by = ""
        """Why the last process ended, when it did so itself."""
        self.ended_at = b""
        """The newest state of the log that the topic held then."""
        self.is_refused = False
        """It ended as badly configured, and is not started until somebody has looked."""
        self.kills = 0
        self.slow_until_us = 0
        self._full_until_us = 0
        self.began_at = 0
        """The epoch that its process began with."""
        self.plug: Plug = self.disk.plug()
        self.loop: VirtualLoop | None = None
        self.strands: list[Strand] = []
        self._main: asyncio.Task[None] | None = None

    async def main(self) -> None:
        """The process. Ends when it is cancelled."""
        raise NotImplementedError

    @property
    def is_up(self) -> bool:
        """It runs and reads the log."""
        return self.alive and self.image is not None and self.failure is None

    @property
    def image(self) -> Image | None:
        """Return the image of the process; None while it has none, or if it follows no log."""
        return None

    @property
    def failure(self) -> Exception | None:
        """Return why the process reads no more."""
        return None

    def forget(self) -> None:
        """Release everything of a dead process."""
        self.routes = []

    # -- life --

    def boot(self) -> None:
        if self.alive or self.is_off or self.is_refused:
            return
        self.alive = True
        self.build, self.started_us = self.installed, self.world.kernel.now_us
        self.incarnation += 1
        self.paused_until_us = 0
        self.plug = (self.mounted or self.disk).plug()
        self.loop = VirtualLoop(  # type: ignore[abstract]
            self.world.kernel,
            self,
            self.clock,
            partial(
                self._job_luck, self.world.kernel.random(f"threads/{self.name}/{self.incarnation}")
            ),
            self.world.runs,
            lambda error: self.world.broken(self, error),
        )
        self._main = self.loop.create_task(self.main(), name=self.name)
        self._main.add_done_callback(self._ended)
        self.world.trace(
            f"{self.name} starts{'' if is_new(self.build) else ', of the older release'}"
        )

    def crash(self, *, power: bool = False) -> None:
        """Killed; with ``power`` the whole machine, and what was not synced with it."""
        self.kills += 1
        if self.alive:
            self.world.trace(f"{self.name} is {'without power' if power else 'killed'}")
            self._die()
        if power:
            self.disk.lose_power()

    def pause(self, seconds: float) -> None:
        self.paused_until_us = max(self.paused_until_us, self.world.kernel.now_us + us(seconds))

    def behind(self, callbacks: int, call: Callable[[], None]) -> None:
        """Between two callbacks of its event loop, so many from now; at once for none, or without a loop."""
        if callbacks and self.loop is not None:
            self.loop.behind(callbacks, call)
        else:
            call()

    def slow(self, seconds: float) -> None:
        """Slow down the work of its threads."""
        later_us = self.world.kernel.now_us + us(seconds)
        self.slow_until_us = max(self.slow_until_us, later_us)

    def fill_disk(self, seconds: float) -> None:
        """Its disk has no room for so long."""
        kernel, self.disk.full = self.world.kernel, True
        self._full_until_us = max(self._full_until_us, kernel.now_us + us(seconds))
        kernel.at(kernel.now_us + us(seconds), None, self._make_room)

    def _make_room(self) -> None:
        if self.disk.full and self._full_until_us <= self.world.kernel.now_us:
            self.disk.full = False
            self.world.trace(f"the disk of {self.name} has room again")

    def _job_luck(self, random: Random) -> float:
        is_slow = self.slow_until_us > self.world.kernel.now_us
        return random.random() * (SLOWER if is_slow else 1)

    def start_later(self, seconds: float) -> None:
        self.world.kernel.at(self.world.kernel.now_us + us(seconds), None, self.boot)

    def end(self) -> None:
        """An orderly end, as by SIGTERM."""
        if self._main is not None and self.alive:
            self._main.cancel()

    def install(self, build: Build, *, in_order: bool) -> None:
        """Install this build for the next process. Ask the running one to end, or kill it. A process that was
        refused starts again.
        """
        self.installed, self.is_refused = build, False
        if self.alive and in_order:
            self._is_replaced = True
            self.end()
            return
        if self.alive:
            self.crash()
        self.start_later(RESTART_S * self.chance.random())

    def _die_in_a_job(self) -> None:
        self.disk.trap = -1
        self.kills += 1
        self.plug.is_out = True
        self.world.trace(f"{self.name} dies while it writes")
        self.world.kernel.at(self.world.kernel.now_us, None, self._after_trap, self.incarnation)

    def _after_trap(self, incarnation: int) -> None:
        if self.incarnation == incarnation and self.alive:
            self._die()
            self.start_later(RESTART_S * self.chance.random())

    def _die(self) -> None:
        self.alive = False
        self.kills += (
            self._is_replaced
        )  # an orderly end may take a while, and what it had is there until then
        self._is_replaced = False
        self.incarnation += 1
        self.backlog = []
        self.plug.is_out = True
        loop, self.loop, self._main = self.loop, None, None
        self.forget()
        if loop is not None:
            loop.kill()
        strands, self.strands = self.strands, []
        for strand in strands:
            strand.kill()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if task is not self._main:
            return
        error = None if task.cancelled() else task.exception()
        self.ended_by = "" if error is None else repr(error)
        self.ended_at = self.world.witness.head
        self.kills += _is_by_its_disk(error)
        self.world.trace(f"{self.name} ends {self.ended_by}")
        for each in error.exceptions if isinstance(error, BaseExceptionGroup) else (error,):
            if isinstance(each, BUGS):
                self.world.broken(self, each)
        self._die()
        self.is_refused = isinstance(error, ConfigurationError)
        self.start_later(0.2 + RESTART_S * self.chance.random())

    def note(self, level: str, text: str, values: dict[str, object]) -> None:
        """A line of its log."""
        if level not in ("debug", "info"):
            told = " ".join(f"{name}={value}" for name, value in values.items())
            self.world.trace(f"{self.name} says: {text} {told}"[:400])
