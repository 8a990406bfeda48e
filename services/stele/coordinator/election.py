"""Which coordinator is to act: the one that holds partition 0 of ``reports`` in a consumer group.

This only avoids contention. Safety is the term: a command of an older term is rejected by the log,
whoever believes to be elected.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from stele.log.flows import flow_topic
from stele.runtime.logs import get_logger

SESSION_TIMEOUT_MS: Final = 6000
"""How long the place of an instance that crashed stays reserved; the least that brokers allow."""
HEARTBEAT_MS: Final = 1500
"""A quarter of the session's time-out, so that three heartbeats may be lost."""
POLL_S: Final = 0.2
CLOSE_TIMEOUT_S: Final = 5.0

log = get_logger(__name__)


class Election:
    """Membership in the group; ``elected`` is whether this instance is to act.

    A restarted instance of the same id takes its partition back at once (static membership).
    Make and start it inside the event loop, in which ``on_change`` is called.
    """

    def __init__(
        self, bootstrap: str, cluster: str, instance_id: str, on_change: Callable[[], None]
    ) -> None:
        self.elected = False
        self.failure = ""
        self._fatal = ""
        self._topic = flow_topic(cluster, "reports")
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"stele.{cluster}.coordinators",
                "group.instance.id": instance_id,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": "cooperative-sticky",  # who acts goes on acting
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "reconnect.backoff.max.ms": 1000,
            }
        )

    def start(self) -> None:
        self._thread.start()

    async def close(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                [self._topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_revoke,
            )
            while not self._stop.is_set() and not self._fatal:
                message = self._consumer.poll(POLL_S)
                self._look_at(message.error() if message is not None else None)
        except KafkaException as error:
            self._fatal = str(error)
        finally:
            if self._fatal:
                self._fail(self._fatal)
            self._consumer.close()

    def _look_at(self, error: KafkaError | None) -> None:
        """All but a fatal error, such as another process of the same id, librdkafka overcomes itself."""
        if error is not None and error.code() == KafkaError._FATAL:  # noqa: SLF001  (their only name)
            self._fatal = error.str()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)  # the reports themselves are read elsewhere, by every instance
        if any(partition.partition == 0 for partition in partitions):
            self._tell(True)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if any(partition.partition == 0 for partition in partitions):
            self._tell(False)

    def _fail(self, why: str) -> None:
        self.failure = (
            f"No longer in the group of coordinators: {why}. "
            "Give each process its own STELE_INSTANCE_ID and start this one again."
        )
        log.error("left the election", why=why)
        self._tell(False)

    def _tell(self, elected: bool) -> None:
        def change() -> None:
            self.elected = elected
            self._on_change()

        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is there to be told
            self._loop.call_soon_threadsafe(change)
