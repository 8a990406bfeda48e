"""The event loop of a simulated process: all tasks of a process end with it."""

import asyncio
import gc
from contextlib import suppress

from stele_simulator.kernel import Clock, Kernel, Owner
from stele_simulator.processes.event_loop import VirtualLoop


def _loop() -> tuple[Kernel, VirtualLoop]:
    kernel, owner = Kernel("seed"), Owner("n1")
    owner.alive = True
    loop = VirtualLoop(  # type: ignore[abstract]
        kernel, owner, Clock(kernel), lambda: 0.5, lambda _: None, lambda _: None
    )
    return kernel, loop


def test_task_that_suppresses_cancels_ends_with_its_process() -> None:
    ended = list[str]()

    async def main() -> None:
        try:
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.get_running_loop().create_future()
        finally:
            ended.append("inside" if asyncio.get_running_loop() is loop else "outside")

    kernel, loop = _loop()
    task = loop.create_task(main())
    kernel.run_until(1_000_000)
    loop.kill()
    assert ended == ["inside"]
    del task
    gc.collect()
    assert ended == ["inside"]


def test_process_can_pause_between_two_callbacks_of_one_turn() -> None:
    """Ready callbacks continue after the pause, in order, and before later ones."""
    kernel, loop = _loop()
    ran = list[tuple[int, str]]()

    def pause() -> None:
        loop.owner.paused_until_us = kernel.now_us + 1_000

    def note(name: str) -> None:
        ran.append((kernel.now_us, name))

    def meanwhile() -> None:
        loop.call_soon(note, "meanwhile")

    for name in ("one", "two", "three", "four"):
        loop.call_soon(note, name)
    loop.behind(2, pause)
    kernel.at(500, loop.owner, meanwhile)
    kernel.run_until(10_000)
    woken = [(1_000, name) for name in ("three", "four", "meanwhile")]
    assert ran == [(0, "one"), (0, "two"), *woken]


def test_process_that_ends_during_a_turn_runs_no_more_callbacks() -> None:
    kernel, loop = _loop()
    ran = list[str]()
    for name in ("one", "two", "three"):
        loop.call_soon(ran.append, name)
    loop.behind(1, loop.kill)
    kernel.run_until(10_000)
    assert ran == ["one"]


def test_process_paused_again_runs_the_remaining_events_later() -> None:
    kernel, owner = Kernel("seed"), Owner("n1")
    ran = list[int]()

    def again(until_us: int) -> None:
        ran.append(kernel.now_us)
        owner.paused_until_us = until_us

    owner.paused_until_us = 100
    kernel.at(10, owner, again, 200)
    kernel.at(20, owner, again, 0)
    kernel.at(30, owner, again, 0)
    kernel.run_until(1_000)
    assert ran == [100, 200, 200]


def test_task_started_while_a_process_ends_never_runs() -> None:
    begun = list[str]()

    async def other() -> None:
        begun.append("other")

    begin = other()

    async def main() -> None:
        loop, others = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        while True:
            try:
                await loop.create_future()
            except asyncio.CancelledError:
                pass
            except BaseException:
                others.append(loop.create_task(begin))
                raise

    kernel, loop = _loop()
    loop.create_task(main())
    kernel.run_until(1_000_000)
    loop.kill()
    assert begun == []
    begin.close()
