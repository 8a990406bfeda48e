"""When a cluster's rows go to which table: all of them, or of a large cluster what changed first.

``placements`` holds all rows of a cluster and is written anew; ``placements_changes`` is appended to.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from stele.placements.derived_tables import Derived
from stele.placements.fold import Held, HeldRows, Key, PastRow
from stele.placements.summaries import Row

FEW_RANGES: Final = 20_000
"""To write all rows of a cluster with so many takes 0.2 s of a processor."""
REWRITE_S: Final = 10.0
"""How long the rows of a larger cluster may stand in ``placements_changes`` alone."""


class Reached(msgspec.Struct, frozen=True):
    """What is in the tables of a cluster; ``state_id`` is hex."""

    epoch: int
    state_id: str


class ForTables(msgspec.Struct):
    """What the tables do not hold yet of a cluster."""

    reached: Reached
    rows: dict[str, HeldRows] | None = None
    """The current rows; None when they are as before."""
    past: list[PastRow] = msgspec.field(default_factory=list)
    changes: dict[Key, Held | None] = msgspec.field(default_factory=dict)
    """The rows at the keys that changed, None for one that is gone."""
    streams: list[Row] = msgspec.field(default_factory=list)
    """Those that were opened."""

    def add(self, later: "ForTables") -> None:
        self.reached = later.reached
        self.past += later.past
        self.streams += later.streams
        self.changes |= later.changes
        self.rows = self.rows if later.rows is None else later.rows

    @property
    def range_count(self) -> int:
        return sum(map(len, (self.rows or {}).values()))


class Placing:
    """Writes ``placements``, ``placements_past`` and ``placements_changes``. For one thread.

    A process writes all rows of a cluster the first time, whatever its size: the table of changes may hold some
    of a log that is no more.
    """

    def __init__(self, derived: Derived, clock: Callable[[], float] = time.monotonic) -> None:
        self._derived = derived
        self._clock = clock
        self._late: dict[str, ForTables] = {}
        self._written_s: dict[str, float] = {}
        self._changed: set[str] = set()
        """Clusters of which the table of changes may have rows."""

    def is_due(self) -> bool:
        """Whether a cluster has waited long enough for all of its rows to be written."""
        return any(not self._may_wait(cluster) for cluster in self._late)

    def write(self, work: Mapping[str, ForTables]) -> dict[str, Reached]:
        """What stands in ``placements`` with it, of the clusters that were written."""
        opened = {cluster: todo.streams for cluster, todo in work.items() if todo.streams}
        if opened:
            self._derived.write_streams(opened, {c: work[c].reached.epoch for c in opened})
            for cluster in opened:
                work[cluster].streams = []
        waits = {
            cluster
            for cluster, todo in work.items()
            if self._may_wait(cluster) and (todo.range_count > FEW_RANGES or cluster in self._late)
        }
        self._append(work, waits)
        for cluster, todo in work.items():
            if cluster in self._late:
                self._late[cluster].add(todo)
            elif cluster in waits:
                self._late[cluster] = todo
        due = [cluster for cluster in self._late if not self._may_wait(cluster)]
        now = {cluster: todo for cluster, todo in work.items() if cluster not in self._late}
        return self._write_all(now | {cluster: self._late.pop(cluster) for cluster in due})

    def _append(self, work: Mapping[str, ForTables], waits: set[str]) -> None:
        """Of all clusters whose changes the table has: an older one of a key must not be its newest."""
        self._changed |= waits | self._derived.changed(set(work) - set(self._written_s))
        changes = {c: t.changes for c, t in work.items() if c in self._changed and t.changes}
        if changes:
            self._derived.write_changes(changes, {c: work[c].reached.epoch for c in changes})

    def _write_all(self, work: Mapping[str, ForTables]) -> dict[str, Reached]:
        epochs = {cluster: todo.reached.epoch for cluster, todo in work.items()}
        rows = {c: todo.rows for c, todo in work.items() if todo.rows is not None}
        if rows:
            self._derived.write_past({cluster: work[cluster].past for cluster in rows}, epochs)
            self._derived.write_current(rows, epochs)
            stale = self._changed & set(rows)
            if stale and self._derived.forget_changes({c: epochs[c] for c in stale}):
                self._changed -= stale
            self._written_s |= dict.fromkeys(rows, self._clock())
        return {cluster: todo.reached for cluster, todo in work.items()}

    def _may_wait(self, cluster: str) -> bool:
        written_s = self._written_s.get(cluster)
        return written_s is not None and self._clock() - written_s < REWRITE_S
