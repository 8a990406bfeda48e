"""Who of the catch-up replicas is alive: each is asked now and then where it stands in the log."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from stele.coordinator.knowledge import ReplicaHeard
from stele.domain.archive.facts import Replica
from stele.runtime.answers.position import Position
from stele.runtime.transport import FAILURES, HttpTransport, Transport

ASK_S: Final = 3.0
"""Time between two questions: three fit into what makes a replica count as down."""
ANSWER_S: Final = 2.0
MAX_ANSWER_BYTES: Final = 64 * 1024
BAD_REQUEST: Final = 400
AWAY_S: Final = 4 * (ASK_S + ANSWER_S)
"""Who has not asked for so long has slept: that nobody was heard meanwhile says nothing."""


class AskedReplicas:
    """``heard`` is what the coordinator is told. Nobody is asked while ``replicas`` gives none."""

    def __init__(
        self, replicas: Callable[[], list[Replica]], transport: Transport | None = None
    ) -> None:
        self.heard: dict[str, ReplicaHeard] = {}
        self._replicas = replicas
        self._transport = transport or HttpTransport()
        self._asked_s = float("-inf")

    async def run(self) -> None:
        """Ask until cancelled. Who does not answer in time, or is somebody else, is not heard."""
        try:
            while True:
                await self._ask_all()
                await asyncio.sleep(ASK_S)
        finally:
            await self._transport.close()

    async def _ask_all(self) -> None:
        began_s, asked = time.monotonic(), self._replicas()
        slept, self._asked_s = began_s - self._asked_s > AWAY_S, began_s
        before = {} if slept else self.heard
        self.heard = {
            each.replica_id: before.get(each.replica_id, ReplicaHeard(began_s)) for each in asked
        }
        answers = await asyncio.gather(*(self._answer(each) for each in asked))
        for each, epoch in zip(asked, answers, strict=True):
            if epoch is not None:
                since_s = self.heard[each.replica_id].since_s
                self.heard[each.replica_id] = ReplicaHeard(since_s, time.monotonic(), epoch)

    async def _answer(self, replica: Replica) -> int | None:
        """The epoch that it has read up to. Another replica may have got its address."""
        body = bytearray()

        def took(_: int, piece: bytes) -> None:
            body.extend(piece[: MAX_ANSWER_BYTES - len(body)])

        try:
            url = f"{replica.address}/v1/position"
            status = await self._transport.ask(url, took, ANSWER_S)
            position = msgspec.json.decode(body, type=Position)
        except (*FAILURES, ValueError):
            return None
        is_right = status < BAD_REQUEST and position.instance == replica.replica_id
        return position.epoch if is_right else None
