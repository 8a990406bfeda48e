"""The event loop of a simulated process: what ends with it ends at once."""

import asyncio
import gc
from contextlib import suppress

from stele.sim.kernel import Clock, Kernel, Owner
from stele.sim.processes.event_loop import VirtualLoop


def _loop() -> tuple[Kernel, VirtualLoop]:
    kernel, owner = Kernel("seed"), Owner("n1")
    owner.alive = True
    loop = VirtualLoop(  # type: ignore[abstract]
        kernel, owner, Clock(kernel), lambda: 0.5, lambda _: None, lambda _: None
    )
    return kernel, loop


def test_who_keeps_off_cancels_ends_with_its_process() -> None:
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


def test_what_the_last_lines_of_a_process_begin_never_runs() -> None:
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
