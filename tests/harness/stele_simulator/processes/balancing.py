"""The tablet-balancer as a process of the simulated cluster, and what it reads of the nodes' loads."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException, TopicPartition

from stele.log.codec import decode_load
from stele.log.ends import resolve
from stele.log.flows import ENDS_TIMEOUT_S, FlowReader, flow_topic
from stele.runtime.position import position_route
from stele.tablet_balancer.balancer import Balancer, balancing
from stele.tablet_balancer.http import routes
from stele.tablet_balancer.loads import Loads
from stele.tablet_balancer.settings import BalancerSettings
from stele_simulator.kernel import Clock
from stele_simulator.processes.members import BROKERS, CLUSTER, FollowerMachine

NAME = "tablet-balancer"
OLDEST_S = 0.001
"""Least age of records from before the start. New records have 0."""


class LoadReader(FlowReader):
    """The topic of loads from its beginning, as Faust reads it, whose threads nothing simulates."""

    def __init__(self, loads: Loads, clock: Clock) -> None:
        super().__init__(BROKERS, flow_topic(CLUSTER, "load"), self._take, lambda _: None)
        self._loads = loads
        self._clock = clock
        self._old = 0
        """So many records were there at the start."""

    async def start(self) -> None:
        await super().start()
        self._tell()

    def _assign(self) -> bool:
        """Raises nothing: false while no leader answers."""
        try:
            places = [
                resolve(self._consumer, [TopicPartition(self._topic, 0, place)], ENDS_TIMEOUT_S)
                for place in (OFFSET_END, OFFSET_BEGINNING)
            ]
        except (KafkaException, TimeoutError):
            return False
        self._old = places[0][0].offset
        self._consumer.assign(places[1])
        return True

    def _take(self, value: bytes) -> None:
        age_s = 0.0
        if self._old:
            self._old -= 1
            sent_ms = decode_load(value).at_ms
            age_s = max(OLDEST_S, (self._clock.wall_ms() - sent_ms) / 1000)
        self._loads.on_record(value, age_s)
        self._tell()

    def _tell(self) -> None:
        if not self._old:
            self._loads.on_read_until(time.monotonic(), 0.0)


@asynccontextmanager
async def reading_loads(loads: Loads, clock: Clock) -> AsyncIterator[None]:
    """Run the reader inside the block. It waits while the brokers are unreachable."""
    reader = LoadReader(loads, clock)
    try:
        await reader.start()
        yield
    finally:
        await reader.close()


class BalancerMachine(FollowerMachine):
    """tablet-balancer."""

    balancer: Balancer | None = None
    loads: Loads | None = None

    async def main(self) -> None:
        settings = BalancerSettings(cluster=CLUSTER, instance_id=self.name)
        self.loads = loads = Loads()
        async with (
            self.following() as followed,
            reading_loads(loads, self.clock),
            balancing(settings, followed, loads) as balancer,
        ):
            self.balancer = balancer
            position = position_route(NAME, self.name, followed.follower)
            self.routes += [position, *routes(balancer)]
            await self.serve(NAME, settings, followed, balancer.run())

    def forget(self) -> None:
        super().forget()
        self.balancer = None
