"""Stay in a consumer group: an error that librdkafka calls fatal ends a consumer, not the process.

A member with a name (``group.instance.id``) that was silent for longer than its session can be
fenced out by its own return. The answer to an earlier request then arrives when the name has a new
member id. Two processes with the same name fence each other out in the same way. A fenced consumer
never reads again, so another must be created.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from stele.log.deliveries import Refusals
from stele.log.kafka import is_fatal
from stele.runtime.logs import get_logger

FIRST_PAUSE_S: Final = 0.2
LAST_PAUSE_S: Final = 10.0
PROVEN_S: Final = 8.0
"""A consumer that lives longer than a session, in seconds, is a member again."""
FENCED_PAUSE_S: Final = 5.0
"""Pause after a long-lived member was fenced out by its name.

The present owner of the name acts first.
"""
DISPLACED_PAUSE_S: Final = 60.0
"""Pause when another process is known to use this name.

Two processes that take the name from each other as fast as they can both make no progress.
"""

log = get_logger(__name__)


class GroupMembership:
    """Replaces consumers that have failed. One thread runs it; any thread may read ``failure``."""

    def __init__(self, stop: threading.Event) -> None:
        self.failure = ""
        """Reason why this process is not in the group; empty while it is, as far as it can
        detect.
        """
        self._stop = stop
        self._since_s = 0.0
        self._displaced_s = -1.0
        self.refused = Refusals()
        """Collects what the brokers refuse the consumer. It is the consumer's ``error_cb``."""

    def keep(self, member: Callable[[], None]) -> None:
        """Run ``member`` until it returns: it creates a consumer, reads until the stop, and
        closes it.

        After a KafkaException it runs again, at first at once and finally every ``LAST_PAUSE_S``.
        If another process has the name, it runs later.
        """
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            self._since_s = time.monotonic()
            try:
                member()
                return
            except KafkaException as error:
                self._out(error)
                if time.monotonic() - self._since_s > PROVEN_S:
                    pause_s = FENCED_PAUSE_S if _is_fence(error) else FIRST_PAUSE_S
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            if self._displaced_s >= self._since_s:
                self._stop.wait(DISPLACED_PAUSE_S)

    def displaced(self) -> None:
        """Record that another process has acted under this name.

        This one then stays out for a while if it is out.
        """
        self._displaced_s = time.monotonic()

    def look_at(self, consumer: Consumer, error: KafkaError | None) -> None:
        """Check the consumer; call this after each poll.

        Raises KafkaException for an error that ends a consumer.
        """
        if error is not None:
            if is_fatal(error):
                raise KafkaException(error)
            self.refused(error)
        if newest := self.refused.newest:
            self.failure = f"Not in the consumer group: {newest}"
        elif self.failure and time.monotonic() - self._since_s > PROVEN_S and consumer.memberid():
            self.failure = ""

    def _out(self, error: KafkaException) -> None:
        self.failure = (
            f"Out of the consumer group: {error}. It rejoins. If this persists, another process"
            " has the same STELE_INSTANCE_ID: give each process a different one."
        )
        log.warning("out of the consumer group; joining again", why=str(error))


def _is_fence(error: KafkaException) -> bool:
    """Return whether the group's coordinator has another member of this name."""
    cause = error.args[0]
    fences = (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)  # noqa: SLF001 - librdkafka's own name
    return isinstance(cause, KafkaError) and cause.code() in fences
