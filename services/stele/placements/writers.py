"""The writers of a fleet's topics, which publish at the same time: each mostly waits for the brokers."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import stamina

from stele.log.brokers import Brokers
from stele.log.framing import Framing
from stele.placements.fold import HeldRows, Key
from stele.placements.topic import PLAIN, Marker, TopicWriter, WriterFenced

MOST_WRITERS: Final = 512
"""Open producers; each has threads and connections. The one that was idle longest is closed: to open it again
takes a fence and a reading of its topic.
"""

ATTEMPTS: Final = 8
"""Two jobs that hand a cluster over meet some times, at other moments each time; who is fenced more often than
that has another one beside it for good.
"""
LONGEST_WAIT_S: Final = 3.0


class Writers:
    """One writer for each cluster, opened when it is needed. One thread at a time may have a cluster."""

    def __init__(self, brokers: Brokers, framing: Framing = PLAIN) -> None:
        self._brokers = brokers
        self._framing = framing
        self._lock = threading.Lock()
        self._open: OrderedDict[str, TopicWriter] = OrderedDict()

    def publish(
        self, cluster: str, marker: Marker, placements: Mapping[str, HeldRows], touched: set[Key]
    ) -> None:
        """As ``TopicWriter.publish``. A writer that was fenced is opened again, and then sees what the other
        one wrote. Raises WriterFenced when that one goes on meanwhile, KafkaException.
        """
        try:
            for attempt in stamina.retry_context(
                on=WriterFenced, attempts=ATTEMPTS, timeout=None, wait_max=LONGEST_WAIT_S
            ):
                with attempt:
                    self._publish(cluster, marker, placements, touched)
        except WriterFenced as error:
            raise WriterFenced(
                f"Several processes write the placements of {cluster}: stop all but one."
            ) from error

    def _publish(
        self, cluster: str, marker: Marker, placements: Mapping[str, HeldRows], touched: set[Key]
    ) -> None:
        try:
            self._writer(cluster).publish(marker, placements, touched)
        except WriterFenced:
            self.forget(cluster)
            raise

    def forget(self, cluster: str) -> None:
        """The next publication opens another writer, which reads where the topic stands."""
        with self._lock:
            self._open.pop(cluster, None)

    def _writer(self, cluster: str) -> TopicWriter:
        with self._lock:
            found = self._open.get(cluster)
        if found is None:
            found = TopicWriter(self._brokers, cluster, self._framing)
        with self._lock:
            self._open[cluster] = found
            self._open.move_to_end(cluster)
            if len(self._open) > MOST_WRITERS:
                self._open.popitem(last=False)
        return found
