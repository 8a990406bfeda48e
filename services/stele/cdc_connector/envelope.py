"""Records of changes in Debezium's envelope, as JSON without a schema.

ChangeSource: Debezium, "Data change events" of the connector for Cassandra. Bytes are base64, as its
``binary.handling.mode=base64``.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

import msgspec

from stele.runtime.answers.node import ChangeView

CONNECTOR: Final = "stele"
MICROS_PER_MS: Final = 1000

_encode: Final = msgspec.json.Encoder().encode


class Key(msgspec.Struct, frozen=True):
    key: bytes


class RowImage(msgspec.Struct, frozen=True):
    key: bytes
    value: bytes


class ChangeSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a change came from. ``ts_ms`` and ``ts_us`` are the time of the write."""

    version: str
    connector: str
    name: str
    ts_ms: int
    ts_us: int
    keyspace_name: str
    table_name: str
    snapshot: str = "false"


class ChangeEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """A change. ``op`` is c for a new key, u for a value that may replace another one, d for a deletion.

    The row of a table with columns is an object of columns: ``after`` has the written ones.
    """

    before: RowImage | dict[str, Any] | None
    after: RowImage | dict[str, Any] | None
    source: ChangeSource
    op: str
    ts_ms: int


def record_of(
    change: ChangeView, cluster: str, table: str, now_ms: int, *, preimage: bool
) -> tuple[bytes, bytes]:
    """Return key and value of a record.

    ``preimage`` tells whether the table keeps the images before its changes.
    """
    keyspace, _, name = table.partition(".")
    deleted = change.operation == "delete"
    before: RowImage | dict[str, Any] | None = change.row_before
    after: RowImage | dict[str, Any] | None = None if deleted else change.row
    if change.before is not None:
        before = RowImage(change.key, change.before)
    if change.value is not None:
        after = RowImage(change.key, change.value)
    put = "c" if preimage and before is None else "u"
    envelope = ChangeEnvelope(
        before=before,
        after=after,
        source=ChangeSource(
            version=version("stele"),
            connector=CONNECTOR,
            name=cluster,
            ts_ms=change.time_us // MICROS_PER_MS,
            ts_us=change.time_us,
            keyspace_name=keyspace,
            table_name=name,
        ),
        op="d" if deleted else put,
        ts_ms=now_ms,
    )
    return _encode(Key(change.key)), _encode(envelope)
