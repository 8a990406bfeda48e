"""The interface of a store that embeds the agent.

``docs/guides/embed_agent.md`` shows a store of sixty lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol, runtime_checkable

from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range, RangeReplicas
from stele.domain.tablets.maps import live_tables
from stele.runtime.logs import get_logger

# Spans: ranges of the data of one keyspace or table.


class Span(NamedTuple):
    """A range of the data of one keyspace or table.

    ``keyspace`` is the data's id, which a truncation replaces. An id that ends with ``+cdc`` is that
    of the data's change log. A store that keeps none has no rows there.
    """

    keyspace: str
    start: int
    end: int

    def bounds(self) -> tuple[str, int, int]:
        """Return id, start and end.

        The end is MAX_TOKEN where the range ends at MIN_TOKEN (``domain.ring.ranges``).
        """
        return self.keyspace, self.start, MAX_TOKEN if self.end == MIN_TOKEN else self.end

    def split(self, parts: int) -> list[Span]:
        """Split into ``parts`` spans of equal width, but at most one for each token.

        Their union is this span.
        """
        _, start, end = self.bounds()
        parts = min(parts, end - start)
        cuts = [start + (end - start) * at // parts for at in range(1, parts)]
        return [Span(self.keyspace, *cut) for cut in pairwise((self.start, *cuts, self.end))]


def spans_of(keyspaces: Sequence[str], ranges: Sequence[Range]) -> list[Span]:
    """Return a span for every range of every keyspace."""
    return [Span(keyspace, r.start, r.end) for keyspace in keyspaces for r in ranges]


class Row(NamedTuple):
    """A row of a store.

    ``value`` is opaque here; it may contain a timestamp that ``merge`` compares.
    """

    token: int
    key: bytes
    value: bytes


class Store(Protocol):
    """A node's data, kept by data id, token and key.

    The agent calls each function in the event loop, and its effect is complete before it returns.
    No epoch is applied in between. Each function must therefore be short, and its changes must be
    on the disk when it returns.

    An exception is reported as the reason why an order failed. The coordinator then sends the order
    again.
    """

    def host_id(self) -> str:
        """Return the host id that the data carries; empty before ``claim``."""
        ...

    def claim(self, host_id: str) -> None:
        """Store this host id permanently with the data."""
        ...

    def data_ids(self) -> Iterable[str]:
        """Return the ids of all stored data, including data that is to be deleted."""
        ...

    def scan(self, span: Span, after: tuple[int, bytes] | None, limit: int) -> Sequence[Row]:
        """Return rows of ``span.keyspace`` with a token in ``span.bounds()``, (start, end].

        The rows are ordered by token and key, and follow the token and key ``after``. Return at
        most ``limit`` rows, and none when there are no more.
        """
        ...

    def merge(self, data_id: str, rows: Sequence[Row]) -> None:
        """Store rows.

        If two rows have the same key, the newer one stays, in any order of arrival.
        """
        ...

    def delete(self, span: Span, limit: int) -> int:
        """Delete at most ``limit`` rows of the span, and return how many were deleted."""
        ...

    def size_bytes(self, span: Span) -> int:
        """Return the approximate size of the span's rows, in bytes."""
        ...


@runtime_checkable
class SplitStore(Store, Protocol):
    """A store that must separate the rows of its tablets before they are split.

    A store that finds rows by token has nothing to prepare. It is a plain ``Store``.
    """

    def prepare_split(self, data_id: str, tablet_count: int) -> bool:
        """Return whether the rows of this node's tablets are separated for ``tablet_count``
        tablets.

        The first call starts the separation, and the call returns at once. The agent calls again
        before each ack until the table is split, or the request is cancelled. From True on, rows
        that arrive are stored separated as well, and those of tablets that the node gains.
        """
        ...


# Partitions of a store: one for each table and shard.
#
# A partition is named by the id of the data, followed by the shard unless that is 0. Keys of the
# store begin with the partition's name. A node with one shard therefore uses plain ids, and a write
# to two shards is one transaction.
#
# The shards that a node reads and writes follow from the log that it has read, not from the version
# of the request. Requests reach the same node in any case, and the row's version refuses those that
# are too old.


_SIGN: Final = "#"
"""Separates id and shard. No data id contains it."""


def partition_of(data_id: str, shard: int) -> str:
    return f"{data_id}{_SIGN}{shard}" if shard else data_id


def parted(partition: str) -> tuple[str, int]:
    """Split a partition's name into the id of the data and the shard."""
    data_id, _, shard = partition.partition(_SIGN)
    return data_id, int(shard or 0)


def read_partition(image: Image, node_id: str, data_id: str, token: int) -> str:
    """Return the partition from which a node reads this token."""
    return write_partitions(image, node_id, data_id, token)[0]


def write_partitions(image: Image, node_id: str, data_id: str, token: int) -> tuple[str, ...]:
    """Return the partitions to which a node writes this token.

    The first one is the partition that it reads. Others are where its tablet is moving.
    """
    row = _row(image, node_id, data_id, token)
    if row is None or not (row.shards or row.other_shards):
        return (data_id,)
    return tuple(partition_of(data_id, shard) for shard in row.shards_of(node_id)) or (data_id,)


def placed(image: Image, node_id: str, spans: Sequence[Span]) -> list[Span]:
    """Return the spans in the partitions from which a node reads them.

    Each span must lie within one tablet.
    """
    return [
        span._replace(keyspace=read_partition(image, node_id, span.keyspace, span.end))
        for span in spans
    ]


def _row(image: Image, node_id: str, data_id: str, token: int) -> RangeReplicas | None:
    node, data = image.node(node_id), image.schema.of_data(data_id)
    if node is None or node.shards == 1 or data is None:
        return None
    placement = image.ring.placements.get(data.placement)
    return None if placement is None else placement.row_for(token)


# Pages of an embedded store's rows, limited in rows and in bytes.
#
# The receiver waits for a page for a limited time, whatever the size of the values. Rows are
# therefore read a few at a time. Only a page of a single row may exceed the limit.


PAGE_ROWS: Final = 500
PAGE_BYTES: Final = 2 * 1024 * 1024
PAGE_S: Final = 0.5
"""A page under a low limit holds what may be sent in this time, in seconds.

Larger pages would show no progress for seconds.
"""
SCAN_ROWS: Final = 64
"""Rows that are read at once. Rows beyond the page's limit are read again for the next page."""

Cursor = tuple[int, int, bytes]
"""Index of the span among those requested, and the token and key of the last row returned."""

_NO_KEY: Final[tuple[int, bytes] | None] = None


class Scans(Protocol):
    """The part of ``stores.Store`` that reads rows."""

    def scan(self, span: Span, after: tuple[int, bytes] | None, limit: int) -> Sequence[Row]: ...


class Page(NamedTuple):
    """Rows, each with the index of its span. If ``cursor`` is set, there may be more."""

    rows: list[tuple[int, Row]]
    size_bytes: int
    cursor: Cursor | None


def page_bytes(limit_bytes_per_s: float) -> int:
    """Return the size limit of a page, given the limit of a node's received bytes per second."""
    return min(PAGE_BYTES, int(PAGE_S * limit_bytes_per_s))


def page_of(store: Scans, spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int) -> Page:
    """Return rows of the spans after the cursor.

    The page has at most ``limit_bytes`` of keys and values, but at least one row.
    """
    at, after = 0, _NO_KEY
    if cursor is not None:
        at, after = cursor[0], cursor[1:]
    rows, size_bytes = list[tuple[int, Row]](), 0
    while at < len(spans):
        found = store.scan(spans[at], after, _rows_to_scan(len(rows), size_bytes, limit_bytes))
        if not found:
            at, after = at + 1, _NO_KEY
            continue
        for each in found:
            row = Row(*each)
            row_bytes = len(row.key) + len(row.value)
            if rows and (len(rows) >= PAGE_ROWS or size_bytes + row_bytes > limit_bytes):
                return _ended(rows, size_bytes)
            rows.append((at, row))
            size_bytes += row_bytes
            after = row.token, row.key
    return Page(rows, size_bytes, None)


def _rows_to_scan(rows: int, size_bytes: int, limit_bytes: int) -> int:
    """Return how many rows to read next.

    That many rows fit if they are as large as those read so far. The number at most doubles, since
    the first rows may not be typical.
    """
    fit = (limit_bytes - size_bytes) * rows // max(1, size_bytes)
    return max(1, min(fit, rows, SCAN_ROWS, PAGE_ROWS - rows))


def _ended(rows: list[tuple[int, Row]], size_bytes: int) -> Page:
    at, last = rows[-1]
    return Page(rows, size_bytes, (at, last.token, last.key))


# The resizes for which a node's storage is prepared, as its acks report them.
#
# The coordinator opens a split after every replica has reported it (``Operation.prepared_by``).
#
# Source: ScyllaDB, topology-over-raft.md, "Tablet splitting".


PreparedResizes = Callable[[Image], tuple[str, ...]]
"""Returns the ids of the open resizes for which the storage is prepared."""

log = get_logger(__name__)


def all_resizes(image: Image) -> tuple[str, ...]:
    """Return all open resizes: storage that finds rows by token needs no preparation."""
    return image.requests.resizing()


def resizes_of(store: Store) -> PreparedResizes:
    """Return the function that reports the prepared resizes of ``store``."""
    return SplitPreparation(store).prepared if isinstance(store, SplitStore) else all_resizes


class SplitPreparation:
    """Asks a store whether its tablets are separated for the open splits."""

    def __init__(self, store: SplitStore) -> None:
        self._store = store
        self._failure = ""

    def prepared(self, image: Image) -> tuple[str, ...]:
        """Return the merges, and the splits for which the store has separated its rows."""
        return tuple(i for i in image.requests.resizing() if self._is_prepared(image, i))

    def _is_prepared(self, image: Image, request_id: str) -> bool:
        request = image.requests.unfinished_by_id[request_id]
        # No short cut: the splits of all tables must begin at the same time.
        split = [self._is_split(data_id, request) for data_id in _to_split(image, request)]
        return all(split)

    def _is_split(self, data_id: str, request: Request) -> bool:
        try:
            is_split = self._store.prepare_split(data_id, request.tablet_count)
        except Exception as error:
            # An ack must be sent in any case: without acks the whole node counts as down.
            if repr(error) != self._failure:
                log.exception("a split cannot be prepared", data_id=data_id)
            self._failure = repr(error)
            return False
        self._failure = ""
        return is_split


def _to_split(image: Image, request: Request) -> list[str]:
    """Return the data ids that a request splits; a merge splits none.

    Co-located tables are split together.
    """
    table = image.schema.tables.get(request.table_id)
    placement = None if table is None else image.ring.placements.get(table.placement)
    if table is None or placement is None or request.tablet_count < len(placement):
        return []
    return [each.data_id for each in live_tables(image, table)]
