"""The Delta tables: what their columns are and how they are made.

``events`` is the state; all others follow from it.
"""

from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.schema import ArrayType, Field, PrimitiveType

from stele.placements import balance, events, reports, streams
from stele.placements.store import Store, TableMissing
from stele.placements.summaries import SUMMARIES

EVENTS: Final = "events"
CURRENT: Final = "placements"
PAST: Final = "placements_past"
CHANGES: Final = "placements_changes"
BALANCE: Final = "balance"
STREAMS: Final = "streams"
REPORTS: Final = "reports"
MOVEMENTS: Final = "movements"
PROGRESS: Final = "progress"

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
OPTIONAL: Final = (REPORTS, MOVEMENTS, PROGRESS)
"""Not there as long as no job reads reports, or no job of this build has run."""
_PROGRESS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("looked_at", pa.timestamp("us", tz="UTC")),
        ("topic_end", pa.int64()),
        ("judged_to", pa.int64()),
        ("records_behind", pa.int64()),
        ("judged_epoch", pa.int64()),
        ("published_epoch", pa.int64()),
        ("published_behind", pa.int64()),
        ("tables_epoch", pa.int64()),
        ("tables_behind", pa.int64()),
    ]
)
_MOVEMENTS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("session", pa.string()),
        ("from_node", pa.string()),
        ("to_node", pa.string()),
        *streams.WHY.items(),
        ("movement_status", pa.string()),
        ("attempts", pa.int64()),
        ("error_text", pa.string()),
        ("began_at", pa.timestamp("us", tz="UTC")),
        ("reported_at", pa.timestamp("us", tz="UTC")),
        ("duration_s", pa.float64()),
        ("bytes_moved", pa.int64()),
        ("rows_moved", pa.int64()),
        ("bytes_compared", pa.int64()),
    ]
)
"""``from_node`` is null for what nobody said the source of, and ``possible_sources`` are several."""
_LATER: Final = ("shards", "other_shards")
"""Lists that tables made by earlier builds do not have; without them no row has any."""
SCHEMAS: Final = {
    EVENTS: events.SCHEMA,
    CURRENT: pa.schema(_RANGE),
    PAST: pa.schema([*_RANGE, ("to_epoch", pa.int64())]),
    CHANGES: pa.schema([*_RANGE, ("changed_epoch", pa.int64()), ("is_gone", pa.bool_())]),
    BALANCE: balance.SCHEMA,
    STREAMS: streams.SCHEMA,
    REPORTS: reports.SCHEMA,
    MOVEMENTS: _MOVEMENTS,
    PROGRESS: _PROGRESS,
    **{name: summary.schema for name, summary in SUMMARIES.items()},
}
APPENDED: Final = (EVENTS, PAST, CHANGES, BALANCE, STREAMS, REPORTS)
"""Each of their rows is a change; of the others but ``progress`` Delta's change data feed says what changed."""
PARTITIONS: Final = {CURRENT: ["cluster"]}
CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}
_FEED: Final = {"delta.enableChangeDataFeed": "true"}
_WITHOUT_FEED: Final = (*APPENDED, PROGRESS)
COMPACT_TARGET_BYTES: Final = 128 * 1024 * 1024
COMPACT_TARGETS: Final = {MOVEMENTS: 16 * 1024 * 1024}
"""Of tables that are written anew in parts: a part of a file rewrites the file."""
ATTEMPTS: Final = 20
"""Commits of other processes that one of ours gives way to before it is an error."""


class TableLost(Exception):
    """A table that was there is gone or was made anew; the next start reads from what there is now."""


class Conflict(Exception):
    """Other processes came first again and again."""


def open_table(store: Store, name: str) -> DeltaTable:
    """The table, made when it is missing. Raises DeltaError, OSError."""
    if not store.is_there(name):
        try:
            DeltaTable.create(
                store.uri(name),
                SCHEMAS[name],
                mode="ignore",
                partition_by=PARTITIONS.get(name, []),
                configuration=CONFIGURATION | ({} if name in _WITHOUT_FEED else _FEED),
            )
        except DeltaError:  # another process makes it at this moment
            if not store.is_there(name):
                raise
    table = store.table(name)
    _add_later_columns(table, name)
    return table


def _add_later_columns(table: DeltaTable, name: str) -> None:
    known = {field.name for field in table.schema().fields}
    lacking = [c for c in _LATER if c in SCHEMAS[name].names and c not in known]
    if lacking:
        table.alter.add_columns([Field(c, ArrayType(PrimitiveType("integer"))) for c in lacking])


def existing_table(store: Store, name: str) -> DeltaTable:
    """A table that was there before. Raises TableLost."""
    try:
        return store.table(name)
    except TableMissing as error:
        raise TableLost(str(error)) from error
