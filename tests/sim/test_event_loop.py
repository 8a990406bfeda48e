"""The event loop of a simulated process: what ends with it ends at once."""

import asyncio
import gc
from contextlib import suppress

from stele.sim.kernel import Clock, Kernel, Owner
from stele.sim.processes.event_loop import VirtualLoop


def test_who_keeps_off_cancels_ends_with_its_process() -> None:
    ended = list[str]()

    async def main() -> None:
        try:
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.get_running_loop().create_future()
        finally:
            ended.append("inside" if asyncio.get_running_loop() is loop else "outside")

    kernel = Kernel("seed")
    owner = Owner("n1")
    owner.alive = True
    loop = VirtualLoop(  # type: ignore[abstract]
        kernel, owner, Clock(kernel), lambda: 0.5, lambda _: None, lambda _: None
    )
    task = loop.create_task(main())
    kernel.run_until(1_000_000)
    loop.kill()
    assert ended == ["inside"]
    del task
    gc.collect()
    assert ended == ["inside"]
