"""Chooses the table for a cluster's rows: all rows at once, or for a large cluster first the
changes.

``placements`` holds all rows of a cluster and is rewritten. ``placements_changes`` is appended to.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from stele.placements.derived_tables import Derived
from stele.placements.fold import Held, HeldRows, Key, PastRow
from stele.placements.summaries import Row

FEW_RANGES: Final = 20_000
"""Clusters up to this size are rewritten at once, which takes 0.2 s of a processor."""
REWRITE_S: Final = 10.0
"""Longest time for which a larger cluster's rows may be in ``placements_changes`` alone."""


class Reached(msgspec.Struct, frozen=True):
    """Content of a cluster's tables; ``state_id`` is hex."""

    epoch: int
    state_id: str


class ForTables(msgspec.Struct):
    """Rows of a cluster that the tables lack."""

    reached: Reached
    rows: dict[str, HeldRows] | None = None
    """The current rows; None when they are unchanged."""
    past: list[PastRow] = msgspec.field(default_factory=list)
    changes: dict[Key, Held | None] = msgspec.field(default_factory=dict)
    """The rows at the changed keys; None for a deleted row."""
    streams: list[Row] = msgspec.field(default_factory=list)
    """The opened streams."""
    schema_changes: list[Row] = msgspec.field(default_factory=list)

    def add(self, later: "ForTables") -> None:
        self.reached = later.reached
        self.past += later.past
        self.streams += later.streams
        self.schema_changes += later.schema_changes
        self.changes |= later.changes
        self.rows = self.rows if later.rows is None else later.rows

    @property
    def range_count(self) -> int:
        return sum(map(len, (self.rows or {}).values()))


class Placing:
    """Writes ``placements``, ``placements_past`` and ``placements_changes``. For one thread.

    At its first write a process writes all rows of a cluster, whatever its size. The table of
    changes may contain rows of an abandoned log.
    """

    def __init__(self, derived: Derived, clock: Callable[[], float] = time.monotonic) -> None:
        self._derived = derived
        self._clock = clock
        self._late: dict[str, ForTables] = {}
        self._written_s: dict[str, float] = {}
        self._changed: set[str] = set()
        """Clusters that may have rows in the table of changes."""

    def is_due(self) -> bool:
        """Return whether a cluster has waited long enough for all of its rows to be written."""
        return any(not self._may_wait(cluster) for cluster in self._late)

    def write(self, work: Mapping[str, ForTables]) -> dict[str, Reached]:
        """Write the rows.

        Return what ``placements`` now holds of the clusters that were written.
        """
        opened = {cluster: todo.streams for cluster, todo in work.items() if todo.streams}
        # Streams and schema changes go first: the epoch of a cluster is reported only when they are
        # in their tables.
        if opened:
            self._derived.write_streams(opened, {c: work[c].reached.epoch for c in opened})
            for cluster in opened:
                work[cluster].streams = []
        history = {c: todo.schema_changes for c, todo in work.items() if todo.schema_changes}
        if history:
            self._derived.write_schema_history(history, {c: work[c].reached.epoch for c in history})
            for cluster in history:
                work[cluster].schema_changes = []
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
        """Append the changes of all clusters that have rows there.

        An older change must not be a key's newest.
        """
        self._changed |= waits | self._derived.changed(set(work) - set(self._written_s))
        changes = {c: t.changes for c, t in work.items() if c in self._changed and t.changes}
        if changes:
            self._derived.write_changes(changes, {c: work[c].reached.epoch for c in changes})

    def _write_all(self, work: Mapping[str, ForTables]) -> dict[str, Reached]:
        epochs = {cluster: todo.reached.epoch for cluster, todo in work.items()}
        rows = {c: todo.rows for c, todo in work.items() if todo.rows is not None}
        # The past goes first: a reader combines it with rows of `placements` that may be older.
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
