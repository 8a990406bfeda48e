"""A guard over an in-memory log. The test can withhold its end and its records."""

from __future__ import annotations

import asyncio

from stele.log.follower import LogFollower
from stele.log.port import TopicProbe
from stele.session_guard.guard import Guard
from stele.session_guard.proof import Proofs
from tests.log.memory import MemoryLog
from tests.node.world import World

TIMEOUT_S = 5.0


class AskedLog(MemoryLog):
    """Counts the probes of its end. The test can withhold the answers, and the records."""

    def __init__(self, world: World) -> None:
        super().__init__(world.partition)
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def look(self, offset: int | None) -> TopicProbe:
        self.asked += 1
        await self.answers.wait()
        return await super().look(offset)

    def freeze(self) -> None:
        assert self._follower is not None
        self._partition.followers.remove(self._follower)

    def thaw(self) -> None:
        assert self._follower is not None
        self._partition.followers.append(self._follower)
        self._follower(self._partition.records)


class GuardedWorld:
    """A guard with a world. ``asked`` counts probes of the log end; ``cut_off`` and ``freeze`` are faults."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._log = AskedLog(world)
        self.follower = LogFollower(self._log)
        self.follower.start()
        self.guard = Guard(self.follower, TIMEOUT_S)
        self.proofs = Proofs(self.follower, TIMEOUT_S)

    @staticmethod
    async def make(world: World | None = None) -> GuardedWorld:
        made = GuardedWorld(world or World())
        await made.follower.wait_for_epoch(made.world.image.epoch)
        return made

    @property
    def asked(self) -> int:
        return self._log.asked

    def freeze(self) -> None:
        """Stop the records. The log's end is reported as before."""
        self._log.freeze()

    def thaw(self) -> None:
        self._log.thaw()

    def cut_off(self) -> None:
        """Stop the records and the answers about the log's end."""
        self.freeze()
        self._log.answers.clear()

    def answer(self) -> None:
        self._log.answers.set()

    def withhold_answers(self) -> None:
        self._log.answers.clear()
