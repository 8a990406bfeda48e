"""Where a partition begins and ends, asked of its leader, whichever that is by now.

A consumer's ``get_watermark_offsets`` is not used: while the leader that it knew is away, it asks that
one again for ever, past its own time limit and past the election of the next (librdkafka, pull request 2535).
``offsets_for_times`` keeps its limit, and takes Kafka's two special times "beginning" and "end". It too
remembers the old leader, so who leads is asked anew after each failure.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition

from stele.log.brokers import Brokers
from stele.log.port import Ends
from stele.log.refusals import Refusals

TIMEOUT_S: Final = 10.0
FIRST_ATTEMPT_S: Final = 1.0
LONGEST_ATTEMPT_S: Final = 4.0
"""How long an answer is waited for, twice as long each time: the network may be slow, the leader dead."""
WHO_LEADS_S: Final = 2.0
"""How long an answer to who leads now is waited for, before all connections are made anew."""
PAUSE_S: Final = 0.05


def resolve(
    consumer: Consumer, wanted: list[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    """The partitions with real offsets for OFFSET_BEGINNING and OFFSET_END, as the leaders that the consumer
    knows tell them. Raises TimeoutError, KafkaException.
    """
    found = consumer.offsets_for_times(wanted, timeout=timeout_s)
    for partition in found:
        if partition.error is not None:
            raise KafkaException(partition.error)
        if partition.offset < 0:
            raise TimeoutError(f"no answer within {timeout_s:.1f} s")
    return found


class Prober:
    """Asks the brokers; every call blocks for ``TIMEOUT_S`` at most. For one thread at a time."""

    def __init__(
        self,
        brokers: Brokers,
        stop: threading.Event | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self._refusals = refusals or Refusals()
        self._settings = {
            **brokers.client(),
            "error_cb": self._refusals,
            "group.id": "stele-unused",
            "reconnect.backoff.ms": 50,
        }
        self._stop = stop or threading.Event()
        self._consumer: Consumer | None = None

    def end(self, topic: str, partition: int = 0) -> int:
        """Raises TimeoutError when no leader answers in time."""
        return self._ask(topic, partition, OFFSET_END)

    def ends(self, topic: str, partition: int = 0) -> Ends:
        """Raises TimeoutError when no leader answers in time."""
        begin = self._ask(topic, partition, OFFSET_BEGINNING)
        return Ends(begin, self._ask(topic, partition, OFFSET_END))

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _ask(self, topic: str, partition: int, which: int) -> int:
        """A change of leader is waited for."""
        deadline_s, attempt_s = time.monotonic() + TIMEOUT_S, FIRST_ATTEMPT_S
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return self._attempt(
                    TopicPartition(topic, partition, which), min(left_s, attempt_s)
                )
            except (KafkaException, TimeoutError) as error:
                if left_s <= attempt_s or self._stop.wait(PAUSE_S):
                    why = self._refusals.why(error, self._consumer)
                    self.close()
                    raise TimeoutError(
                        f"No leader tells where {topic}/{partition} ends: {why}"
                    ) from error
            self._ask_who_leads(topic, min(WHO_LEADS_S, deadline_s - time.monotonic()))
            attempt_s = min(2 * attempt_s, LONGEST_ATTEMPT_S)

    def _ask_who_leads(self, topic: str, timeout_s: float) -> None:
        if self._consumer is not None and timeout_s > 0:
            try:
                self._consumer.list_topics(topic, timeout=timeout_s)
            except KafkaException:
                self.close()  # it may hold on to a broker that is silent

    def _attempt(self, where: TopicPartition, timeout_s: float) -> int:
        consumer = self._consumer = self._consumer or Consumer(self._settings)
        (found,) = resolve(consumer, [where], timeout_s)
        return found.offset
