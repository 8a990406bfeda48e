"""The table ``movements``: data that moved between nodes; from whom, to whom, why, how much, when.

A row is what one source gave a node under one session. It follows from the tables ``streams`` (the log says
why) and ``reports`` (nodes say how much), and is written anew whenever either has something new of its
session; so it can be thrown away, and it does not matter who writes it, or how often.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from stele.placements import streams
from stele.placements.reports import Stream
from stele.placements.reports_table import Key, Session, newest_streams
from stele.placements.store import Store
from stele.placements.tables import (
    ATTEMPTS,
    MOVEMENTS,
    REPORTS,
    SCHEMAS,
    STREAMS,
    Conflict,
    existing_table,
    open_table,
)
from stele.placements.times import time_of

APP: Final = "stele-movements"
SESSIONS_AT_ONCE: Final = 200
"""Of a commit: their names stand in its predicate."""

Row = dict[str, Any]


def rows_of(why: Mapping[str, Any], cluster: str, stream: Stream) -> Iterator[Row]:
    """The rows of one stream: one for each source that was named, and one of what is left. Pure."""
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

    def __init__(self, store: Store) -> None:
        self._store = store
        for name in (REPORTS, STREAMS, MOVEMENTS):
            open_table(store, name)

    def behind(self) -> set[Session]:
        """All sessions of which the table has other rows than it should. Reads all of it. Raises TableLost."""
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
        """Bring the rows of these sessions to what the two tables say. Raises Conflict, TableLost,
        DeltaError, OSError."""
        ordered = sorted(sessions)
        for at in range(0, len(ordered), SESSIONS_AT_ONCE):
            self._write(ordered[at : at + SESSIONS_AT_ONCE])

    def _write(self, sessions: list[Session]) -> None:
        for _ in range(ATTEMPTS):
            table = existing_table(self._store, MOVEMENTS)
            number = table.transaction_version(APP) or 0
            found = self._rows_of(
                sessions
            )  # read after the table: who comes between makes the commit fail
            rows = [row for each in found.values() for row in each]
            if not rows and not self._holds(table, sessions):
                return
            properties = CommitProperties(
                app_transactions=[Transaction(APP, number + 1)], max_commit_retries=0
            )
            try:
                write_deltalake(
                    table,
                    pa.Table.from_pylist(rows, schema=SCHEMAS[MOVEMENTS]),
                    mode="overwrite",
                    predicate=_predicate(sessions),
                    commit_properties=properties,
                )
            except CommitFailedError:
                continue
            return
        raise Conflict(
            f"Another process wrote to {self._store.uri(MOVEMENTS)} first, {ATTEMPTS} times."
        )

    def _rows_of(self, sessions: list[Session] | None) -> dict[Session, list[Row]]:
        """By session, its rows as the log and the reports have them."""
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
    """Sessions by name; that their clusters fit is for the caller to see to."""
    return pc.field("session").isin(pa.array(sorted({session for _, session in sessions})))


def _predicate(sessions: Iterable[Session]) -> str:
    """Names come from reports, which anybody may write."""
    by_cluster: dict[str, list[str]] = {}
    for cluster, session in sessions:
        by_cluster.setdefault(cluster, []).append(session)
    return " OR ".join(
        f"(cluster = {_quoted(cluster)} AND session IN ({', '.join(map(_quoted, names))}))"
        for cluster, names in sorted(by_cluster.items())
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["to_node"], row["from_node"] or ""))
