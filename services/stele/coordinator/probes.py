"""Questions to other processes by HTTP: what no topic contains.

The catch-up replicas are asked at intervals for their position in the log, which shows their
liveness. Nodes are asked for the size of their data, for the estimates of a plan.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from stele.coordinator.model import ReplicaLiveness
from stele.domain.model.archive import Replica
from stele.domain.model.membership import Node
from stele.domain.observed_time import ObservedTime
from stele.runtime.answers.common import Position
from stele.runtime.answers.node import NodeView
from stele.runtime.transport import FAILURES, HttpTransport, Transport, answer_of

ASK_S: Final = 3.0
"""Seconds between two probes. Three fit into the time after which a replica counts as down."""
ANSWER_S: Final = 2.0
"""Seconds. A silent replica is probed again; the size of a silent node is unknown."""
MAX_ANSWER_BYTES: Final = 64 * 1024
BAD_REQUEST: Final = 400
AWAY_S: Final = 4 * (ASK_S + ANSWER_S)
"""Seconds. After a longer time without probes, silence counts again from the next probe."""


class ReplicaProbes:
    """Probes of catch-up replicas; ``liveness`` holds their results. None are sent while ``replicas``
    is empty.
    """

    def __init__(
        self, replicas: Callable[[], list[Replica]], transport: Transport | None = None
    ) -> None:
        self.liveness: dict[str, ReplicaLiveness] = {}
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
        before = self.liveness if self._asking.since_s < began_s else {}
        self.liveness = {
            each.replica_id: before.get(each.replica_id, ReplicaLiveness(began_s)) for each in asked
        }
        answers = await asyncio.gather(*(self._answer(each) for each in asked))
        for each, epoch in zip(asked, answers, strict=True):
            if epoch is not None:
                since_s = self.liveness[each.replica_id].since_s
                self.liveness[each.replica_id] = ReplicaLiveness(since_s, time.monotonic(), epoch)

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


async def held_bytes(nodes: Iterable[Node]) -> dict[str, dict[str, int]]:
    """Return bytes by node and data id, of nodes that answer in time with the expected host id."""
    http = HttpTransport()
    try:
        found = await asyncio.gather(*(_ask(http, node) for node in nodes))
    finally:
        await http.close()
    return {
        view.node_id: {data_id: size.bytes for data_id, size in view.keyspaces.items()}
        for view in found
        if view is not None
    }


async def _ask(http: Transport, node: Node) -> NodeView | None:
    try:
        answer = await answer_of(http, f"{node.address}/v1/node", ANSWER_S)
        view = msgspec.json.decode(answer.body, type=NodeView)
    except FAILURES:
        return None
    return view if (view.node_id, view.host_id) == (node.node_id, node.host_id) else None
