"""The table ``reports``, the state of the second query: streams as nodes reported them, and heads.

As with ``events``, the rows and the heads are one commit, each with the next number. Records at or
below a head are skipped, so each counts once, whatever other jobs run and wherever a query begins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from stele.placements import reports, streams
from stele.placements.events import time_of
from stele.placements.reports import FRESH, ReportsHead, Stream
from stele.placements.store import TableStore, in_clusters, sql_text
from stele.placements.tables import (
    MOVEMENTS,
    REPORTS,
    SCHEMAS,
    STREAMS,
    NumberedTable,
    attempts,
    existing_table,
    open_table,
)

APP: Final = "stele-reports"
MOST_KNOWN: Final = 20_000
"""Most streams kept in memory. Others are read again."""

Key = tuple[str, str, str]
"""Cluster, session, node."""
Session = tuple[str, str]
"""Cluster and session."""


class Reports:
    """The table as this process has read it, with its heads."""

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._commits = NumberedTable(store, REPORTS, APP)
        self.heads: dict[str, ReportsHead] = {}
        self._known: OrderedDict[Key, Stream] = OrderedDict()
        self.refresh()

    def append(self, decoded: pa.Table, topic_ids: Mapping[str, str]) -> set[Session]:
        """Add records above the heads, in one commit. Return the sessions whose streams changed.

        These include changes by other processes. Raises Conflict, TableLost, and the errors of the
        store.
        """
        touched: set[Session] = set()
        for _ in attempts(self._store, REPORTS):
            touched |= self.refresh()
            rows, streams, heads = self._followed(decoded, topic_ids)
            if not rows:
                break
            if self._commits.append(pa.Table.from_pylist(rows, schema=reports.SCHEMA)):
                self.heads = self.heads | heads
                self._keep(streams)
                return touched | {(cluster, session) for cluster, session, _ in streams}
        return touched

    def begin_again(self, cluster: str) -> None:
        """Reset a cluster whose topic was created again: its offsets begin at 0."""
        self.heads = self.heads | {cluster: ReportsHead(unreadable=self.heads[cluster].unreadable)}

    def refresh(self) -> set[Session]:
        """Read the commits of other processes, and return their sessions. Raises TableLost."""
        number, before = self._commits.reopen(), self._commits.number
        if number == before:
            return set()
        columns = ["commit_number", *_PLACE]
        rows = _rows(self._commits.table, pc.field("commit_number") > before, columns)
        self._commits.number = number
        self._known.clear()
        touched: set[Session] = set()
        for row in sorted(rows.to_pylist(), key=lambda row: int(row["commit_number"])):
            if row["row_kind"] == reports.HEAD:
                head = ReportsHead(row["log_offset"] + 1, row["topic_id"], row["unreadable"])
                self.heads = self.heads | {row["cluster"]: head}
            else:
                touched.add((row["cluster"], row["session"]))
        return touched

    def _followed(
        self, decoded: pa.Table, topic_ids: Mapping[str, str]
    ) -> tuple[list[dict[str, object]], dict[Key, Stream], dict[str, ReportsHead]]:
        """Return the rows of the next commit, with their streams and heads."""
        new = reports.reports_of(decoded, self.heads)
        keys = {
            (cluster, report.session, report.node_id)
            for cluster, records in new.items()
            for _, report, _ in records
            if report is not None
        }
        known = self._known_of(keys)
        streams, offsets, heads = dict[Key, Stream](), dict[Key, int](), dict[str, ReportsHead]()
        for cluster, records in new.items():
            unreadable = self.heads.get(cluster, FRESH).unreadable
            for offset, report, readable in records:
                unreadable += not readable
                if report is not None:
                    key = cluster, report.session, report.node_id
                    streams[key] = reports.follow(streams.get(key) or known.get(key), report)
                    offsets[key] = offset
            heads[cluster] = ReportsHead(records[-1][0] + 1, topic_ids.get(cluster, ""), unreadable)
        number = self._commits.number + 1
        rows = [
            reports.stream_cells(key[0], stream, offsets[key], number)
            for key, stream in streams.items()
        ]
        rows += [reports.head_cells(cluster, head, number) for cluster, head in heads.items()]
        return rows, streams, heads

    def _known_of(self, keys: Iterable[Key]) -> dict[Key, Stream]:
        found, lacking = dict[Key, Stream](), list[Key]()
        for key in keys:
            if key in self._known:
                self._known.move_to_end(key)
                found[key] = self._known[key]
            else:
                lacking.append(key)
        if lacking:
            wanted = {(cluster, session) for cluster, session, _ in lacking}
            found |= newest_streams(self._commits.table, wanted)
        return found

    def _keep(self, streams: Mapping[Key, Stream]) -> None:
        self._known.update(streams)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)


_PLACE: Final = ["cluster", "row_kind", "session", "log_offset", "topic_id", "unreadable"]


def newest_streams(
    table: DeltaTable, sessions: Iterable[Session] | None = None
) -> dict[Key, Stream]:
    """Return the streams of these sessions, or of all, by the newest row of each."""
    wanted = pc.field("row_kind") == reports.STREAM
    only = None if sessions is None else {*sessions}
    if only is not None:
        names = pa.array(sorted({session for _, session in only}), pa.string())
        wanted = wanted & pc.field("session").isin(names)
    newest: dict[Key, tuple[int, Stream]] = {}
    for row in _rows(table, wanted).to_pylist():
        if only is not None and (row["cluster"], row["session"]) not in only:
            continue
        key = row["cluster"], row["session"], row["node_id"]
        if key not in newest or newest[key][0] < row["commit_number"]:
            newest[key] = row["commit_number"], reports.stream_of(row)
    return {key: stream for key, (_, stream) in newest.items()}


def _rows(table: DeltaTable, wanted: pc.Expression, columns: list[str] | None = None) -> pa.Table:
    return table.to_pyarrow_dataset().to_table(columns, wanted)


# The table ``movements``: data that moved between nodes, with source, target, reason, amount and
# time.
#
# A row is the data that one source sent to a node under one session. It follows from the tables
# ``streams`` (the reason, from the log) and ``reports`` (the amount, from nodes). It is replaced
# whenever either has new rows of its session. The table can thus be deleted, and repeated writes
# from any process do no harm.


SESSIONS_AT_ONCE: Final = 200
"""Sessions of one commit. Their names are in its predicate."""

Row = dict[str, Any]


def rows_of(why: Mapping[str, Any], cluster: str, stream: Stream) -> Iterator[Row]:
    """Yield the rows of one stream: one for each named source, and one for the remainder. Pure."""
    shared = {
        "cluster": cluster,
        "session": stream.session,
        "to_node": stream.node_id,
        **{name: why[name] for name in streams.WHY},
        "movement_status": stream.status,
        "attempts": stream.attempts,
        "error_text": stream.error,
        "began_at": time_of(stream.began_ms),
        "reported_at": time_of(stream.reported_ms),
        "duration_s": max(0, stream.reported_ms - stream.began_ms) / 1000,
    }
    by_source = dict[str | None, tuple[int, ...]](stream.counted.sources().items())
    told = [sum(numbers) for numbers in zip(*by_source.values(), strict=True)] or [0, 0, 0]
    left = [max(0, all_ - some) for all_, some in zip(stream.counted.totals(), told, strict=True)]
    if any(left) or not by_source:
        possible = why["possible_sources"]
        sole = possible[0] if len(possible) == 1 else None
        known = by_source.get(sole, (0, 0, 0))
        by_source[sole] = tuple(a + b for a, b in zip(known, left, strict=True))
    for name, numbers in by_source.items():
        yield {**shared, "from_node": name, **_numbers(numbers)}


def _numbers(numbers: Iterable[int]) -> Row:
    return dict(zip(("bytes_moved", "rows_moved", "bytes_compared"), numbers, strict=True))


class Movements:
    """Writes the table. For one thread."""

    def __init__(self, store: TableStore) -> None:
        self._store = store
        for name in (REPORTS, STREAMS, MOVEMENTS):
            open_table(store, name)

    def behind(self) -> set[Session]:
        """Return all sessions whose rows differ from what they should be.

        Reads the whole table. Raises TableLost.
        """
        should = self._rows_of(None)
        held: dict[Session, list[Row]] = {}
        for row in (
            existing_table(self._store, MOVEMENTS).to_pyarrow_dataset().to_table().to_pylist()
        ):
            held.setdefault((row["cluster"], row["session"]), []).append(row)
        return {
            session
            for session in should.keys() | held.keys()
            if _sorted(should.get(session, [])) != _sorted(held.get(session, []))
        }

    def write(self, sessions: Iterable[Session]) -> None:
        """Derive the rows of these sessions again.

        Raises Conflict, TableLost, DeltaError, OSError.
        """
        ordered = sorted(sessions)
        for at in range(0, len(ordered), SESSIONS_AT_ONCE):
            self._write(ordered[at : at + SESSIONS_AT_ONCE])

    def _write(self, sessions: list[Session]) -> None:
        for _ in attempts(self._store, MOVEMENTS):
            table = existing_table(self._store, MOVEMENTS)
            # Read after the table is opened: a commit in between makes this one fail.
            found = self._rows_of(sessions)
            rows = [row for each in found.values() for row in each]
            if not rows and not self._holds(table, sessions):
                return
            try:
                write_deltalake(
                    table,
                    pa.Table.from_pylist(rows, schema=SCHEMAS[MOVEMENTS]),
                    mode="overwrite",
                    predicate=_predicate(sessions),
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except CommitFailedError:
                continue
            return

    def _rows_of(self, sessions: list[Session] | None) -> dict[Session, list[Row]]:
        """Return the rows by session, from the log and the reports."""
        moved = newest_streams(existing_table(self._store, REPORTS), sessions)
        whys = self._whys(sessions)
        found: dict[Session, list[Row]] = {}
        for (cluster, session, node_id), stream in moved.items():
            why = whys.get((cluster, session, node_id))
            if why is not None:
                found.setdefault((cluster, session), []).extend(rows_of(why, cluster, stream))
        return found

    def _whys(self, sessions: list[Session] | None) -> dict[Key, Row]:
        data = existing_table(self._store, STREAMS).to_pyarrow_dataset()
        wanted = None if sessions is None else _of(sessions)
        return {
            (row["cluster"], row["session"], row["to_node"]): row
            for row in data.to_table(filter=wanted).to_pylist()
        }

    @staticmethod
    def _holds(table: DeltaTable, sessions: list[Session]) -> bool:
        return bool(table.to_pyarrow_dataset().count_rows(filter=_of(sessions)))


def _of(sessions: Iterable[Session]) -> pc.Expression:
    """Return a filter on session names. The caller must check the clusters."""
    return pc.field("session").isin(pa.array(sorted({session for _, session in sessions})))


def _predicate(sessions: Iterable[Session]) -> str:
    """Return the SQL predicate for the rows of these sessions."""
    by_cluster: dict[str, list[str]] = {}
    for cluster, session in sessions:
        by_cluster.setdefault(cluster, []).append(session)
    return " OR ".join(
        f"({in_clusters([cluster])} AND session IN ({', '.join(map(sql_text, names))}))"
        for cluster, names in sorted(by_cluster.items())
    )


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["to_node"], row["from_node"] or ""))
