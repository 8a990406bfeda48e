"""From new events to the compacted topic and to the tables of placements, each in a thread of its own.

The topic never waits for a table. Both go by what they hold already: the topic by its marker, a table by
its heads; so it does not matter where this process stopped before, or who else runs.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from stele.domain.facts import Epoch
from stele.placements.events import NewRows
from stele.placements.fold import ClusterFold, FoldError, HeldRows, Key, PastRow
from stele.placements.tables import Derived, Events
from stele.placements.topic import Marker, TopicWriter, WriterFenced

MOST_WAITING: Final = 32
"""Batches that may wait for the topic before the query waits too: bounds memory."""
MOST_WRITERS: Final = 64
"""Open producers; each has threads and connections. The one that was idle longest is closed."""
LOOK_S: Final = 0.2

Stop = Callable[[str, str], None]
Took = Callable[[str, float], None]


class Reached(msgspec.Struct, frozen=True):
    """What is in the tables of a cluster; ``state_id`` is hex."""

    epoch: int
    state_id: str


class _ForTables(msgspec.Struct):
    """What the tables do not hold yet of a cluster."""

    reached: Reached
    rows: dict[str, HeldRows] | None = None
    """The current rows; None when they are as before."""
    past: list[PastRow] = msgspec.field(default_factory=list)


class Deriver:
    """``offer`` it what each commit brings. ``error`` is set when one of its threads could not go on.

    ``on_stop(cluster, why)`` is called for a cluster whose epochs do not fit.
    """

    def __init__(
        self, bootstrap: str, folder: Path, events: Events, on_stop: Stop, on_took: Took
    ) -> None:
        self.reached: dict[str, Reached] = {}
        self.error: Exception | None = None
        self._bootstrap = bootstrap
        self._events = events
        self._derived = Derived(folder)
        self._on_stop = on_stop
        self._on_took = on_took
        self._folds: dict[str, ClusterFold] = {}
        self._writers: OrderedDict[str, TopicWriter] = OrderedDict()
        self._dead: set[str] = set()
        self._lock = threading.Condition()
        self._new: list[Mapping[str, NewRows]] = []
        self._for_tables: dict[str, _ForTables] = {}
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for name, run in (("topic", self._run_topic), ("tables", self._run_tables))
        ]

    def start(self) -> None:
        """Bring topic and tables up to what the events hold, then go on with what is offered."""
        self._new.append({cluster: NewRows() for cluster in sorted(self._events.heads)})
        for thread in self._threads:
            thread.start()

    def offer(self, new: Mapping[str, NewRows]) -> None:
        """Waits while too much waits. Raises what stopped a thread."""
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
        """End the threads after what they are at."""
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
        except Exception as error:  # must be seen by the one who runs the query
            self.error = error
            with self._lock:
                self._lock.notify_all()

    def _run_topic(self) -> None:
        while True:
            with self._lock:
                while not self._new and not self._over():
                    self._lock.wait(LOOK_S)
                if self._over():
                    return
                batches, self._new = self._new, []
                self._lock.notify_all()
            began = time.perf_counter()
            for cluster in sorted({name for batch in batches for name in batch} - self._dead):
                epochs = [e for b in batches if cluster in b for e in b[cluster].epochs]
                try:
                    self._advance(cluster, epochs)
                except FoldError as error:
                    self._dead.add(cluster)
                    self._folds.pop(cluster, None)
                    self._on_stop(cluster, str(error))
            self._on_took("topic", time.perf_counter() - began)

    def _advance(self, cluster: str, epochs: Iterable[Epoch]) -> None:
        """Fold a cluster's new epochs, publish them, and leave them for the tables."""
        touched: set[Key] = set()
        past: list[PastRow] = []
        fold = self._folds.get(cluster)
        if fold is None:
            fold = self._folds[cluster] = ClusterFold(*self._derived.load(cluster))
            epochs = self._events.epochs_of(cluster)
        for epoch in epochs:
            if epoch.epoch > fold.image.epoch:
                went, keys = fold.apply(epoch)
                past += went
                touched |= keys
        if fold.behind:  # the events are being read again
            return
        self._publish(cluster, fold, touched)
        self._leave(cluster, fold, past, changed=bool(touched))

    def _publish(self, cluster: str, fold: ClusterFold, touched: set[Key]) -> None:
        """A writer that was fenced is opened again, and then sees what the other one wrote."""
        marker = Marker(fold.image.epoch, fold.image.state_id.hex())
        for _ in range(2):
            try:
                self._writer(cluster).publish(marker, fold.placements, touched)
                return
            except WriterFenced:
                del self._writers[cluster]
        raise WriterFenced(
            f"Several processes write the placements of {cluster}: stop all but one."
        )

    def _writer(self, cluster: str) -> TopicWriter:
        if cluster not in self._writers:
            if len(self._writers) >= MOST_WRITERS:
                self._writers.popitem(last=False)
            self._writers[cluster] = TopicWriter(self._bootstrap, cluster)
        self._writers.move_to_end(cluster)
        return self._writers[cluster]

    def _leave(
        self, cluster: str, fold: ClusterFold, past: list[PastRow], *, changed: bool
    ) -> None:
        reached = Reached(fold.image.epoch, fold.image.state_id.hex())
        with self._lock:
            waiting = self._for_tables.setdefault(cluster, _ForTables(reached))
            waiting.reached = reached
            waiting.past += past
            if changed:
                waiting.rows = {name: dict(rows) for name, rows in fold.placements.items()}
            self._lock.notify_all()

    def _run_tables(self) -> None:
        while True:
            with self._lock:
                while not self._for_tables and not self._over():
                    self._lock.wait(LOOK_S)
                if self._over():
                    return
                work, self._for_tables = self._for_tables, {}
            began = time.perf_counter()
            epochs = {cluster: todo.reached.epoch for cluster, todo in work.items()}
            rows = {c: todo.rows for c, todo in work.items() if todo.rows is not None}
            if rows:
                self._derived.write_past({cluster: work[cluster].past for cluster in rows}, epochs)
                self._derived.write_current(rows, epochs)
            self.reached = self.reached | {c: todo.reached for c, todo in work.items()}
            self._on_took("tables", time.perf_counter() - began)
