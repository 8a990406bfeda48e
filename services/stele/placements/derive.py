"""Update the compacted topic and the placement tables from new events, each in a separate thread.

The topic never waits for a table. The topic continues from its marker and a table from its heads.
Where this process stopped before, and other jobs that run, therefore do not matter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from stele.domain.evolve import Delta
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.log.brokers import Brokers
from stele.placements.derived_tables import Derived, ForTables, Loaded, Placing, Reached
from stele.placements.events import SUMMARIES_STOPPED, TOPIC_STOPPED, NewRows, stopped_row
from stele.placements.events_table import Events
from stele.placements.fold import ClusterFold, FoldError, Key, PastRow
from stele.placements.schema_history import ObjectKey, objects_in, schema_changes
from stele.placements.schema_topic import SCHEMA_TOPIC
from stele.placements.store import TableStore
from stele.placements.streams import opened
from stele.placements.summaries import SUMMARIES, Ended, Row, ended_requests
from stele.placements.topic import (
    PLACEMENTS,
    PLAIN,
    Marker,
    Publishing,
    Writers,
    framing_of,
    has_schema_id,
)
from stele.runtime.logs import get_logger

MOST_WAITING: Final = 32
"""Batches that may wait for the topic before the query waits too; limits memory."""
PUBLISHERS: Final = 32
"""Clusters whose topics are written at the same time.

Opening a writer takes half a second of waiting.
"""
LOOK_S: Final = 0.2
GATHER_S: Final = 1.0
"""Interval between two writes of the tables while topics are still written.

With a fleet each write costs a tenth of a second, whatever its content.
"""
SUMMARY_S: Final = 10.0
"""Maximum age of the summary tables. Each write replaces all rows of a cluster."""

TRY_AGAIN_S: Final = 60.0
"""Interval between attempts to write summaries that failed."""
ROWS_AT_ONCE: Final = 5_000
"""Streams, ended requests or schema changes that are written at once when a cluster's epochs are
folded again; limits memory.
"""

log = get_logger(__name__)

Stop = Callable[[str, str], None]
Took = Callable[[str, float], None]


class _Additions(msgspec.Struct):
    """What the epochs of one call add to the tables and topics of a cluster.

    Streams, ended requests and schema changes up to the epochs of their tables are left out.
    """

    streams_epoch: int = 0
    requests_epoch: int = 0
    schema_epoch: int = 0
    past: list[PastRow] = []
    touched: set[Key] = set()
    objects: set[ObjectKey] = set()
    streams: list[Row] = []
    ended: list[Ended] = []
    history: list[Row] = []

    def take(self, fold: ClusterFold, epoch: Epoch) -> None:
        """Apply an epoch to the fold. Raises FoldError."""
        before = fold.image
        went, keys = fold.apply(epoch)
        self.past += went
        self.touched |= keys
        delta = Delta(before, epoch)
        if before.schema is not fold.image.schema:
            self.objects |= {*objects_in(delta)}
        if epoch.epoch > self.streams_epoch:
            self.streams += opened(before, fold.image)
        if epoch.epoch > self.schema_epoch:
            self.history += schema_changes(before, epoch, fold.image)
        self.ended += (
            each
            for each in ended_requests(delta)
            if each.request.finished_epoch > self.requests_epoch
        )


class Deriver:
    """Derives topic and tables from what ``offer`` receives after each commit.

    ``error`` is set when one of its threads has failed. ``on_stop(cluster, why)`` is called for a
    cluster whose epochs do not fit. ``on_streams`` is called with the clusters and sessions of
    streams that were added to their table.
    """

    def __init__(
        self,
        brokers: Brokers,
        store: TableStore,
        events: Events,
        on_stop: Stop,
        on_took: Took,
        on_streams: Callable[[set[tuple[str, str]]], None] = lambda _: None,
        schema_ids: str = "",
    ) -> None:
        self.reached: dict[str, Reached] = {}
        self.summaries_stopped: dict[str, str] = {}
        """By cluster, why its summaries are not updated, and what to do."""
        self.error: Exception | None = None
        self._events = events
        self._derived = Derived(store)
        self._placing = Placing(self._derived)
        self._on_stop = on_stop
        self._on_took = on_took
        self._on_streams = on_streams
        self._folds: dict[str, ClusterFold] = {}
        framing = framing_of(schema_ids)
        self._publishing = Publishing(Writers(brokers, PLACEMENTS, framing), self._note_topic)
        framing = framing if has_schema_id(schema_ids) else PLAIN
        self._publishing_schema = Publishing(
            Writers(brokers, SCHEMA_TOPIC, framing), self._note_topic
        )
        self._dead: set[str] = set()
        self._lock = threading.Condition()
        self._new: list[Mapping[str, NewRows]] = []
        self._for_tables: dict[str, ForTables] = {}
        self._for_summaries: dict[str, Image] = {}
        self._ended: dict[str, list[Ended]] = {}
        """By cluster, the requests that left its image and that the table ``requests`` lacks."""
        self._unsummarized: dict[str, Image] = {}
        self._is_publishing = self._stopping = False
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for name, run in (
                ("topic", self._run_topic),
                ("tables", self._run_tables),
                ("summaries", self._run_summaries),
                ("topics that wait", lambda: self._publishing.run(self._over)),
                ("schema topics that wait", lambda: self._publishing_schema.run(self._over)),
            )
        ]

    @property
    def published(self) -> dict[str, int]:
        """The epoch of each cluster's topic of placements."""
        return self._publishing.published

    @property
    def topics_stopped(self) -> dict[str, str]:
        """By cluster, why its topic of placements or schema is not updated, and what to do."""
        return self._publishing_schema.stopped | self._publishing.stopped

    def images(self) -> dict[str, Image]:
        """Return the newest image of each cluster in ``reached``. Any thread may call it."""
        found = ((cluster, self._folds.get(cluster)) for cluster in self.reached)
        return {cluster: fold.image for cluster, fold in found if fold is not None}

    def start(self) -> None:
        """Bring topic and tables up to the present events, then process what is offered."""
        self._new.append({cluster: NewRows() for cluster in sorted(self._events.heads)})
        for thread in self._threads:
            thread.start()

    def offer(self, new: Mapping[str, NewRows]) -> None:
        """Queue a commit; block while the queue is full. Raises the error of a failed thread."""
        with self._lock:
            while len(self._new) >= MOST_WAITING and not self._over():
                self._lock.wait(LOOK_S)
            self.check()
            self._new.append(new)
            self._lock.notify_all()

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self, timeout_s: float) -> None:
        """End the threads after their current work."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        for thread in self._threads:
            thread.join(timeout_s)

    def _over(self) -> bool:
        return self._stopping or self.error is not None

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # the thread that runs the query must see it
            self.error = error
            with self._lock:
                self._lock.notify_all()

    def _run_topic(self) -> None:
        with ThreadPoolExecutor(PUBLISHERS, "publish") as pool:
            while batches := self._next_batches():
                began = time.perf_counter()
                clusters = sorted({name for batch in batches for name in batch} - self._dead)
                unknown = [name for name in clusters if name not in self._folds]
                loaded = self._derived.load(unknown) if unknown else None
                for done in [
                    pool.submit(self._advance, name, batches, loaded) for name in clusters
                ]:
                    done.result()
                self._rest()
                self._on_took("topic", time.perf_counter() - began)

    def _rest(self) -> None:
        """Mark publishing as finished, so that the tables are written without further delay."""
        with self._lock:
            self._is_publishing = False
            self._lock.notify_all()

    def _next_batches(self) -> list[Mapping[str, NewRows]]:
        """Return the queued batches; an empty list once this has ended."""
        with self._lock:
            while not self._new and not self._over():
                self._lock.wait(LOOK_S)
            if self._over():
                return []
            batches, self._new = self._new, []
            self._is_publishing = True
            self._lock.notify_all()
            return batches

    def _advance(
        self, cluster: str, batches: Iterable[Mapping[str, NewRows]], loaded: Loaded | None
    ) -> None:
        """Advance one cluster. If its epochs do not fit, only this cluster stops."""
        if self._over():
            return
        try:
            self._fold_and_publish(
                cluster, [e for b in batches if cluster in b for e in b[cluster].epochs], loaded
            )
        except FoldError as error:
            self._dead.add(cluster)
            self._folds.pop(cluster, None)
            self._on_stop(cluster, str(error))

    def _fold_and_publish(self, cluster: str, new: Sequence[Epoch], loaded: Loaded | None) -> None:
        """Fold a cluster's new epochs, publish them, and queue them for the tables.

        ``loaded`` is used for clusters that were not folded yet.
        """
        epochs: Iterable[Epoch] = new
        found, fold = _Additions(), self._folds.get(cluster)
        is_new, schema_before = fold is None, None if fold is None else fold.image.schema
        if fold is None:
            assert loaded is not None
            fold = ClusterFold(loaded.epochs[cluster], loaded.placements(cluster))
            self._folds[cluster] = fold
            snapshot = self._events.image_of(cluster)
            found.streams_epoch = loaded.streams_epochs[cluster]
            found.requests_epoch = loaded.requests_epochs[cluster]
            found.schema_epoch = loaded.schema_epochs[cluster]
            if snapshot is not None:
                before = fold.image
                found.past, found.touched = fold.begin(snapshot)
                if snapshot.epoch > found.streams_epoch:
                    found.streams += opened(before, snapshot)
            if not new or new[0].epoch > fold.image.epoch + 1:
                epochs = self._events.epochs_of(cluster)
        for epoch in epochs:
            if epoch.epoch > fold.image.epoch:
                found.take(fold, epoch)
                # Bound the memory of a long fold. Rows may be written early: the tables skip those
                # that they have.
                if is_new and len(found.streams) + len(found.history) >= ROWS_AT_ONCE:
                    self._write_early(cluster, fold, found)
                if is_new and len(found.ended) >= ROWS_AT_ONCE:
                    self._derived.write_requests(cluster, fold.image, found.ended)
                    found.ended = []
        with self._lock:
            self._ended.setdefault(cluster, []).extend(found.ended)
        if fold.behind:  # the events are being read again
            self._write_early(cluster, fold, found)
            return
        marker = Marker(fold.image.epoch, fold.image.state_id.hex())
        self._publishing.publish(cluster, marker, fold.placements, found.touched)
        # Most epochs do not change the schema, so its topic needs no transaction for each of them.
        is_published = cluster in self._publishing_schema.published
        if fold.image.schema is not schema_before or not is_published:
            self._publishing_schema.publish(cluster, marker, fold.image.schema, found.objects)
        self._leave(cluster, fold, found)

    def _write_early(self, cluster: str, fold: ClusterFold, found: _Additions) -> None:
        """Write streams and schema changes before any other row of the cluster is queued."""
        epochs = {cluster: fold.image.epoch}
        if found.streams:
            self._derived.write_streams({cluster: found.streams}, epochs)
            self._on_streams({(cluster, row["session"]) for row in found.streams})
        if found.history:
            self._derived.write_schema_history({cluster: found.history}, epochs)
        found.streams, found.history = [], []

    def _leave(self, cluster: str, fold: ClusterFold, found: _Additions) -> None:
        reached = Reached(fold.image.epoch, fold.image.state_id.hex())
        changes = {
            (name, start): fold.placements.get(name, {}).get(start) for name, start in found.touched
        }
        rows = {name: dict(rows) for name, rows in fold.placements.items()} if changes else None
        with self._lock:
            waiting = self._for_tables.setdefault(cluster, ForTables(reached))
            waiting.add(ForTables(reached, rows, found.past, changes, found.streams, found.history))
            self._for_summaries[cluster] = fold.image
            self._lock.notify_all()

    def _run_tables(self) -> None:
        written_s = time.monotonic() - GATHER_S
        while True:
            with self._lock:
                while not self._over() and not self._have_tables_work(written_s):
                    self._lock.wait(LOOK_S)
                if self._over():
                    return
                work, self._for_tables = self._for_tables, {}
            began = time.perf_counter()
            sessions = {(c, row["session"]) for c, todo in work.items() for row in todo.streams}
            self.reached = self.reached | self._placing.write(work)
            if sessions:
                self._on_streams(sessions)
            self._on_took("tables", time.perf_counter() - began)
            written_s = time.monotonic()

    def _have_tables_work(self, written_s: float) -> bool:
        """Return whether to write the tables now.

        While clusters are published one after the other, their rows are gathered for ``GATHER_S``.
        """
        is_gathered = not self._is_publishing or time.monotonic() - written_s >= GATHER_S
        return self._placing.is_due() or bool(self._for_tables and is_gathered)

    def _run_summaries(self) -> None:
        """Write summaries, at once after a pause, so that the first ones appear right after the
        start.
        """
        written_s = tried_s = time.monotonic() - SUMMARY_S
        while True:
            with self._lock:
                while not self._over() and not (
                    (self._for_summaries and time.monotonic() - written_s >= SUMMARY_S)
                    or (self._unsummarized and time.monotonic() - tried_s >= TRY_AGAIN_S)
                ):
                    self._lock.wait(LOOK_S)
                if self._over():
                    return
            began = time.perf_counter()
            tries_again = bool(self._unsummarized) and time.monotonic() - tried_s >= TRY_AGAIN_S
            if tries_again:
                tried_s = time.monotonic()
            self.write_summaries(tries_again=tries_again)
            written_s = time.monotonic()
            self._on_took("summaries", time.perf_counter() - began)

    def write_summaries(self, *, tries_again: bool = False) -> None:
        """Write the summaries of what was folded, and with ``tries_again`` those that failed."""
        with self._lock:
            images, self._for_summaries = self._for_summaries, {}
            if tries_again:
                images = {**self._unsummarized, **images}
            # Newer ones wait: this image still contains them.
            ended = {
                cluster: [
                    each for each in self._ended.get(cluster, ()) if each.epoch <= image.epoch
                ]
                for cluster, image in images.items()
            }
        failed = self._derived.write_summaries(images, ended)
        with self._lock:
            for cluster in images.keys() - failed.keys():
                left = self._ended.pop(cluster, [])[len(ended[cluster]) :]
                self._ended |= {cluster: left} if left else {}
        self._note_failures(images, failed)

    def _note_failures(self, images: Mapping[str, Image], failed: Mapping[str, Exception]) -> None:
        """Record which summaries failed. They are retried until they can be written."""
        for cluster in images.keys() & self._unsummarized.keys() - failed.keys():
            del self._unsummarized[cluster]
            self.summaries_stopped = {
                c: why for c, why in self.summaries_stopped.items() if c != cluster
            }
            log.info("the summaries of a cluster are made again", cluster=cluster)
        for cluster, error in sorted(failed.items()):
            is_known = cluster in self._unsummarized
            why = _why_unsummarized(cluster, images[cluster], error)
            self._unsummarized[cluster] = images[cluster]
            self.summaries_stopped = {**self.summaries_stopped, cluster: why}
            if not is_known:
                log.error("the summaries of a cluster are not made", cluster=cluster, why=why)
                self._events.note(
                    stopped_row(SUMMARIES_STOPPED, cluster, images[cluster], error, why)
                )

    def _note_topic(self, cluster: str, error: Exception, why: str) -> None:
        image = self._folds[cluster].image
        self._events.note(stopped_row(TOPIC_STOPPED, cluster, image, error, why))


def _why_unsummarized(cluster: str, image: Image, error: Exception) -> str:
    return (
        f"Cluster {cluster}: the tables {', '.join(SUMMARIES)} and balance stay as they are, since their rows "
        f"could not be made of epoch {image.epoch}: {error!r}. All other tables continue. It is retried every "
        f"{TRY_AGAIN_S:g} s and with later epochs; if that does not help, upgrade this process."
    )
