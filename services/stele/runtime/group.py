"""Staying in a consumer group: what librdkafka calls fatal is the end of a consumer, not of the process.

A member with a name (``group.instance.id``) that was silent for longer than its session can be fenced out by
its own return: the answer to a request from before comes when the name has a new member id. So can one of two
processes that were given the same name. Either way that consumer reads nothing any more, and another has to
be made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from stele.log.kafka import is_fatal
from stele.log.refusals import Refusals
from stele.runtime.logs import get_logger

FIRST_PAUSE_S: Final = 0.2
LAST_PAUSE_S: Final = 10.0
PROVEN_S: Final = 8.0
"""A consumer that lives longer than a session is a member again."""
FENCED_PAUSE_S: Final = 5.0
"""After a member that had been one for long was fenced out by its name: whoever has the name now acts first."""
DISPLACED_PAUSE_S: Final = 60.0
"""When it is known that another process acts under this name. Two that take the name from each other as fast
as they can let neither act."""

log = get_logger(__name__)


class Membership:
    """Makes a consumer anew when one has come to its end. Used by one thread; ``failure`` by any."""

    def __init__(self, stop: threading.Event) -> None:
        self.failure = ""
        """Why this process is not in the group; empty while it is, as far as is known."""
        self._stop = stop
        self._since_s = 0.0
        self._displaced_s = -1.0
        self.refused = Refusals()
        """What the brokers refuse the consumer; its ``error_cb``."""

    def keep(self, member: Callable[[], None]) -> None:
        """Run ``member`` until it returns: it makes a consumer, reads until the stop, and closes it.

        After a KafkaException it is run again, at once at first and every ``LAST_PAUSE_S`` in the end; later
        when another has the name.
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
        """Another process has acted under this name. If this one is out, it stays out for a while."""
        self._displaced_s = time.monotonic()

    def look_at(self, consumer: Consumer, error: KafkaError | None) -> None:
        """To be called after each poll. Raises KafkaException for what ends a consumer."""
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
            f"Out of the consumer group: {error}. It is joined again; if this goes on, another process"
            " has the same STELE_INSTANCE_ID: give each its own."
        )
        log.warning("out of the consumer group; joining again", why=str(error))


def _is_fence(error: KafkaException) -> bool:
    """Whether the group's coordinator knows another member of this name."""
    cause = error.args[0]
    fences = (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)  # noqa: SLF001 - librdkafka's own name
    return isinstance(cause, KafkaError) and cause.code() in fences
