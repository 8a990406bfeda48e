"""An asyncio event loop in virtual time, one for each life of a process.

A job of the loop's own threads happens at one instant, some time after its request. A job of an executor may
block, and these jobs keep their order.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from stele_simulator.kernel import Clock, Kernel, Owner, us

T = TypeVar("T")

_running_loop = asyncio._get_running_loop
_set_running_loop = asyncio._set_running_loop

JOB_S: Final = 0.004
"""Longest time that a job of a thread takes, usually."""
PRUNE_TASKS: Final = 500
LAST_TURNS: Final = 20_000
LAST_CANCELS: Final = 5


class Died(BaseException):
    """Raised where a process dies, in a job or where it shields itself from cancellation. Its handlers do not
    see it.
    """


class Handle:
    """As ``asyncio.Handle`` and ``TimerHandle``, which ask their loop whether it debugs: a run
    makes a million of them. A timer that is cancelled comes up and does nothing.
    """

    __slots__ = ("_when_s", "args", "callback", "context")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        when_s: float = 0.0,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        """None once it is cancelled."""
        self.args = args
        self.context = copy_context() if context is None else context
        self._when_s = when_s

    def when(self) -> float:
        return self._when_s

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None


class Worker(Protocol):
    """An executor of one thread."""

    def run(self, job: Callable[[], None]) -> None: ...


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of ``owner``, whose events come from ``kernel``. ``clock`` gives its time.

    ``runs`` is called with the owner before each turn, and with None after it. ``on_error`` gets unhandled
    exceptions.
    """

    def __init__(
        self,
        kernel: Kernel,
        owner: Owner,
        clock: Clock,
        luck: Callable[[], float],
        runs: Callable[[Any], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.owner = owner
        self._kernel = kernel
        self._clock = clock
        self._luck = luck
        self._runs = runs
        self._on_error = on_error
        self._incarnation = owner.incarnation
        self._ready: deque[Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._busy_until_us: dict[Worker, int] = {}
        """By the executor itself: another one that is made later may get the id of one that is gone."""
        self._over = False
        self._is_due = False
        """A turn is on its way."""
        self._callbacks_left = 0
        self._then: Callable[[], object] = lambda: None

    # -- turns --

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        if not self._is_due and not self._over:
            self._is_due = True
            self._kernel.at(self._kernel.now_us, self.owner, self._turn)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        now_s = self._clock.monotonic_s()
        handle = Handle(callback, args, context, now_s + delay)
        self._set_timer(handle, now_s)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        handle = Handle(callback, args, context, when)
        self._set_timer(handle, self._clock.monotonic_s())
        return handle

    def _set_timer(self, handle: Handle, now_s: float) -> None:
        if not self._over:
            delay_us = self._clock.timer_us(max(0.0, handle.when() - now_s)) + 1
            self._kernel.at(self._kernel.now_us + delay_us, self.owner, self._due, handle)

    def time(self) -> float:
        return self._clock.monotonic_s()

    def _turn(self) -> None:
        """Run the callbacks that were ready at the beginning. Those that they add run in the next turn, as in
        asyncio.
        """
        self._is_due = False
        self._inside(self, self._run_ready)

    def _run_ready(self) -> None:
        ready, runs, owner = self._ready, self._runs, self.owner
        for _ in range(len(ready)):
            if self._over or not ready:
                return
            handle = ready.popleft()
            if handle.callback is not None:
                runs(owner)  # the one before may have ended another process
                self._run(handle)
                if self._callbacks_left:
                    self._callbacks_left -= 1
                    if not self._callbacks_left and self._is_halted_by(self._then):
                        return

    def behind(self, callbacks: int, then: Callable[[], object]) -> None:
        """Call ``then`` after this number of further callbacks, possibly within a turn."""
        self._callbacks_left, self._then = callbacks, then

    def _is_halted_by(self, then: Callable[[], object]) -> bool:
        """Return whether the process is paused or dead. Ready callbacks run when it continues."""
        then()
        if self.owner.paused_until_us <= self._kernel.now_us:
            return self._over
        if self._ready and not self._is_due and not self._over:
            self._is_due = True
            self._kernel.at(self._kernel.now_us, self.owner, self._turn)
        return True

    def _due(self, handle: Handle) -> None:
        if handle.callback is not None:
            self._inside(self, self._run, handle)

    def _run(self, handle: Handle) -> None:
        try:
            handle.context.run(handle.callback, *handle.args)  # type: ignore[arg-type]
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._broken(error)

    def _inside(self, loop: "VirtualLoop | None", call: Callable[..., T], *args: Any) -> T:
        before = _running_loop()
        _set_running_loop(loop)
        self._runs(self.owner)
        try:
            return call(*args)
        finally:
            self._runs(None)
            _set_running_loop(before)

    # -- tasks and threads --

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if len(self._tasks) > PRUNE_TASKS:
            self._tasks = {each: None for each in self._tasks if not each.done()}
        self._tasks[task] = None
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Worker | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        if self._over:
            future.set_exception(OSError("the process is dead"))
            return future
        due_us = self._kernel.now_us + us(JOB_S * self._luck())
        if executor is None:
            self._kernel.at(due_us, self.owner, self._inside, None, self._job, future, func, args)
        else:
            due_us = max(due_us, self._busy_until_us.get(executor, 0))
            self._busy_until_us[executor] = due_us
            job = partial(self._job, future, func, args)
            self._kernel.at(due_us, self.owner, executor.run, job)
        return future

    def _job(self, future: asyncio.Future[T], func: Callable[..., T], args: Any) -> None:
        try:
            found = func(*args)
        except Died:
            return
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
            return
        if not future.done():
            future.set_result(found)

    # -- the end --

    def kill(self) -> None:
        """The process is dead: its tasks are ended where they are, and nothing that they do counts."""
        self._over = True
        for _ in range(LAST_CANCELS):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            for _ in range(LAST_TURNS):
                if not self._ready:
                    break
                self._due(self._ready.popleft())
        for task in [*self._tasks]:  # the last lines of one may begin others, which never run
            if not task.done():
                self._end(task)
        self._ready.clear()

    def _end(self, task: asyncio.Task[Any]) -> None:
        """End tasks that shield themselves from cancellation. Otherwise garbage collection runs their last
        lines in another process's turn.
        """
        coro: Any = task.get_coro()
        for _ in range(LAST_TURNS):
            try:
                self._inside(self, coro.throw, Died())
            except BaseException:  # that is its end, whatever it says of it
                return

    def _broken(self, error: BaseException) -> None:
        """Handle an exception of a callback."""
        if not self._over:
            self._on_error(error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore asyncio's reports of exceptions that were never retrieved: their tasks were cancelled."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def get_task_factory(self) -> None:
        return None
