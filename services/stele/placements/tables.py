"""The Delta tables: ``events``, which is the state; ``placements`` and ``placements_past`` follow from it.

Each commit carries how far it brings the table, and is refused when another process came first:
``events`` counts its commits in one application transaction, the other two keep one for each cluster,
whose version is the epoch reached. So no checkpoint and no boundary of a batch decides what is written.
"""

import fcntl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import ArrayType, Field, PrimitiveType
from pyspark.sql import DataFrame

from stele.domain.facts import Epoch
from stele.domain.ring.ranges import RangeReplicas
from stele.placements import events
from stele.placements.chain import FRESH, Head
from stele.placements.fold import Held, HeldRows, PastRow
from stele.placements.read import head_of_cluster, range_of_row

EVENTS: Final = "events"
CURRENT: Final = "placements"
PAST: Final = "placements_past"

_RANGE: Final = [
    ("cluster", pa.string()),
    ("placement", pa.string()),
    ("range_start", pa.int64()),
    ("range_end", pa.int64()),
    ("read_replicas", pa.list_(pa.string())),
    ("write_replicas", pa.list_(pa.string())),
    ("version", pa.int64()),
    ("version_before", pa.int64()),
    ("other_replicas", pa.list_(pa.string())),
    ("from_epoch", pa.int64()),
    ("shards", pa.list_(pa.int32())),
    ("other_shards", pa.list_(pa.int32())),
]
_LATER: Final = ("shards", "other_shards")
"""Lists that tables made by earlier builds do not have; without them no row has any."""
SCHEMAS: Final = {
    EVENTS: events.SCHEMA,
    CURRENT: pa.schema(_RANGE),
    PAST: pa.schema([*_RANGE, ("to_epoch", pa.int64())]),
}
PARTITIONS: Final = {EVENTS: [], CURRENT: ["cluster"], PAST: []}
CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}
COMPACT_TARGET_BYTES: Final = 128 * 1024 * 1024
ATTEMPTS: Final = 20
"""Commits of other processes that one of ours gives way to before it is an error."""

_EVENTS_APP: Final = "stele-events"
EPOCHS_AT_ONCE: Final = 5_000
"""Epochs that are read at once: bounds memory when a cluster's image is made again."""


class TableLost(Exception):
    """A table that was there is gone or was made anew; the next start reads from what there is now."""


class Conflict(Exception):
    """Other processes came first again and again."""


def open_table(folder: Path, name: str) -> DeltaTable:
    """The table, made when it is missing."""
    path = folder / name
    with commit_lock(folder, name):
        if not DeltaTable.is_deltatable(str(path)):
            DeltaTable.create(
                str(path),
                SCHEMAS[name],
                mode="ignore",
                partition_by=PARTITIONS[name],
                configuration=CONFIGURATION,
            )
        table = DeltaTable(str(path))
        _add_later_columns(table, name)
        return table


def _add_later_columns(table: DeltaTable, name: str) -> None:
    known = {field.name for field in table.schema().fields}
    lacking = [c for c in _LATER if c in SCHEMAS[name].names and c not in known]
    if lacking:
        table.alter.add_columns([Field(c, ArrayType(PrimitiveType("integer"))) for c in lacking])


@contextmanager
def commit_lock(folder: Path, name: str) -> Iterator[None]:
    """One process at a time commits to a table: a rename of Spark's on a local disk replaces a file that
    is there, so two commits of one version would both seem to succeed. Object stores have no such gap.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Events:
    """The table ``events`` as this process knows it: its heads, up to ``version``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table = open_table(folder, EVENTS)
        self._path = folder / EVENTS
        self.version = self._table.version()
        self._id = str(self._table.metadata().id)
        found = events.new_rows(self._read(pc.field("row_kind") == events.HEAD))
        self.heads: dict[str, Head] = {c: rows.head for c, rows in found.items() if rows.head}
        self._check_whole()

    def _check_whole(self) -> None:
        """Each cluster's epochs are there from 1 to its head, each once. Raises TableLost."""
        rows = self._read(pc.field("row_kind") == events.EPOCH, ["cluster", "epoch"])
        counted = rows.group_by("cluster").aggregate(
            [("epoch", "count"), ("epoch", "count_distinct"), ("epoch", "max")]
        )
        found = {row["cluster"]: row for row in counted.to_pylist()}
        for cluster, head in self.heads.items():
            row = found.pop(cluster, {})
            if {row.get(f"epoch_{what}", 0) for what in ("count", "count_distinct", "max")} != {
                head.epoch
            }:
                found[cluster] = row
        if found:
            raise TableLost(
                f"{self._path} does not hold each epoch of {', '.join(sorted(found))} once: rows were lost or "
                "changed. Remove the folder; the table is made again from the log."
            )

    def append(
        self, records: DataFrame, stopped: frozenset[str], certain: Mapping[str, int]
    ) -> dict[str, events.NewRows]:
        """Judge (cluster, offset, value) and commit what is above the heads, in one commit.

        ``certain``: see ``chain.Judge``.
        Gives what the table holds more than before, whoever wrote it. Raises Conflict, TableLost, and
        what Spark raises.
        """
        merged: dict[str, events.NewRows] = {}
        for _ in range(ATTEMPTS):
            merge(merged, self._refresh()[0])
            number = (self._table.transaction_version(_EVENTS_APP) or 0) + 1
            mark = f"{_EVENTS_APP}-{number}-{id(self)}-{self.version}"
            judge = events.judge(self.heads, stopped, certain)
            judged = records.mapInArrow(judge, events.SPARK_SCHEMA)
            failure: Exception | None = None
            try:
                self._commit(judged, number, mark)
            except Exception as error:  # a conflict, or what this table cannot help
                failure = error
            more, marks = self._refresh()
            merge(merged, more)
            if mark in marks:
                return merged
            if failure is not None and not marks:
                raise failure
        raise Conflict(f"Another process wrote to {self._path} first, {ATTEMPTS} times.")

    def epochs_of(self, cluster: str) -> Iterator[Epoch]:
        """A cluster's epochs from the first one up to its head."""
        last = self.heads.get(cluster, FRESH).epoch
        rows = DeltaTable(str(self._path)).to_pyarrow_dataset()
        of_epochs = pc.field("row_kind").isin([events.EPOCH, events.FACT])
        wanted = (pc.field("cluster") == cluster) & of_epochs
        for first in range(1, last + 1, EPOCHS_AT_ONCE):
            end = min(first + EPOCHS_AT_ONCE, last + 1)
            these = wanted & (pc.field("epoch") >= first) & (pc.field("epoch") < end)
            yield from events.new_rows(rows.to_table(filter=these))[cluster].epochs

    def _commit(self, judged: DataFrame, number: int, mark: str) -> None:
        with commit_lock(self.folder, EVENTS):
            (
                judged.write.format("delta")
                .mode("append")
                .option("txnAppId", _EVENTS_APP)
                .option("txnVersion", number)
                .option("userMetadata", mark)
                .save(str(self._path))
            )

    def _refresh(self) -> tuple[dict[str, events.NewRows], set[str]]:
        """Read the commits that are new: what they bring, and their marks. Raises TableLost."""
        try:
            newest, now = self._newest()
        except (DeltaError, OSError) as error:
            raise TableLost(f"{self._path} cannot be read any more: {error}") from error
        found: dict[str, events.NewRows] = {}
        marks: set[str] = set()
        if now != self._id or newest < self.version:
            raise TableLost(f"{self._path} was made anew or restored.")
        for version in range(self.version + 1, newest + 1):
            files, mark = self._commit_of(version)
            if mark:
                marks.add(mark)
            for path in files:
                merge(found, events.new_rows(pq.read_table(path, partitioning=None)))
        self._table.load_as_version(newest)
        self.version = newest
        self.heads = self.heads | {c: rows.head for c, rows in found.items() if rows.head}
        return found, marks

    def _newest(self) -> tuple[int, str]:
        """The table's version and id as they are on disk now."""
        table = DeltaTable(str(self._path))
        return table.version(), str(table.metadata().id)

    def _commit_of(self, version: int) -> tuple[list[Path], str]:
        """The files that a commit adds with new rows, and its mark."""
        path = self._path / "_delta_log" / f"{version:020}.json"
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError as error:
            raise TableLost(f"{path} is gone before it was read.") from error
        actions = [msgspec.json.decode(line) for line in lines]
        adds = [action["add"] for action in actions if "add" in action]
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        mark = infos[0].get("userMetadata") or "" if infos else ""
        return [self._path / add["path"] for add in adds if add["dataChange"]], mark

    def _read(self, wanted: pc.Expression, columns: list[str] | None = None) -> pa.Table:
        return self._table.to_pyarrow_dataset().to_table(columns, wanted)


class Derived:
    """``placements`` and ``placements_past``, which are written from the folds of ``derive``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (PAST, CURRENT):
            open_table(folder, name)

    def load(self, cluster: str) -> tuple[int, dict[str, HeldRows]]:
        """The epoch of ``placements``, and its rows; from nothing when ``placements_past`` is behind."""
        table = DeltaTable(str(self.folder / CURRENT))
        epoch = table.transaction_version(head_of_cluster(cluster)) or 0
        past = DeltaTable(str(self.folder / PAST))
        if (past.transaction_version(head_of_cluster(cluster)) or 0) < epoch:
            return 0, {}
        found: dict[str, HeldRows] = {}
        rows = table.to_pyarrow_dataset().to_table(filter=pc.field("cluster") == cluster)
        for row in rows.to_pylist():
            held = Held(range_of_row(row), row["from_epoch"])
            found.setdefault(row["placement"], {})[held.row.start] = held
        return epoch, found

    def write_past(self, rows: Mapping[str, Iterable[PastRow]], epochs: Mapping[str, int]) -> None:
        """Append the rows that went, of epochs above the table's own."""
        for table in self._attempts(PAST):
            heads = {name: table.transaction_version(head_of_cluster(name)) or 0 for name in rows}
            behind = {c: epochs[c] for c in rows if epochs[c] > heads[c]}
            new = {c: [row for row in rows[c] if row.to_epoch > heads[c]] for c in behind}
            if not behind or self._commit(table, _past(new), behind, "append"):
                return

    def write_current(
        self, rows: Mapping[str, Mapping[str, HeldRows]], epochs: Mapping[str, int]
    ) -> None:
        """Replace the clusters' rows where theirs are older."""
        for table in self._attempts(CURRENT):
            heads = {name: table.transaction_version(head_of_cluster(name)) or 0 for name in rows}
            new = {name: rows[name] for name in rows if epochs[name] > heads[name]}
            behind = {cluster: epochs[cluster] for cluster in new}
            if not new or self._commit(table, _current(new), behind, "overwrite"):
                return

    def _attempts(self, name: str) -> Iterator[DeltaTable]:
        for _ in range(ATTEMPTS):
            with commit_lock(self.folder, name):
                try:
                    yield DeltaTable(str(self.folder / name))
                except TableNotFoundError as error:
                    raise TableLost(f"{self.folder / name} is gone.") from error
        raise Conflict(f"Another process wrote to {self.folder / name} first, {ATTEMPTS} times.")

    @staticmethod
    def _commit(table: DeltaTable, rows: pa.Table, epochs: Mapping[str, int], mode: str) -> bool:
        """One commit with its heads; false when another process came first."""
        names = ", ".join(f"'{cluster}'" for cluster in sorted(epochs))
        properties = CommitProperties(
            app_transactions=[
                Transaction(head_of_cluster(c), epoch) for c, epoch in sorted(epochs.items())
            ],
            max_commit_retries=0,
        )
        try:
            if mode == "append":
                write_deltalake(table, rows, mode="append", commit_properties=properties)
            else:
                write_deltalake(
                    table,
                    rows,
                    mode="overwrite",
                    predicate=f"cluster IN ({names})",
                    commit_properties=properties,
                )
        except CommitFailedError:
            return False
        return True


def upkeep(folder: Path) -> None:
    """Join the small files of many batches, and remove what is out of use for a week."""
    for name in SCHEMAS:
        with commit_lock(folder, name):
            table = DeltaTable(str(folder / name))
            table.optimize.compact(target_size=COMPACT_TARGET_BYTES)
            table.vacuum(dry_run=False)


def merge(into: dict[str, events.NewRows], more: Mapping[str, events.NewRows]) -> None:
    """Add what a later commit brings."""
    for cluster, rows in more.items():
        mine = into.setdefault(cluster, events.NewRows())
        mine.head = rows.head or mine.head
        mine.stopped = rows.stopped or mine.stopped
        mine.hole = rows.hole or mine.hole
        mine.stray = rows.stray or mine.stray
        mine.epochs.extend(rows.epochs)


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


def _current(rows: Mapping[str, Mapping[str, HeldRows]]) -> pa.Table:
    cells = [
        _cells(cluster, placement, held.row, held.from_epoch)
        for cluster, placements in rows.items()
        for placement, found in placements.items()
        for held in found.values()
    ]
    return pa.Table.from_pylist(cells, schema=SCHEMAS[CURRENT])
