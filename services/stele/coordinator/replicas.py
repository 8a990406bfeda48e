"""Who of the catch-up replicas is alive: each is asked now and then where it stands in the log."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import aiohttp
import msgspec

from stele.coordinator.knowledge import ReplicaHeard
from stele.domain.archive.facts import Replica
from stele.runtime.answers.position import Position

ASK_S: Final = 3.0
"""Time between two questions: three fit into what makes a replica count as down."""
ANSWER_S: Final = 2.0
MAX_ANSWER_BYTES: Final = 64 * 1024
AWAY_S: Final = 4 * (ASK_S + ANSWER_S)
"""Who has not asked for so long has slept: that nobody was heard meanwhile says nothing."""


class AskedReplicas:
    """``heard`` is what the coordinator is told. Nobody is asked while ``replicas`` gives none."""

    def __init__(self, replicas: Callable[[], list[Replica]]) -> None:
        self.heard: dict[str, ReplicaHeard] = {}
        self._replicas = replicas
        self._asked_s = float("-inf")

    async def run(self) -> None:
        """Ask until cancelled. Who does not answer in time, or is somebody else, is not heard."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                await self._ask_all(http)
                await asyncio.sleep(ASK_S)

    async def _ask_all(self, http: aiohttp.ClientSession) -> None:
        began_s, asked = time.monotonic(), self._replicas()
        slept, self._asked_s = began_s - self._asked_s > AWAY_S, began_s
        before = {} if slept else self.heard
        self.heard = {
            each.replica_id: before.get(each.replica_id, ReplicaHeard(began_s)) for each in asked
        }
        answers = await asyncio.gather(*(_answer(http, each) for each in asked))
        for each, epoch in zip(asked, answers, strict=True):
            if epoch is not None:
                since_s = self.heard[each.replica_id].since_s
                self.heard[each.replica_id] = ReplicaHeard(since_s, time.monotonic(), epoch)


async def _answer(http: aiohttp.ClientSession, replica: Replica) -> int | None:
    """The epoch that it has read up to. Another replica may have got its address."""
    try:
        async with http.get(f"{replica.address}/v1/position") as answer:
            body = await answer.content.read(MAX_ANSWER_BYTES)
            position = msgspec.json.decode(body, type=Position)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    is_right = answer.ok and position.instance == replica.replica_id
    return position.epoch if is_right else None
