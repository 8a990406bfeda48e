"""Answers of a data node."""

from typing import Any

import msgspec


class KeyspaceSize(msgspec.Struct, frozen=True):
    """Stored data of a keyspace or table, including tombstones and rows that cleanup has yet to delete."""

    keys: int
    bytes: int


class NodeView(msgspec.Struct, frozen=True):
    """``GET /v1/node``. ``state`` is "unknown" while the cluster has no row of the node.

    ``reason`` is the reason why the node serves no data, empty while it does.
    """

    node_id: str
    host_id: str
    cluster: str
    dc: str
    rack: str
    num_tokens: int
    address: str
    shards: int = 1
    state: str = "unknown"
    reason: str = ""
    release_version: str = ""
    supported_features: tuple[str, ...] = ()
    epoch: int = 0
    version: int = 0
    oldest_version_in_use: int = 0
    sessions_in_use: list[str] = []
    keys: int = 0
    bytes: int = 0
    keyspaces: dict[str, KeyspaceSize] = {}
    """By data id, of a keyspace or a table. Those without data on the node are left out."""
    counted_ago_s: float = 0.0
    """Age of the counts of rows and bytes. A count is kept for a second."""


class ChangeView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of a key; bytes are base64. ``operation`` is put or delete.

    ``time_us`` is the write's time in microseconds since 1970. ``before`` is the value that the
    write replaced; None if there was none, or if the table keeps no images. JSON leaves None out.

    A change of a table with columns has ``row`` and ``row_before`` instead of values, as JSON
    objects. ``row`` has the key columns and the written columns; a deleted value is null.
    ``row_before`` has all columns that the row had.
    """

    time_us: int
    key: bytes
    operation: str
    value: bytes | None = None
    before: bytes | None = None
    row: dict[str, Any] | None = None
    row_before: dict[str, Any] | None = None


class ChangesView(msgspec.Struct, frozen=True):
    """``GET /v1/cdc/changes``. The next request gives ``cursor`` as ``after``.

    All changes up to ``complete_to_us`` were returned. ``more`` says that later ones can be read at
    once, ``ended`` that the stream has no later ones.
    """

    changes: list[ChangeView]
    cursor: str
    complete_to_us: int
    more: bool
    ended: bool


class StreamView(msgspec.Struct, frozen=True):
    """A stream, and its ranges (start, end] of tokens."""

    stream: str
    ranges: list[tuple[int, int]]


class StreamSetView(msgspec.Struct, frozen=True):
    """The streams of a period: those of a CDC generation, or of the present tablets.

    ``until_ms`` is 0 for the newest set. Tablets have an empty ``generation``.
    """

    generation: str
    since_ms: int
    until_ms: int
    streams: list[StreamView]


class StreamsView(msgspec.Struct, frozen=True):
    """``GET /v1/cdc/streams?table=`` of a node: the streams of a table by time."""

    table: str
    sets: list[StreamSetView]
