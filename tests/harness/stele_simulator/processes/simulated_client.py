"""Clients of the simulated cluster: they are no processes of production, and never crash."""

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from stele_simulator.kernel import Clock, Future, Owner, Task, us

if TYPE_CHECKING:
    from stele_simulator.processes.world import World


class SimulatedClient(Owner):
    """A client with its own random stream, ``purpose/name``. Subclasses define ``_work``."""

    def __init__(self, name: str, world: "World", purpose: str) -> None:
        super().__init__(name)
        self.world = world
        self.clock = Clock(world.kernel)
        self.chance = world.kernel.random(f"{purpose}/{name}")

    def start(self) -> None:
        self.spawn(self._work())

    async def _work(self) -> None:
        raise NotImplementedError

    def spawn(self, body: Coroutine[Any, Any, None]) -> None:
        Task(self, body)

    async def sleep(self, seconds: float) -> None:
        future, kernel = Future[None](), self.world.kernel
        kernel.at(kernel.now_us + us(seconds), self, future.set, None)
        await future.wait()

    async def fetch(
        self,
        url: str,
        limit_s: float,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        method: str = "",
        seen: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Return status and body; -1 for no answer within the limit, 0 for a refused connection.

        ``seen`` receives the headers of the answer.
        """
        future, kernel = Future[tuple[int, bytes]](), self.world.kernel
        self.world.web.ask(
            self,
            url,
            lambda *found: future.set(found),
            params or {},
            headers or {},
            body,
            method,
            seen,
        )
        kernel.at(kernel.now_us + us(limit_s), self, future.set, (-1, b""))
        return await future.wait()
