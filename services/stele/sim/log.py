"""The simulated log: one partition behind a leader, as Kafka with acks=all lets a writer see it.

An append may be lost, land twice, or land late; it is never acknowledged here, because the protocol must
not rest on that. Records land on the leader first. Readers see them once they are replicated (the high
watermark); a change of leader throws away those that were not.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from stele.log.port import Record
from stele.sim.kernel import Kernel, Owner, us
from stele.sim.network import Network

T = TypeVar("T")

BROKER: Final = Owner("log")
FETCH_RETRY_S: Final = 0.2
FIRST_FETCH_S: Final = 1.5
"""Longest time until a process that starts has its first records."""
MAX_BATCH: Final = 16


class Subscription:
    """How far one process has read, and whether a batch is on its way to it."""

    def __init__(
        self, owner: Owner, offset: int, on_records: Callable[[list[Record]], None]
    ) -> None:
        self.owner = owner
        self.incarnation = owner.incarnation
        self.offset = offset
        self.on_records = on_records
        self.fetching = False


class SimLog:
    """The broker's side. ``on_durable(offset, value)`` is called once for each record that is there to stay."""

    def __init__(
        self, kernel: Kernel, network: Network, on_durable: Callable[[int, bytes], None]
    ) -> None:
        self.records: list[bytes] = []
        self.high = 0
        self.truncated = 0
        self._kernel = kernel
        self._network = network
        self._replication = kernel.random("replication").random
        self._on_durable = on_durable
        self._last_arrival_us: dict[str, int] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._down_until_us = 0
        self._generation = 0

    def append(self, owner: Owner, value: bytes) -> None:
        """Send a record off; records of one process that land do so in their order."""
        weather, draw = self._network.weather, self._network.chance(owner.name, BROKER.name)
        if not self._network.reaches(owner.name, BROKER.name) or draw() < weather.append_loss:
            return
        arrival = self._kernel.now_us + self._network.delay_us(draw)
        if draw() < weather.append_tail:
            arrival += us(weather.tail_s * draw())
        arrival = max(arrival, self._last_arrival_us.get(owner.name, 0))
        self._last_arrival_us[owner.name] = arrival
        self._kernel.at(arrival, None, self._land, value)
        if draw() < weather.append_duplicate:
            self._kernel.at(arrival + self._network.delay_us(draw), None, self._land, value)

    def change_leader(self, down_s: float) -> None:
        """The leader is gone: what it had not replicated is lost, and appends fail for a while."""
        self.truncated += len(self.records) - self.high
        del self.records[self.high :]
        self._generation += 1
        self._down_until_us = self._kernel.now_us + us(down_s)

    def follow(self, owner: Owner, offset: int, on_records: Callable[[list[Record]], None]) -> None:
        """Hand batches of records from ``offset`` on to a process, in order, as long as it lives."""
        subscription = Subscription(owner, offset, on_records)
        self._subscriptions[owner.name] = subscription
        subscription.fetching = True
        later = self._kernel.now_us + us(FIRST_FETCH_S * self._luck(owner)())
        self._kernel.at(later, None, self._hand_over, subscription)

    def ask_end(self, owner: Owner, answer: Callable[[int], None]) -> None:
        """The offset after the last durable record, as of the moment the question arrives."""
        self._ask(owner, lambda: self.high, answer)

    def ask_records(
        self, owner: Owner, offset: int, limit: int, answer: Callable[[list[Record]], None]
    ) -> None:
        """At most ``limit`` durable records from ``offset`` on."""

        def found() -> list[Record]:
            last = min(self.high, offset + limit)
            return [Record(at, self.records[at]) for at in range(offset, last)]

        self._ask(owner, found, answer)

    def _ask(self, owner: Owner, find: Callable[[], T], answer: Callable[[T], None]) -> None:
        """A question that may get no answer; it is looked up when it arrives."""
        incarnation = owner.incarnation

        def tell() -> None:
            if owner.incarnation == incarnation and self._network.reaches(BROKER.name, owner.name):
                later = self._kernel.now_us + self._network.delay_us(self._luck(owner))
                self._kernel.at(later, owner, answer, find())

        if self._network.reaches(owner.name, BROKER.name):
            there = self._kernel.now_us + self._network.delay_us(self._luck(owner))
            self._kernel.at(there, None, tell)

    def _luck(self, owner: Owner) -> Callable[[], float]:
        return self._network.chance(BROKER.name, owner.name)

    def _land(self, value: bytes) -> None:
        if self._kernel.now_us < self._down_until_us:
            return
        self.records.append(value)
        later = self._kernel.now_us + self._network.delay_us(self._replication)
        self._kernel.at(later, None, self._replicated, self._generation, len(self.records))

    def _replicated(self, generation: int, count: int) -> None:
        if generation != self._generation:
            return
        while self.high < count:
            self.high += 1
            self._on_durable(self.high - 1, self.records[self.high - 1])
        for subscription in self._subscriptions.values():
            self._fetch(subscription)

    def _fetch(self, subscription: Subscription) -> None:
        if not subscription.fetching and subscription.offset < self.high:
            subscription.fetching = True
            later = self._kernel.now_us + self._network.delay_us(self._luck(subscription.owner))
            self._kernel.at(later, None, self._hand_over, subscription)

    def _hand_over(self, subscription: Subscription) -> None:
        owner = subscription.owner
        if self._subscriptions.get(owner.name) is not subscription:
            return
        subscription.fetching = False
        if not owner.alive or owner.incarnation != subscription.incarnation:
            return
        if not self._network.reaches(BROKER.name, owner.name):
            subscription.fetching = True
            self._kernel.at(
                self._kernel.now_us + us(FETCH_RETRY_S), None, self._hand_over, subscription
            )
            return
        count = 1 + int(self._luck(owner)() * MAX_BATCH)
        first, last = subscription.offset, min(self.high, subscription.offset + count)
        subscription.offset = last
        batch = [Record(offset, self.records[offset]) for offset in range(first, last)]
        self._kernel.at(self._kernel.now_us, owner, subscription.on_records, batch)
        self._fetch(subscription)
