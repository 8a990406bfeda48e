"""State of a job's clusters: those that continue, those that have stopped and why, and those
that wait.

A fault of a topic stops its cluster alone. A snapshot lets a cluster skip records that left the
topic unread, and lets it follow a recovered log into another topic.
"""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from stele.log.flows import flow_topic
from stele.placements.events_table import Events
from stele.placements.fold import FRESH
from stele.placements.watch import ANOTHER, TopicState, TopicWatch, flaw, is_behind, snapshots
from stele.runtime.logs import get_logger

log = get_logger(__name__)


class ReadAgain(Exception):
    """A head was moved, or records that may exist were not delivered.

    A new query must read from the heads.
    """


class ClusterStates:
    """State of the clusters. Thread-safe. ``certain``: see ``fold.RecordJudge``.

    ``stopped`` is, by cluster, why it does not continue. ``waiting`` are those of them that a
    snapshot would let continue. ``flawed`` are waiting clusters whose topic is not the one that was
    read. They resume when that topic returns, or when it holds a recovered log.
    """

    def __init__(
        self, watch: TopicWatch, events: Events, pattern: str, on_stop: Callable[[str], None]
    ) -> None:
        self.stopped: dict[str, str] = {}
        self.waiting: frozenset[str] = frozenset()
        self.flawed: frozenset[str] = frozenset()
        self.certain: dict[str, int] = {}
        self.topics: Mapping[str, TopicState] = {}
        self._watch = watch
        self._events = events
        self._pattern = re.compile(pattern)
        self._on_stop = on_stop
        self._lock = threading.Lock()

    def begin(self, catch_up_urls: Sequence[str]) -> None:
        """Look at all topics before the first record is read.

        Raises the errors of brokers and tables.
        """
        self.topics = self._watch.look()
        clusters = sorted({*self.topics, *self._mine()})
        flaws = {c: self._flaw(c, self.topics.get(c), None) for c in clusters}
        flawed = {c for c, why in flaws.items() if why}
        if goes_on := self._go_on(self._behind() | flawed, catch_up_urls):
            self.topics = self._watch.look()  # snapshots may include records that arrived since
            flaws |= {c: self._flaw(c, self.topics.get(c), None) for c in goes_on}
        for cluster, why in flaws.items():
            self._note(cluster, self.topics.get(cluster), why)

    def look(self) -> None:
        """Look at all topics while records are read.

        A fault counts only if it exists by the heads of before and after the look. Raises ReadAgain
        for a topic that was truncated past its head, and the errors of the brokers.
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
                self._stop_flawed(cluster, why)

    def look_for_snapshots(self, catch_up_urls: Sequence[str]) -> None:
        """Look for snapshots for the waiting clusters.

        Raises ReadAgain when there is one, or when a topic is again as it was read; and the errors
        of brokers and tables.
        """
        self.topics = self._watch.look()
        there = self.waiting & set(self.topics)
        whole = {c for c in self.flawed & there if not self._flaw(c, self.topics[c], None)}
        if self._go_on(there - whole, catch_up_urls) or whole:
            raise ReadAgain("A cluster goes on with a snapshot, or in the topic that was read.")

    def look_at(self, clusters: Iterable[str]) -> None:
        """Check the clusters that strays have stopped. Raises the errors of the brokers."""
        topics = self._watch.look()
        for cluster in clusters:
            self.check(cluster, topics.get(cluster), self.topics.get(cluster))

    def check(self, cluster: str, now: TopicState | None, before: TopicState | None) -> None:
        """Check that the topic continues from the head, and that the last winner is still at its
        offset.
        """
        self._note(cluster, now, self._flaw(cluster, now, before))

    def _note(self, cluster: str, now: TopicState | None, why: str) -> None:
        if why:
            self._stop_flawed(cluster, why)
        elif now is not None:
            self.certain[cluster] = now.end

    def _flaw(self, cluster: str, now: TopicState | None, before: TopicState | None) -> str:
        head = self._events.heads.get(cluster, FRESH)
        why = flaw(head, now, before)
        if not why and now is not None and not self._watch.continues(cluster, head, now):
            why = ANOTHER
        return why

    def _stop_flawed(self, cluster: str, why: str) -> None:
        with self._lock:
            self.flawed |= {cluster}
        self.stop(cluster, why, waits=True)

    def is_behind(self, cluster: str) -> bool:
        """Return whether a snapshot must skip what the topic lost.

        Raises the errors of the brokers.
        """
        now = self._watch.look().get(cluster)
        return now is not None and is_behind(self._events.heads.get(cluster, FRESH), now)

    def stop(self, cluster: str, why: str, *, waits: bool = False) -> None:
        """Stop a cluster. ``waits``: a snapshot would let it continue."""
        with self._lock:
            if waits:
                self.waiting |= {cluster}
            if cluster in self.stopped:
                return
            self.stopped = {**self.stopped, cluster: f"Cluster {cluster}: {why}"}
        log.error("a cluster is not materialized any further", cluster=cluster, why=why)
        self._on_stop(cluster)

    def _behind(self) -> set[str]:
        heads = self._events.heads
        return {c for c, now in self.topics.items() if is_behind(heads.get(c, FRESH), now)}

    def _go_on(self, clusters: Iterable[str], catch_up_urls: Sequence[str]) -> set[str]:
        """Continue clusters after snapshots, and return these. Those without a snapshot wait.

        If the topic is not the one that was read, only a log that was recovered from the one read
        is accepted.
        """
        heads, goes_on = self._events.heads, set[str]()
        topics = {c: self.topics[c] for c in sorted(clusters) if c in self.topics}
        asked = {c: (heads.get(c, FRESH), now) for c, now in topics.items()}
        if not asked:
            return goes_on
        for cluster, start in snapshots(catch_up_urls, asked).items():
            head, now = asked[cluster]
            if isinstance(start, str):
                if is_behind(head, now):
                    self.stop(cluster, start, waits=True)
                elif cluster not in self.stopped:
                    log.info("no snapshot to continue from", cluster=cluster, why=start)
            elif is_behind(head, now) or start.image.log_id > head.log_id:
                log.info("begins with a snapshot", cluster=cluster, epoch=start.image.epoch)
                self._events.begin(cluster, start)
                goes_on.add(cluster)
        return goes_on

    def _mine(self) -> list[str]:
        """Return the clusters in the tables that this job reads."""
        names = self._events.heads
        return [name for name in names if self._pattern.fullmatch(flow_topic(name, "epochs"))]
