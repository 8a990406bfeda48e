"""A guard over an in-memory log whose end, and whose records, the test can keep from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stele.log.follower import LogFollower
from stele.session_guard.guard import Guard
from stele.session_guard.proof import Proofs
from tests.node.world import World

TIMEOUT_S = 5.0


class GuardedWorld:
    """``asked`` counts the questions for the log's end; ``cut_off`` and ``freeze`` are the faults."""

    def __init__(self, world: World, follower: LogFollower) -> None:
        self.world = world
        self.follower = follower
        self.guard = Guard(follower, TIMEOUT_S)
        self.proofs = Proofs(follower, TIMEOUT_S)
        self.asked = 0
        self._log = follower._log
        self._answers = asyncio.Event()
        self._answers.set()
        self._end_offset: Callable[[], object] = self._log.end_offset
        self._log.end_offset = self._ask  # type: ignore[method-assign]

    @staticmethod
    async def make(world: World | None = None) -> GuardedWorld:
        world = world or World()
        return GuardedWorld(world, await world.follower())

    async def _ask(self) -> int:
        self.asked += 1
        await self._answers.wait()
        return await self._end_offset()  # type: ignore[misc,no-any-return]

    def freeze(self) -> None:
        """No record comes any more; the log's end is told as ever."""
        self.world.partition.followers.remove(self.follower._on_records)

    def thaw(self) -> None:
        self.follower.start()

    def cut_off(self) -> None:
        """Neither records nor the log's end."""
        self.freeze()
        self._answers.clear()

    def answer(self) -> None:
        self._answers.set()

    def withhold_answers(self) -> None:
        self._answers.clear()
