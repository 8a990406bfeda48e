"""Threads of simulated processes, as greenlets: other stacks in the same thread.

Each runs only from where the kernel switches to it until it waits. One piece of code runs at any time, so a
run depends on its seed alone. Production code that blocks (``Consumer.poll``, ``Event.wait``) runs unchanged.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import greenlet  # type: ignore[import-untyped]

from stele_simulator.kernel import us
from stele_simulator.processes.event_loop import Died
from stele_simulator.processes.module_stand_in import ModuleStandIn

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine


class Strand:
    """A thread of ``machine``'s process; its wake-ups are events of that process."""

    running: "Strand | None" = None
    """The one that runs now; None while the kernel or an event loop does."""

    def __init__(
        self,
        machine: "Machine",
        target: Callable[..., object],
        args: Sequence[Any] = (),
        name: str = "",
    ) -> None:
        self.machine = machine
        self.name = name
        self.ended = False
        self._incarnation = machine.incarnation
        self._call = (target, args)
        self._killed = False
        self._wait = 0
        self._greenlet = greenlet.greenlet(self._run)

    def start(self) -> None:
        self.machine.strands.append(self)
        kernel = self.machine.world.kernel
        kernel.at(kernel.now_us, self.machine, self._resume, self._wait)

    def wait_until(self, time_us: int) -> None:
        """Run the simulation until then, or until ``wake``. Raises Died when the process is dead."""
        assert Strand.running is self, "only the thread itself waits"
        if self._killed:
            raise Died
        kernel = self.machine.world.kernel
        kernel.at(max(time_us, kernel.now_us), self.machine, self._resume, self._wait)
        self._greenlet.parent.switch()
        if self._killed:
            raise Died

    def wake(self) -> None:
        """End its wait, if it is at one."""
        kernel = self.machine.world.kernel
        kernel.at(kernel.now_us, self.machine, self._resume, self._wait)

    def kill(self) -> None:
        """The process is dead: nothing that the thread does from here on counts."""
        self._killed = True
        if not self.ended:
            self._hand_over()
        assert self.ended, "a thread of a dead process goes on"

    def _resume(self, wait: int) -> None:
        if wait == self._wait and not self.ended:
            self._hand_over()

    def _hand_over(self) -> None:
        self._wait += 1
        before, Strand.running = Strand.running, self
        self.machine.world.runs(self.machine)
        try:
            self._greenlet.parent = greenlet.getcurrent()
            self._greenlet.switch()
        finally:
            Strand.running = before
            self.machine.world.runs(None)

    def _run(self) -> None:
        try:
            if not self._killed:
                target, args = self._call
                target(*args)
        except Died:
            pass
        except BaseException as error:  # uncaught, as in any thread: it is a finding
            if not self._killed:
                self.machine.world.broken(self.machine, error)
        finally:
            self.ended = True
            if self in self.machine.strands:
                self.machine.strands.remove(self)


class Thread:
    """As ``threading.Thread``, as far as production uses it."""

    def __init__(
        self,
        machine: "Machine",
        target: Callable[..., object],
        args: Sequence[Any] = (),
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self.name = name
        self.ident: int | None = None
        self._strand = Strand(machine, target, args, name)

    def start(self) -> None:
        self.ident = id(self)
        self._strand.start()

    def is_alive(self) -> bool:
        return self.ident is not None and not self._strand.ended

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, which was requested before. Nothing happens in between."""


class Event:
    """As ``threading.Event``."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Strand] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for strand in self._waiting:
            strand.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        strand = Strand.running
        if self._is_set or strand is None:
            return self._is_set
        self._waiting.append(strand)
        try:
            strand.wait_until(strand.machine.world.kernel.now_us + us(timeout or 0.0))
        finally:
            self._waiting.remove(strand)
        return self._is_set


class Semaphore:
    """As ``threading.Semaphore``, for one thread that acquires."""

    def __init__(self, value: int) -> None:
        self._left = value
        self._released = Event()

    def acquire(self, timeout: float) -> bool:
        self._released.clear()
        if not self._left and not self._released.wait(timeout):
            return False
        self._left -= 1
        return True

    def release(self) -> None:
        self._left += 1
        self._released.set()


class Executor:
    """As ``ThreadPoolExecutor`` of one thread. The event loop gives it each job when its time has come."""

    def __init__(self, machine: "Machine", max_workers: int, name: str) -> None:
        assert max_workers == 1, "jobs keep their order"
        self._machine = machine
        self._name = name
        self._jobs: deque[Callable[[], None]] = deque()
        self._is_running = False

    def submit(self, call: Callable[..., object], *args: Any) -> asyncio.Future[object]:
        return asyncio.get_running_loop().run_in_executor(self, call, *args)  # type: ignore[arg-type]

    def run(self, job: Callable[[], None]) -> None:
        """Run a job that is due, after those before it."""
        self._jobs.append(job)
        if not self._is_running:
            self._is_running = True
            Strand(self._machine, self._work, name=self._name).start()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish the requested work before the caller continues."""

    def _work(self) -> None:
        while self._jobs and self._machine.alive:
            self._jobs.popleft()()
        self._is_running = False


class Threads(ModuleStandIn):
    """As the module ``threading``. Threads and their events belong to the process that runs now."""

    Event = Event
    Semaphore = Semaphore

    def Thread(self, **given: Any) -> Thread:  # noqa: N802 - the module's own name
        return Thread(self._who(), **given)
