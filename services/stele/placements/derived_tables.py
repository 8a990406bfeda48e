"""``placements``, ``placements_past`` and the summaries, which follow from the events.

Each commit carries, as the version of an application transaction, the epoch that it brings a
cluster to. It is refused when another process came first, so only newer epochs are ever applied.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from stele.domain.image import Image
from stele.domain.ring.ranges import RangeReplicas
from stele.placements.fold import CurrentRow, HeldRows, Key, PastRow
from stele.placements.store import TableStore, head_of_cluster, in_clusters, range_of_row
from stele.placements.summaries import (
    REQUESTS,
    SPREAD,
    SUMMARIES,
    Ended,
    Row,
    Summary,
    changed,
    rows_of,
    rows_of_ended,
)
from stele.placements.tables import (
    BALANCE,
    CHANGES,
    CURRENT,
    PAST,
    SCHEMA_HISTORY,
    SCHEMAS,
    STREAMS,
    attempts,
    existing_table,
    open_table,
)

# The epoch that a table holds of each cluster, cached in this process.
#
# Delta stores it as the version of an application transaction, and reads files of its log for each
# request. With a fleet, whose commits name hundreds of them, a request takes milliseconds. The
# cached values are those of one version of the table. A commit of this process carries them on to
# the next version.


class Heads(msgspec.Struct):
    """The heads at one version of a table, which is identified by its id and the version."""

    table: DeltaTable
    version: tuple[str, int]
    epochs: dict[str, int]
    is_whole: bool
    """True if a cluster that ``epochs`` lacks has no head."""

    def of(self, cluster: str) -> int:
        """Return the epoch that the table holds of a cluster; 0 without rows of it."""
        if cluster not in self.epochs:
            asked = not self.is_whole and self.table.transaction_version(head_of_cluster(cluster))
            self.epochs[cluster] = asked or 0
        return self.epochs[cluster]


class TableHeads:
    """The heads of all tables, by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, Heads] = {}

    def read(self, name: str, table: DeltaTable) -> Heads:
        version = str(table.metadata().id), table.version()
        with self._lock:
            known = self._newest.get(name)
            if known is not None and known.version == version:
                found = msgspec.structs.replace(known, table=table)
            else:
                found = Heads(table, version, {}, is_whole=version[1] == 0)
            self._newest[name] = found
            return found

    def committed(self, name: str, before: Heads, epochs: Mapping[str, int]) -> None:
        """Record that the commit directly after ``before`` brought clusters to these epochs."""
        table_id, version = before.version
        with self._lock:
            self._newest[name] = msgspec.structs.replace(
                before, version=(table_id, version + 1), epochs={**before.epochs, **epochs}
            )


USER_METADATA: Final = "userMetadata"
"""Delta's name for a commit's own metadata: here the epoch of each cluster after it, as JSON."""
_DESCRIBED: Final = {**SUMMARIES, BALANCE: SPREAD}
"""The tables that are made from images alone."""
UNKNOWN_END: Final = "unknown"
"""``request_status`` of a request whose end is in no epoch that the tables have."""


class Loaded(NamedTuple):
    """The rows of ``placements`` and their epoch by cluster.

    ``streams_epochs`` is the epoch up to which opened streams are in their table.
    ``requests_epochs`` and ``schema_epochs`` are the same of requests and of schema changes.
    """

    rows: pa.Table
    epochs: Mapping[str, int]
    streams_epochs: Mapping[str, int]
    requests_epochs: Mapping[str, int]
    schema_epochs: Mapping[str, int]

    def placements(self, cluster: str) -> dict[str, HeldRows]:
        """Return the rows at the cluster's epoch.

        They are empty when ``placements_past`` is behind; all rows are then derived again.
        """
        found: dict[str, HeldRows] = {}
        if self.epochs[cluster]:
            for row in self.rows.filter(pc.field("cluster") == cluster).to_pylist():
                held = CurrentRow(range_of_row(row), row["from_epoch"])
                found.setdefault(row["placement"], {})[held.row.start] = held
        return found


class Derived:
    """The tables that are written from the folds of ``derive``."""

    def __init__(self, store: TableStore) -> None:
        self.store = store
        self._heads = TableHeads()
        self._summarized: dict[str, Image] = {}
        """The images from which this process last made summaries."""
        for name in (PAST, CHANGES, CURRENT, BALANCE, STREAMS, SCHEMA_HISTORY, *SUMMARIES):
            open_table(store, name)

    def load(self, clusters: Iterable[str]) -> Loaded:
        """Return the content of the tables for these clusters. Each table is read once."""
        wanted = sorted(clusters)
        table, heads = self._open(CURRENT)
        rows = table.to_pyarrow_dataset().to_table(filter=pc.field("cluster").isin(wanted))
        past, *others = (self._open(name)[1] for name in (PAST, STREAMS, REQUESTS, SCHEMA_HISTORY))
        return Loaded(
            rows,
            {c: heads.of(c) if past.of(c) >= heads.of(c) else 0 for c in wanted},
            *({c: each.of(c) for c in wanted} for each in others),
        )

    def write_streams(self, rows: Mapping[str, Iterable[Row]], epochs: Mapping[str, int]) -> None:
        """Append streams that the table lacks, of epochs above the table's own.

        The check is necessary because a snapshot includes streams that were opened before it.
        """

        def lacking(table: DeltaTable, held: Mapping[str, int]) -> pa.Table:
            new = [{"cluster": c, **row} for c in held for row in rows[c]]
            sessions = pa.array(sorted({row["session"] for row in new}), pa.string())
            names = ["cluster", "session", "to_node"]
            data = table.to_pyarrow_dataset()
            found = data.to_table(names, pc.field("session").isin(sessions)).to_pylist()
            known = {tuple(row.values()) for row in found}
            new = [row for row in new if tuple(row[name] for name in names) not in known]
            return pa.Table.from_pylist(new, schema=SCHEMAS[STREAMS])

        self._write(STREAMS, {c: epochs[c] for c in rows}, lacking)

    def write_schema_history(
        self, rows: Mapping[str, Iterable[Row]], epochs: Mapping[str, int]
    ) -> None:
        """Append the changes of schema objects, of epochs above the table's own."""

        def newer(_: DeltaTable, held: Mapping[str, int]) -> pa.Table:
            new = [
                {"cluster": c, **row}
                for c, epoch in held.items()
                for row in rows[c]
                if row["changed_epoch"] > epoch
            ]
            return pa.Table.from_pylist(new, schema=SCHEMAS[SCHEMA_HISTORY])

        self._write(SCHEMA_HISTORY, {c: epochs[c] for c in rows}, newer)

    def write_past(self, rows: Mapping[str, Iterable[PastRow]], epochs: Mapping[str, int]) -> None:
        """Append the rows that ended, of epochs above the table's own."""

        def newer(_: DeltaTable, held: Mapping[str, int]) -> pa.Table:
            return _past({c: [row for row in rows[c] if row.to_epoch > held[c]] for c in held})

        self._write(PAST, {c: epochs[c] for c in rows}, newer)

    def write_current(
        self, rows: Mapping[str, Mapping[str, HeldRows]], epochs: Mapping[str, int]
    ) -> None:
        """Replace the rows of clusters whose rows in the table are older."""

        def newer(_: DeltaTable, held: Mapping[str, int]) -> pa.Table:
            return _current({c: rows[c] for c in held})

        self._write(CURRENT, {c: epochs[c] for c in rows}, newer, "overwrite")

    def write_changes(
        self,
        changes: Mapping[str, Mapping[Key, CurrentRow | None]],
        epochs: Mapping[str, int],
    ) -> None:
        """Append the changed rows where the table is older. None marks a deleted row."""

        def newer(_: DeltaTable, held: Mapping[str, int]) -> pa.Table:
            return _changes({c: changes[c] for c in held}, epochs)

        self._write(CHANGES, {c: epochs[c] for c in changes}, newer)

    def changed(self, clusters: Iterable[str]) -> set[str]:
        """Return the clusters that have, or had, rows in the table of changes."""
        asked = list(clusters)
        heads = self._open(CHANGES)[1] if asked else None
        return {cluster for cluster in asked if heads and heads.of(cluster)}

    def forget_changes(self, epochs: Mapping[str, int]) -> bool:
        """Delete the changes up to these epochs, which ``placements`` now includes.

        Return False when another process came first; leftover rows are harmless. Rows of later
        epochs are from another job that has not written its rows of them yet.
        """
        written = (
            f"({in_clusters([c])} AND changed_epoch <= {epoch})" for c, epoch in epochs.items()
        )
        try:
            existing_table(self.store, CHANGES).delete(" OR ".join(written))
        except CommitFailedError:
            return False
        return True

    def write_requests(self, cluster: str, image: Image, ended: Sequence[Ended]) -> None:
        """Bring the table ``requests`` alone to this image, as ``write_summaries`` does."""
        rows = [*rows_of(SUMMARIES[REQUESTS], cluster, image), *rows_of_ended(cluster, ended)]
        made = pa.Table.from_pylist(rows, schema=SCHEMAS[REQUESTS])
        self._write_summary(REQUESTS, SUMMARIES[REQUESTS], made, {cluster: image})

    def write_summaries(
        self,
        images: Mapping[str, Image],
        ended: Mapping[str, Sequence[Ended]] = MappingProxyType({}),
    ) -> dict[str, Exception]:
        """Replace the clusters' rows in each table where theirs are older and may differ.

        ``ended`` are the requests that left the clusters' images since the last call. A cluster
        whose rows cannot be made keeps its present rows, and is returned with the error.
        """
        failed: dict[str, Exception] = {}
        try:
            made = self._made(images, ended)
        except Exception as of_any:  # find the cluster that causes it
            failed = self._failed(images, ended)
            if not failed:
                raise of_any from None
            images = {c: image for c, image in images.items() if c not in failed}
            made = self._made(images, ended)
        for name, (new, new_images) in made.items():
            self._write_summary(name, _DESCRIBED[name], new, new_images)
        self._summarized |= images
        return failed

    def _failed(
        self, images: Mapping[str, Image], ended: Mapping[str, Sequence[Ended]]
    ) -> dict[str, Exception]:
        failed: dict[str, Exception] = {}
        for cluster, image in images.items():
            try:
                self._made({cluster: image}, ended)
            except Exception as error:  # any error here concerns this cluster alone
                failed[cluster] = error
        return failed

    def _made(
        self, images: Mapping[str, Image], ended: Mapping[str, Sequence[Ended]]
    ) -> dict[str, tuple[pa.Table, dict[str, Image]]]:
        """Return by table the rows that may have changed, and the images that they follow from."""
        made: dict[str, tuple[pa.Table, dict[str, Image]]] = {}
        for name, summary in _DESCRIBED.items():
            new = {c: i for c, i in images.items() if changed(summary, self._summarized.get(c), i)}
            rows = [
                row for cluster in sorted(new) for row in rows_of(summary, cluster, new[cluster])
            ]
            if name == REQUESTS:
                rows += [row for c in sorted(new) for row in rows_of_ended(c, ended.get(c, ()))]
            if new:
                made[name] = pa.Table.from_pylist(rows, schema=summary.schema), new
        return made

    def _write_summary(
        self, name: str, summary: Summary, new: pa.Table, images: Mapping[str, Image]
    ) -> None:
        def newer(table: DeltaTable, held: Mapping[str, int]) -> pa.Table:
            rows = new.filter(pc.field("cluster").isin(sorted(held)))
            if not summary.key:
                return rows
            rows = rows.filter(_open_since(min(held.values())))
            return pa.concat_tables([rows, _kept(table, summary, rows, held)])

        mode = "append" if summary.is_appended else "overwrite"
        epochs = {cluster: image.epoch for cluster, image in images.items()}
        self._write(name, epochs, newer, mode, keeps_finished=bool(summary.key))

    def _open(self, name: str) -> tuple[DeltaTable, Heads]:
        table = existing_table(self.store, name)
        return table, self._heads.read(name, table)

    def _write(
        self,
        name: str,
        epochs: Mapping[str, int],
        rows_of_table: Callable[[DeltaTable, Mapping[str, int]], pa.Table],
        mode: str = "append",
        *,
        keeps_finished: bool = False,
    ) -> None:
        """Commit rows of the clusters that the table has at an older epoch than ``epochs``.

        ``rows_of_table`` returns them, from the table and its epochs of these clusters. With
        ``keeps_finished``, rows that had finished by the table's epoch are not replaced. If another
        process commits first, all is done again on its table. Raises Conflict, TableLost, and the
        errors of the store.
        """
        for _ in attempts(self.store, name):
            table, heads = self._open(name)
            held = {c: heads.of(c) for c, epoch in epochs.items() if epoch > heads.of(c)}
            if not held:
                return
            rows, behind = rows_of_table(table, held), {c: epochs[c] for c in held}
            if commit(table, rows, behind, mode, min(held.values()) if keeps_finished else None):
                self._heads.committed(name, heads, behind)
                return


def commit(
    table: DeltaTable,
    rows: pa.Table,
    epochs: Mapping[str, int],
    mode: str,
    since: int | None = None,
) -> bool:
    """Make one commit with its heads, which its metadata also name.

    Return False when another came first. ``overwrite`` replaces the rows of the clusters in
    ``epochs``, and with ``since`` only those that were unfinished at this epoch.
    """
    properties = CommitProperties(
        app_transactions=[
            Transaction(head_of_cluster(c), epoch) for c, epoch in sorted(epochs.items())
        ],
        custom_metadata={USER_METADATA: msgspec.json.encode(epochs, order="sorted").decode()},
        max_commit_retries=0,
    )
    mine = in_clusters(epochs)
    if since is not None:
        mine += f" AND (finished_epoch = 0 OR finished_epoch > {since})"
    replace: dict[str, Any] = {"predicate": mine} if mode == "overwrite" else {}
    try:
        write_deltalake(
            table,
            rows,
            mode=mode,
            commit_properties=properties,
            **replace,
        )  # type: ignore[call-overload]
    except CommitFailedError:
        return False
    return True


def _open_since(epoch: int) -> pc.Expression:
    """Return a filter for the rows that may differ from a table's rows of this epoch.

    The rows of what had finished by then never change. A write thus costs what is open, however
    much the table keeps.
    """
    return (pc.field("finished_epoch") == 0) | (pc.field("finished_epoch") > epoch)


def _kept(table: DeltaTable, summary: Summary, rows: pa.Table, held: Mapping[str, int]) -> pa.Table:
    """Return the rows that a write would delete although the images only lack them.

    ``held`` are the table's epochs of the clusters to write.

    An unfinished row among them ended in epochs that the topic lost: its end stays unknown.
    """
    known = {*zip(*(rows[name].to_pylist() for name in ("cluster", summary.key)), strict=True)}
    mine = pc.field("cluster").isin(sorted(held)) & _open_since(min(held.values()))
    old = table.to_pyarrow_dataset().to_table(filter=mine).to_pylist()
    left = [row for row in old if (row["cluster"], row[summary.key]) not in known]
    for row in left:
        if not row["finished_epoch"]:
            row["request_status"] = UNKNOWN_END
    return pa.Table.from_pylist(left, schema=summary.schema)


def _cells(cluster: str, placement: str, row: RangeReplicas, from_epoch: int) -> dict[str, object]:
    return {
        "cluster": cluster,
        "placement": placement,
        "range_start": row.start,
        "range_end": row.end,
        "read_replicas": list(row.reads),
        "write_replicas": list(row.writes),
        "version": row.version,
        "version_before": row.version_before,
        "other_replicas": list(row.other),
        "from_epoch": from_epoch,
        "shards": list(row.shards),
        "other_shards": list(row.other_shards),
    }


def _past(rows: Mapping[str, Iterable[PastRow]]) -> pa.Table:
    cells = [
        {**_cells(cluster, past.placement, past.row, past.from_epoch), "to_epoch": past.to_epoch}
        for cluster, found in rows.items()
        for past in found
    ]
    return pa.Table.from_pylist(cells, schema=SCHEMAS[PAST])


def _changes(
    changes: Mapping[str, Mapping[Key, CurrentRow | None]], epochs: Mapping[str, int]
) -> pa.Table:
    cells = [
        {
            **(
                {"cluster": cluster, "placement": placement, "range_start": start}
                if held is None
                else _cells(cluster, placement, held.row, held.from_epoch)
            ),
            "changed_epoch": epochs[cluster],
            "is_gone": held is None,
        }
        for cluster, found in changes.items()
        for (placement, start), held in found.items()
    ]
    return pa.Table.from_pylist(cells, schema=SCHEMAS[CHANGES])


def _current(rows: Mapping[str, Mapping[str, HeldRows]]) -> pa.Table:
    cells = [
        _cells(cluster, placement, held.row, held.from_epoch)
        for cluster, placements in rows.items()
        for placement, found in placements.items()
        for held in found.values()
    ]
    return pa.Table.from_pylist(cells, schema=SCHEMAS[CURRENT])


# Chooses the table for a cluster's rows: all rows at once, or for a large cluster first the
# changes.
#
# ``placements`` holds all rows of a cluster and is rewritten. ``placements_changes`` is appended to.


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
    changes: dict[Key, CurrentRow | None] = msgspec.field(default_factory=dict)
    """The rows at the changed keys; None for a deleted row."""
    streams: list[Row] = msgspec.field(default_factory=list)
    """The opened streams."""
    schema_changes: list[Row] = msgspec.field(default_factory=list)

    def add(self, later: ForTables) -> None:
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
