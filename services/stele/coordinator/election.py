"""Election of the acting coordinator: the holder of partition 0 of ``reports`` in a consumer group.

The election only avoids contention. Safety rests on the term: the log rejects a command of an older
term, whichever instance is elected (docs/design.md, rule 23).
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from stele.log.brokers import Brokers, Settings
from stele.log.flows import flow_topic
from stele.log.loops import call_in
from stele.runtime.group import GroupMembership

SESSION_TIMEOUT_MS: Final = 6000
"""Milliseconds for which the place of a crashed instance stays reserved; the minimum of brokers."""
HEARTBEAT_MS: Final = 1500
"""A quarter of the session's time-out, so that three heartbeats may be lost."""
POLL_S: Final = 0.2
CLOSE_TIMEOUT_S: Final = 5.0


class Election:
    """Membership in the group; ``elected`` is true if this instance is to act.

    A restarted instance of the same id takes its partition back at once (static membership). Create
    and start it inside the event loop in which ``on_change`` is called.
    """

    def __init__(
        self, brokers: Brokers, cluster: str, instance_id: str, on_change: Callable[[], None]
    ) -> None:
        self.elected = False
        self._topic = flow_topic(cluster, "reports")
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)
        self._membership = GroupMembership(self._stop)
        self._settings: Settings = {
            **brokers.client(),
            "group.id": f"stele.{cluster}.coordinators",
            "group.instance.id": instance_id,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": "cooperative-sticky",  # keeps the active one
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "error_cb": self._membership.refused,
        }

    @property
    def failure(self) -> str:
        """The reason why this instance takes part in no election; empty while it does."""
        return self._membership.failure

    def start(self) -> None:
        self._thread.start()

    def displaced(self) -> None:
        """Leave the election: another process has claimed a term under this instance's name."""
        self._membership.displaced()

    async def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        self._membership.keep(self._take_part)

    def _take_part(self) -> None:
        """Run one consumer until the stop or an error. Raises KafkaException."""
        consumer = Consumer(self._settings)
        try:
            consumer.subscribe(
                [self._topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_revoke,
            )
            while not self._stop.is_set():
                message = consumer.poll(POLL_S)
                self._membership.look_at(consumer, message.error() if message is not None else None)
        except KafkaException:
            self._tell(False)
            raise
        finally:
            consumer.close()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)  # the reports themselves are read elsewhere, by every instance
        if any(partition.partition == 0 for partition in partitions):
            self._tell(True)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if any(partition.partition == 0 for partition in partitions):
            self._tell(False)

    def _tell(self, elected: bool) -> None:
        def change() -> None:
            self.elected = elected
            self._on_change()

        call_in(self._loop, change)
