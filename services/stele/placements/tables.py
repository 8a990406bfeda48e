"""The Delta tables: their columns, their creation, and commits beside other processes.

``events`` is the state; all others follow from it.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Schema

from stele.placements import events, reports, schema_history, streams
from stele.placements.columns import (
    FLOAT,
    NUMBER,
    SMALL_NUMBERS,
    TEXT,
    TEXTS,
    TIME,
    TRUTH,
    columns,
)
from stele.placements.store import TableMissing, TableStore
from stele.placements.summaries import REQUESTS, SPREAD, SUMMARIES

EVENTS: Final = "events"
CURRENT: Final = "placements"
PAST: Final = "placements_past"
CHANGES: Final = "placements_changes"
BALANCE: Final = "balance"
STREAMS: Final = "streams"
SCHEMA_HISTORY: Final = "schema_history"
REPORTS: Final = "reports"
MOVEMENTS: Final = "movements"
PROGRESS: Final = "progress"

_RANGE: Final = columns(
    (TEXT, "cluster placement"),
    (NUMBER, "range_start range_end"),
    (TEXTS, "read_replicas write_replicas"),
    (NUMBER, "version version_before"),
    (TEXTS, "other_replicas"),
    (NUMBER, "from_epoch"),
    (SMALL_NUMBERS, "shards other_shards"),
)
OPTIONAL: Final = (REPORTS, MOVEMENTS, PROGRESS)
"""Tables that do not exist until a job reads reports, or until a job of this build has run."""
_PROGRESS: Final = pa.schema(
    columns(
        (TEXT, "cluster"),
        (TIME, "looked_at"),
        (NUMBER, "topic_end judged_to records_behind judged_epoch"),
        (NUMBER, "published_epoch published_behind tables_epoch tables_behind"),
    )
)
_MOVEMENTS: Final = pa.schema(
    {
        **columns((TEXT, "cluster session from_node to_node")),
        **streams.WHY,
        **columns(
            (TEXT, "movement_status"),
            (NUMBER, "attempts"),
            (TEXT, "error_text"),
            (TIME, "began_at reported_at"),
            (FLOAT, "duration_s"),
            (NUMBER, "bytes_moved rows_moved bytes_compared"),
        ),
    }
)
"""``from_node`` is null when no report names the source and ``possible_sources`` has several
nodes.
"""
SCHEMAS: Final = {
    EVENTS: events.SCHEMA,
    CURRENT: pa.schema(_RANGE),
    PAST: pa.schema({**_RANGE, "to_epoch": NUMBER}),
    CHANGES: pa.schema({**_RANGE, "changed_epoch": NUMBER, "is_gone": TRUTH}),
    BALANCE: SPREAD.schema,
    STREAMS: streams.SCHEMA,
    SCHEMA_HISTORY: schema_history.SCHEMA,
    REPORTS: reports.SCHEMA,
    MOVEMENTS: _MOVEMENTS,
    PROGRESS: _PROGRESS,
    **{name: summary.schema for name, summary in SUMMARIES.items()},
}
APPENDED: Final = (EVENTS, PAST, CHANGES, BALANCE, STREAMS, SCHEMA_HISTORY, REPORTS)
"""Tables whose rows are the changes.

For the others except ``progress``, Delta's change data feed has them.
"""
PARTITIONS: Final = {CURRENT: ["cluster"]}
CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    # A consumer of the change feed, or of an older version, needs both the log and the files.
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}
_SHORT_LOG: Final = {"delta.logRetentionDuration": "interval 1 days"}
"""For ``progress``, which each batch commits and whose changes have no consumers."""
_FEED: Final = {"delta.enableChangeDataFeed": "true"}
_WITHOUT_FEED: Final = (*APPENDED, PROGRESS)
COMPACT_TARGET_BYTES: Final = 128 * 1024 * 1024
COMPACT_TARGETS: Final = dict.fromkeys((MOVEMENTS, REQUESTS), 16 * 1024 * 1024)
"""For tables that are rewritten in parts: changing a part of a file rewrites the file."""
ATTEMPTS: Final = 20
"""Attempts to commit after other processes before the conflict is an error."""


class TableLost(Exception):
    """A table is gone, or was created again. The next start reads from the present one."""


class Conflict(Exception):
    """Other processes committed first each time."""


def open_table(store: TableStore, name: str) -> DeltaTable:
    """Return the table, and create it when it is missing. Raises DeltaError, OSError."""
    if not store.is_there(name):
        try:
            DeltaTable.create(
                store.uri(name),
                SCHEMAS[name],
                mode="ignore",
                partition_by=PARTITIONS.get(name, []),
                configuration=_configuration(name),
            )
        except DeltaError:  # another process may be creating it now
            if not store.is_there(name):
                raise
    table = store.table(name)
    _add_later_columns(table, name)
    return table


def _configuration(name: str) -> dict[str, str]:
    return {
        **CONFIGURATION,
        **({} if name in _WITHOUT_FEED else _FEED),
        **(_SHORT_LOG if name == PROGRESS else {}),
    }


def _add_later_columns(table: DeltaTable, name: str) -> None:
    """Add the columns that a table of an earlier build lacks. Its rows have no value for them."""
    known = {field.name for field in table.schema().fields}
    lacking = [each for each in SCHEMAS[name] if each.name not in known]
    if lacking:
        table.alter.add_columns(Schema.from_arrow(pa.schema(lacking)).fields)


def existing_table(store: TableStore, name: str) -> DeltaTable:
    """Return a table that existed before. Raises TableLost."""
    try:
        return store.table(name)
    except TableMissing as error:
        raise TableLost(str(error)) from error


def attempts(store: TableStore, name: str) -> Iterator[None]:
    """Yield for each attempt to commit. Raise Conflict after the last one."""
    for _ in range(ATTEMPTS):
        yield
    raise Conflict(f"Another process wrote to {store.uri(name)} first, {ATTEMPTS} times.")


class NumberedTable:
    """A table to which jobs append, each commit with the next ``number``.

    The number is an application transaction, and Delta accepts each number once. A process that
    comes second reads the rows of the first one. The table also shows whether a commit that seemed
    to fail was made.
    """

    def __init__(self, store: TableStore, name: str, app: str) -> None:
        self.table = open_table(store, name)
        self.number = 0
        """Number of the newest commit that this process has read."""
        self.uri = store.uri(name)
        self._store, self._name, self._app = store, name, app
        self._id = str(self.table.metadata().id)

    def reopen(self) -> int:
        """Open the newest version, and return its number. Raises TableLost."""
        table = existing_table(self._store, self._name)
        number = table.transaction_version(self._app) or 0
        if str(table.metadata().id) != self._id or number < self.number:
            raise TableLost(f"{self.uri} was recreated or restored.")
        self.table = table
        return number

    def append(self, rows: pa.Table) -> bool:
        """Append rows under the next number.

        Return False when another process came first, or the result is unknown. The caller then
        reads the commits of others, and tries again. Raises TableLost, and the errors of the store.
        """
        try:
            self._write(rows)
        except Exception as error:  # refused, or with an unknown result: the table shows which
            if self.reopen() == self.number and not isinstance(error, CommitFailedError):
                raise
            return False
        self.number += 1
        return True

    def _write(self, rows: pa.Table) -> None:
        properties = CommitProperties(
            app_transactions=[Transaction(self._app, self.number + 1)], max_commit_retries=0
        )
        write_deltalake(self.table, rows, mode="append", commit_properties=properties)
