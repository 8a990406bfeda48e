"""Where a partition begins and ends, asked of its leader, whichever that is by now.

A consumer's ``get_watermark_offsets`` is not used: while the leader that it knew is away, it asks that
one again for ever, past its own time limit and past the election of the next (librdkafka, pull request 2535).
``offsets_for_times`` keeps its limit, and takes Kafka's two special times "beginning" and "end". It too
remembers the old leader; a new consumer asks who leads.
"""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition

TIMEOUT_S: Final = 10.0
FIRST_ATTEMPT_S: Final = 1.0
NEXT_ATTEMPTS_S: Final = 2.0
"""How long one consumer is waited for, before another is made."""
PAUSE_S: Final = 0.05


class Ends(NamedTuple):
    begin: int
    """Offset of the oldest record that is still there."""
    end: int
    """Offset after the newest record that no change of leader can take back."""


class Prober:
    """Asks the brokers; every call blocks for ``TIMEOUT_S`` at most. For one thread at a time."""

    def __init__(self, bootstrap: str, stop: threading.Event | None = None) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "stele-unused",
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
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
                self.close()
                if left_s <= attempt_s or self._stop.wait(PAUSE_S):
                    raise TimeoutError(
                        f"No leader tells where {topic}/{partition} ends: {error}"
                    ) from error
            attempt_s = NEXT_ATTEMPTS_S

    def _attempt(self, where: TopicPartition, timeout_s: float) -> int:
        consumer = self._consumer = self._consumer or Consumer(self._settings)
        (found,) = consumer.offsets_for_times([where], timeout=timeout_s)
        if found.error is not None:
            raise KafkaException(found.error)
        if found.offset < 0:
            raise TimeoutError(f"no answer within {timeout_s:.1f} s")
        return found.offset
