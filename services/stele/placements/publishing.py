"""Publishing what folds hold. A cluster whose topic of placements cannot be written waits alone.

Its newest rows are kept, and a thread of its own tries again; tables and all other clusters go on meanwhile.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from stele.placements.fold import HeldRows, Key
from stele.placements.topic import Marker
from stele.placements.writers import Writers
from stele.runtime.logs import get_logger

TRY_AGAIN_S: Final = 10.0
"""Between two tries for a cluster: one may wait for the brokers for a minute, and holds up only its like."""
LOOK_S: Final = 0.2

log = get_logger(__name__)


class _Waiting(msgspec.Struct):
    """What the topic of a cluster lacks. Replaced by what is newer, so one that was published is known."""

    marker: Marker
    placements: dict[str, HeldRows]


class Publishing:
    """``published`` is the epoch of each cluster's topic, ``stopped`` says of which it cannot be written, why,
    and what to do. One thread at a time may publish a cluster; ``run`` is another one's.
    """

    def __init__(self, writers: Writers, on_stop: Callable[[str, Exception, str], None]) -> None:
        self.published: dict[str, int] = {}
        self.stopped: dict[str, str] = {}
        self._writers = writers
        self._on_stop = on_stop
        self._lock = threading.Condition()
        self._waiting: dict[str, _Waiting] = {}

    def publish(
        self, cluster: str, marker: Marker, placements: Mapping[str, HeldRows], touched: set[Key]
    ) -> None:
        """As ``TopicWriter.publish``; what the topic does not take is left to ``run``."""
        if self._leave(cluster, marker, placements):
            return
        try:
            self._writers.publish(cluster, marker, placements, touched)
        except Exception as error:  # of this cluster alone; brokers that are away the job sees
            self._stop(cluster, marker, placements, error)
        else:
            self.published[cluster] = marker.epoch

    def run(self, is_over: Callable[[], bool]) -> None:
        """Try again, until it is over."""
        tried_s = time.monotonic()
        while not is_over():
            if self._waiting and time.monotonic() - tried_s >= TRY_AGAIN_S:
                for cluster in sorted(self._waiting):
                    if not is_over():
                        self._try_again(cluster)
                tried_s = time.monotonic()
            else:
                with self._lock:
                    self._lock.wait(LOOK_S)

    def _leave(self, cluster: str, marker: Marker, placements: Mapping[str, HeldRows]) -> bool:
        """Whether the cluster waits: then its newest rows do."""
        with self._lock:
            waits = cluster in self._waiting
            if waits:
                self._waiting[cluster] = _Waiting(marker, _copied(placements))
            return waits

    def _stop(
        self,
        cluster: str,
        marker: Marker,
        placements: Mapping[str, HeldRows],
        error: Exception,
    ) -> None:
        why = (
            f"Cluster {cluster}: its topic of placements stays as it is, since it cannot be written: {error}."
            f" Its tables go on. It is tried again every {TRY_AGAIN_S:g} s: see to the topic's settings and"
            " rights, and that no other program writes there."
        )
        with self._lock:
            self._waiting[cluster] = _Waiting(marker, _copied(placements))
            self.stopped = {**self.stopped, cluster: why}
        log.error("a topic of placements cannot be written", cluster=cluster, why=why)
        self._on_stop(cluster, error, why)

    def _try_again(self, cluster: str) -> None:
        """A new writer sends all that the topic does not have."""
        waiting = self._waiting[cluster]
        self._writers.forget(cluster)
        try:
            self._writers.publish(cluster, waiting.marker, waiting.placements, set())
        except Exception as error:  # the next try may do
            log.info("a topic of placements cannot be written yet", cluster=cluster, why=str(error))
            return
        with self._lock:
            self.published[cluster] = waiting.marker.epoch
            if self._waiting[cluster] is not waiting:
                return  # something newer came meanwhile
            del self._waiting[cluster]
            self.stopped = {c: why for c, why in self.stopped.items() if c != cluster}
        log.info("a topic of placements is written again", cluster=cluster)


def _copied(placements: Mapping[str, HeldRows]) -> dict[str, HeldRows]:
    return {name: dict(rows) for name, rows in placements.items()}
