"""Liveness of the catch-up replicas: each is asked at intervals for its position in the log."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from stele.coordinator.model import ReplicaHeard
from stele.domain.archive.model import Replica
from stele.domain.observed_time import ObservedTime
from stele.runtime.answers.position import Position
from stele.runtime.transport import FAILURES, HttpTransport, Transport, answer_of

ASK_S: Final = 3.0
"""Seconds between two probes. Three fit into the time after which a replica counts as down."""
ANSWER_S: Final = 2.0
MAX_ANSWER_BYTES: Final = 64 * 1024
BAD_REQUEST: Final = 400
AWAY_S: Final = 4 * (ASK_S + ANSWER_S)
"""Seconds. After a longer time without probes, silence counts again from the next probe."""


class AskedReplicas:
    """Probes of catch-up replicas; ``heard`` holds their results. None are sent while ``replicas``
    is empty.
    """

    def __init__(
        self, replicas: Callable[[], list[Replica]], transport: Transport | None = None
    ) -> None:
        self.heard: dict[str, ReplicaHeard] = {}
        self._replicas = replicas
        self._transport = transport or HttpTransport()
        self._asking = ObservedTime(AWAY_S)

    async def run(self) -> None:
        """Probe until cancelled.

        A replica that does not answer in time, or answers with another id, counts as silent.
        """
        try:
            while True:
                await self._ask_all()
                await asyncio.sleep(ASK_S)
        finally:
            await self._transport.close()

    async def _ask_all(self) -> None:
        began_s, asked = time.monotonic(), self._replicas()
        self._asking = self._asking.confirmed(began_s)
        # After a gap in probing, old silence proves nothing, so it is dropped.
        before = self.heard if self._asking.since_s < began_s else {}
        self.heard = {
            each.replica_id: before.get(each.replica_id, ReplicaHeard(began_s)) for each in asked
        }
        answers = await asyncio.gather(*(self._answer(each) for each in asked))
        for each, epoch in zip(asked, answers, strict=True):
            if epoch is not None:
                since_s = self.heard[each.replica_id].since_s
                self.heard[each.replica_id] = ReplicaHeard(since_s, time.monotonic(), epoch)

    async def _answer(self, replica: Replica) -> int | None:
        """Return the epoch that it has read; None on failure. Another replica may have received its
        address.
        """
        try:
            url = f"{replica.address}/v1/position"
            answer = await answer_of(self._transport, url, ANSWER_S, most_bytes=MAX_ANSWER_BYTES)
            position = msgspec.json.decode(answer.body, type=Position)
        except FAILURES:
            return None
        # Another process may listen at the old address.
        is_right = answer.status < BAD_REQUEST and position.instance == replica.replica_id
        return position.epoch if is_right else None
