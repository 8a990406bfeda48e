"""Which clusters of a job go on, which do not and why, and which wait for a snapshot.

What a topic has wrong stops its cluster alone. Records that left a topic unread are passed over by a snapshot.
"""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from stele.log.flows import flow_topic
from stele.log.start import Start
from stele.placements.beginning import snapshots
from stele.placements.chain import FRESH
from stele.placements.events_table import Events
from stele.placements.watch import (
    ANOTHER,
    TopicState,
    TopicWatch,
    flaw,
    is_behind,
)
from stele.runtime.logs import get_logger

log = get_logger(__name__)


class ReadAgain(Exception):
    """A head was moved, or records that may be there were not delivered: a new query reads from the heads."""


class Standing:
    """``stopped`` says by cluster why it does not go on, ``waiting`` are those among them for which a snapshot
    would do. ``certain``: see ``chain.Judge``. For several threads.
    """

    def __init__(
        self, watch: TopicWatch, events: Events, pattern: str, on_stop: Callable[[str], None]
    ) -> None:
        self.stopped: dict[str, str] = {}
        self.waiting: frozenset[str] = frozenset()
        self.certain: dict[str, int] = {}
        self.topics: Mapping[str, TopicState] = {}
        self._watch = watch
        self._events = events
        self._pattern = re.compile(pattern)
        self._on_stop = on_stop
        self._lock = threading.Lock()

    def begin(self, catch_up_urls: Sequence[str]) -> None:
        """Look at all topics before the first record is read. Raises what brokers and tables raise."""
        self.topics = self._watch.look()
        heads = self._events.heads
        behind = {c for c, now in self.topics.items() if is_behind(heads.get(c, FRESH), now)}
        self._go_on(behind, catch_up_urls)
        for cluster in sorted({*self.topics, *self._mine()}):
            self.check(cluster, self.topics.get(cluster), None)

    def look(self) -> None:
        """Records are read meanwhile: only what is wrong by the heads of before and after is wrong.

        Raises ReadAgain for a topic that was truncated past its head, and what brokers raise.
        """
        earlier, before = self._events.heads, self.topics
        self.topics = self._watch.look()
        heads = self._events.heads
        for cluster in sorted({*before, *self._mine()} - set(self.stopped)):
            head, now = heads.get(cluster, FRESH), self.topics.get(cluster)
            if now is not None and is_behind(head, now):
                raise ReadAgain(f"Cluster {cluster}: its topic was truncated past what was read.")
            why = flaw(head, now, before.get(cluster))
            if why and flaw(earlier.get(cluster, FRESH), now, before.get(cluster)):
                self.stop(cluster, why)

    def look_for_snapshots(self, catch_up_urls: Sequence[str]) -> None:
        """For the clusters that wait. Raises ReadAgain when there is one, and what brokers and tables raise."""
        self.topics = self._watch.look()
        if self._go_on(self.waiting & set(self.topics), catch_up_urls):
            raise ReadAgain("A cluster goes on with a snapshot.")

    def look_at(self, clusters: Iterable[str]) -> None:
        """What strays have held up. Raises what brokers raise."""
        topics = self._watch.look()
        for cluster in clusters:
            self.check(cluster, topics.get(cluster), self.topics.get(cluster))

    def check(self, cluster: str, now: TopicState | None, before: TopicState | None) -> None:
        """Does the topic go on from the head, and is the last winner still where it was read?"""
        head = self._events.heads.get(cluster, FRESH)
        why = flaw(head, now, before)
        if not why and now is not None and not self._watch.continues(cluster, head, now):
            why = ANOTHER
        if why:
            self.stop(cluster, why)
        elif now is not None:
            self.certain[cluster] = now.end

    def is_behind(self, cluster: str) -> bool:
        """Whether a snapshot has to pass over what its topic lost. Raises what brokers raise."""
        now = self._watch.look().get(cluster)
        return now is not None and is_behind(self._events.heads.get(cluster, FRESH), now)

    def stop(self, cluster: str, why: str, *, waits: bool = False) -> None:
        """``waits``: a snapshot would do."""
        with self._lock:
            if waits:
                self.waiting |= {cluster}
            if cluster in self.stopped:
                return
            self.stopped = {**self.stopped, cluster: f"Cluster {cluster}: {why}"}
        log.error("a cluster is not materialized any further", cluster=cluster, why=why)
        self._on_stop(cluster)

    def _go_on(self, clusters: Iterable[str], catch_up_urls: Sequence[str]) -> bool:
        """Have clusters go on behind snapshots; those for which there is none wait. Whether any goes on."""
        heads, goes_on = self._events.heads, False
        behind = {c: (heads.get(c, FRESH), self.topics[c]) for c in sorted(clusters)}
        if not behind:
            return False
        for cluster, start in snapshots(catch_up_urls, behind).items():
            if isinstance(start, Start):
                log.info("begins with a snapshot", cluster=cluster, epoch=start.image.epoch)
                self._events.begin(cluster, start)
                goes_on = True
            else:
                self.stop(cluster, start, waits=True)
        return goes_on

    def _mine(self) -> list[str]:
        """The clusters in the tables that this job reads."""
        names = self._events.heads
        return [name for name in names if self._pattern.fullmatch(flow_topic(name, "epochs"))]
