"""The load of a test: the clients of ``stele demo``, which keep account of each answer and check it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

import aiohttp

from stele_harness.demo import load as demo
from tests.polling import until

KEYS_PER_WORKER = 32
PAUSE_S = 0.005
"""Between two operations of a worker."""

_number = count()


class Load(demo.Load):
    """Workers that write keys of this load alone; ``via`` names the nodes through which they do.

    ``address_of`` gives the present address of a node.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        address_of: Callable[[str], str],
        via: Sequence[str],
        pause_s: float = PAUSE_S,
    ) -> None:
        prefix = f"load-{next(_number)}"
        super().__init__(http, prefix=prefix, keys_per_worker=KEYS_PER_WORKER, pause_s=pause_s)
        self.via = via
        self._address_of = address_of

    @property
    def count(self) -> int:
        """Number of acknowledged writes."""
        return self.account.writes_acknowledged

    @property
    def acknowledged(self) -> dict[str, bytes]:
        """The value of each key whose last write was acknowledged. Others may have either of two values."""
        known = (key for key in self._all if 0 < key.acknowledged == key.attempted)
        return {key.name: demo.value_of(key.name, key.acknowledged) for key in known}

    async def go_on(self, writes: int) -> None:
        """Wait for so many more acknowledged writes. Raises AssertionError after a stale read."""
        goal = self.count + writes
        await until(lambda: self.count >= goal, f"{writes} more acknowledged writes", 60)
        self.check()

    def check(self) -> None:
        """Raise AssertionError if a read went back behind an acknowledged write."""
        assert self.account.stale_reads == []

    async def is_read(self, via: Sequence[str]) -> None:
        """Raise AssertionError unless each of these nodes returns each acknowledged write."""
        self.nodes = tuple(map(self._address_of, via))
        lost = await self.lost_writes()
        assert not lost, lost

    def _some_nodes(self) -> list[str]:
        chosen = self._random.sample(self.via, min(2, len(self.via)))
        return [self._address_of(name) for name in chosen]


@asynccontextmanager
async def running(load: Load) -> AsyncIterator[Load]:
    """The load works inside the block; after it no read was stale."""
    load.start(())
    try:
        yield load
    finally:
        await load.stop()
    load.check()
