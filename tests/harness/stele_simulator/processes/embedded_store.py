"""A store on a simulated disk, which embeds the agent: what it takes is on the disk when it returns."""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from stele.agent.stores import Row, Span
from stele.log.archive.container import sync_file, sync_folder

Key = tuple[int, bytes]
COUNT_BYTES: Final = 8
"""Size of the counter at the beginning of a value, by which values are ordered."""


class Kept(msgspec.Struct, array_like=True):
    """The file."""

    host_id: str = ""
    rows: dict[str, list[tuple[int, bytes, bytes]]] = {}


encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


def cells_of(content: bytes) -> sqlite3.Connection:
    """The rows of a file as the trial nodes' store has its own."""
    engine = sqlite3.connect(":memory:")
    engine.execute(
        "create table cells (keyspace, token, key, timestamp, tombstone default 0, value)"
    )
    found = msgspec.msgpack.decode(content, type=Kept)
    for data_id, rows in found.rows.items():
        for token, key, value in rows:
            cell = data_id, token, key, int.from_bytes(value[:COUNT_BYTES]), value[COUNT_BYTES:]
            engine.execute(
                "insert into cells (keyspace, token, key, timestamp, value) values (?, ?, ?, ?, ?)",
                cell,
            )
    return engine


class Shelf:
    """A store in which the greater of two values of a key is newer: values begin with a counter."""

    def __init__(self, path: Path) -> None:
        self._path = path
        kept = msgspec.msgpack.decode(path.read_bytes(), type=Kept) if path.exists() else Kept()
        self._host_id = kept.host_id
        self.rows: dict[str, dict[Key, bytes]] = {
            data_id: {(token, key): value for token, key, value in rows}
            for data_id, rows in kept.rows.items()
        }

    def host_id(self) -> str:
        return self._host_id

    def claim(self, host_id: str) -> None:
        self._host_id = host_id
        self._save(self.rows)

    def data_ids(self) -> Iterable[str]:
        return sorted(data_id for data_id, rows in self.rows.items() if rows)

    def scan(self, span: Span, after: Key | None, limit: int) -> Sequence[Row]:
        rows = self.rows.get(span.keyspace, {})
        found = (at for at in self._in(span) if after is None or at > after)
        return [Row(*at, rows[at]) for at in sorted(found)[:limit]]

    def merge(self, data_id: str, rows: Sequence[Row]) -> None:
        mine = {**self.rows.get(data_id, {})}
        for row in rows:
            at = row.token, row.key
            mine[at] = max(mine.get(at, b""), row.value)
        self._save({**self.rows, data_id: mine})

    def delete(self, span: Span, limit: int) -> int:
        doomed = sorted(self._in(span))[:limit]
        if doomed:
            left = {at: v for at, v in self.rows[span.keyspace].items() if at not in doomed}
            self._save({**self.rows, span.keyspace: left})
        return len(doomed)

    def size_bytes(self, span: Span) -> int:
        rows = self.rows.get(span.keyspace, {})
        return sum(len(at[1]) + len(rows[at]) for at in self._in(span))

    def _in(self, span: Span) -> list[Key]:
        _, start, end = span.bounds()
        return [at for at in self.rows.get(span.keyspace, {}) if start < at[0] <= end]

    def _save(self, rows: dict[str, dict[Key, bytes]]) -> None:
        """Write to disk. Rows without room are rejected. Raises OSError."""
        listed = {
            data_id: [(*at, value) for at, value in sorted(found.items())]
            for data_id, found in sorted(rows.items())
        }
        new = self._path.with_name(f"{self._path.name}.new")
        with new.open("wb") as file:
            file.write(encode(Kept(self._host_id, listed)))
            sync_file(file)
        new.replace(self._path)
        sync_folder(self._path.parent)
        self.rows = rows
