"""The table ``reports``, which is the state of the second query: streams as nodes reported them, and heads.

As with ``events`` the rows and the heads are one commit, each with the next number, so records at or below
a head are skipped and nothing counts twice, whoever else runs, and wherever a query begins.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from stele.placements import reports
from stele.placements.reports import FRESH, Head, Stream
from stele.placements.store import Store
from stele.placements.tables import (
    ATTEMPTS,
    REPORTS,
    Conflict,
    TableLost,
    existing_table,
    open_table,
)

APP: Final = "stele-reports"
MOST_KNOWN: Final = 20_000
"""Streams that are kept in memory; one that is not is read again."""

Key = tuple[str, str, str]
"""Cluster, session, node."""
Session = tuple[str, str]
"""Cluster and session."""


class Reports:
    """The table as this process knows it: at commit ``number`` of the jobs, with the heads there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._table = open_table(store, REPORTS)
        self._id = str(self._table.metadata().id)
        self.number = 0
        self.heads: dict[str, Head] = {}
        self._known: OrderedDict[Key, Stream] = OrderedDict()
        self.refresh()

    def append(self, decoded: pa.Table, topic_ids: Mapping[str, str]) -> set[Session]:
        """Add records above the heads, in one commit. Gives the sessions whose streams are others than
        before, whoever wrote them. Raises Conflict, TableLost, and what the store raises.
        """
        touched: set[Session] = set()
        for _ in range(ATTEMPTS):
            touched |= self.refresh()
            rows, streams, heads = self._followed(decoded, topic_ids)
            if not rows:
                return touched
            number = self.number
            try:
                self._write(pa.Table.from_pylist(rows, schema=reports.SCHEMA))
            except (
                Exception
            ) as error:  # refused, or nobody knows whether it was made: the table says
                touched |= self.refresh()
                if self.number == number and not isinstance(error, CommitFailedError):
                    raise
                continue
            self.number += 1
            self.heads = self.heads | heads
            self._keep(streams)
            return touched | {(cluster, session) for cluster, session, _ in streams}
        raise Conflict(
            f"Another process wrote to {self._store.uri(REPORTS)} first, {ATTEMPTS} times."
        )

    def begin_again(self, cluster: str) -> None:
        """Its topic is another one than was read, so its offsets begin at 0."""
        self.heads = self.heads | {cluster: Head(unreadable=self.heads[cluster].unreadable)}

    def refresh(self) -> set[Session]:
        """Read what other processes committed since. Raises TableLost."""
        table = existing_table(self._store, REPORTS)
        number = table.transaction_version(APP) or 0
        if str(table.metadata().id) != self._id or number < self.number:
            raise TableLost(f"{self._store.uri(REPORTS)} was made anew or restored.")
        self._table = table
        if number == self.number:
            return set()
        rows = _rows(table, pc.field("commit_number") > self.number, ["commit_number", *_PLACE])
        self.number = number
        self._known.clear()
        touched: set[Session] = set()
        for row in sorted(rows.to_pylist(), key=lambda row: int(row["commit_number"])):
            if row["row_kind"] == reports.HEAD:
                head = Head(row["log_offset"] + 1, row["topic_id"], row["unreadable"])
                self.heads = self.heads | {row["cluster"]: head}
            else:
                touched.add((row["cluster"], row["session"]))
        return touched

    def _followed(
        self, decoded: pa.Table, topic_ids: Mapping[str, str]
    ) -> tuple[list[dict[str, object]], dict[Key, Stream], dict[str, Head]]:
        """The rows of the next commit, with the streams and heads that they stand for."""
        new = reports.reports_of(decoded, self.heads)
        keys = {
            (cluster, report.session, report.node_id)
            for cluster, records in new.items()
            for _, report, _ in records
            if report is not None
        }
        known = self._known_of(keys)
        streams, offsets, heads = dict[Key, Stream](), dict[Key, int](), dict[str, Head]()
        for cluster, records in new.items():
            unreadable = self.heads.get(cluster, FRESH).unreadable
            for offset, report, readable in records:
                unreadable += not readable
                if report is not None:
                    key = cluster, report.session, report.node_id
                    streams[key] = reports.follow(streams.get(key) or known.get(key), report)
                    offsets[key] = offset
            heads[cluster] = Head(records[-1][0] + 1, topic_ids.get(cluster, ""), unreadable)
        number = self.number + 1
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
            found |= newest_streams(self._table, wanted)
        return found

    def _keep(self, streams: Mapping[Key, Stream]) -> None:
        self._known.update(streams)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    def _write(self, rows: pa.Table) -> None:
        properties = CommitProperties(
            app_transactions=[Transaction(APP, self.number + 1)], max_commit_retries=0
        )
        write_deltalake(self._table, rows, mode="append", commit_properties=properties)


_PLACE: Final = ["cluster", "row_kind", "session", "log_offset", "topic_id", "unreadable"]


def newest_streams(
    table: DeltaTable, sessions: Iterable[Session] | None = None
) -> dict[Key, Stream]:
    """The streams of these sessions, or of all, by the newest row of each."""
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
