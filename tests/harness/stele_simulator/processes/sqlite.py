"""SQLite as simulated nodes have it: the real engine in memory, and its file on the simulated disk.

All connections of a life of a process see the same database: nothing runs between the statements of a job of a
thread, so each sees what was committed. A commit is on the file whole or not at all, as SQLite's log makes sure
of; it is on the platter when ``synchronous`` says that commits are synced.
"""

import sqlite3 as real
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from stele_simulator.processes.module_stand_in import ModuleStandIn

if TYPE_CHECKING:
    from stele_simulator.processes.disk import SimPath

SYNCED: Final = ("full", "extra", "2", "3")
"""Values of ``synchronous`` with which a commit to a write-ahead log is synced before it returns."""
WRITES: Final = ("insert", "update", "delete", "create", "replace")


class Database:
    """The database of one life of a process."""

    def __init__(self, path: "SimPath") -> None:
        self.syncs = True
        self.engine = real.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._path = path
        self._before: tuple[int, int] | None = None
        """Position before a transaction that had no room to commit; None: there is room."""
        found = path.read_bytes() if path.exists() else b""
        if found:
            self.engine.deserialize(found)
        elif not path.exists():
            path.open("wb").close()
        self._saved = found

    def begins(self) -> None:
        self._before = self._state() if self._path.is_full() else None

    def check_room(self) -> None:
        """Check that there is room to commit. Raises sqlite3.OperationalError as SQLite does."""
        if self._before is None or self._before == self._state():
            return
        self.engine.execute("rollback")
        error = real.OperationalError("database or disk is full")
        error.sqlite_errorcode, error.sqlite_errorname = real.SQLITE_FULL, "SQLITE_FULL"
        raise error

    def _state(self) -> tuple[int, int]:
        return self.engine.total_changes, self.engine.execute("pragma schema_version").fetchone()[0]

    def committed(self) -> None:
        """Raises Died."""
        content = bytes(self.engine.serialize())
        if content != self._saved:
            self._path.put_whole(content)
            self._saved = content
        if self.syncs:
            self._path.sync_content()

    def is_saved_as(self, content: bytes) -> bool:
        """Return whether this is the newest committed content."""
        return self._saved == content

    def copy(self) -> real.Connection:
        found = real.connect(":memory:", isolation_level=None, check_same_thread=False)
        found.deserialize(self.engine.serialize())
        return found

    def copied(self) -> None:
        """A checkpoint: all that was committed is synced."""
        self._path.sync_content()


class Connection:
    """As ``sqlite3.Connection``, as far as production uses it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.engine = database.engine

    @property
    def in_transaction(self) -> bool:
        return self.engine.in_transaction

    def execute(self, text: str, values: Sequence[Any] = ()) -> real.Cursor:
        """Raises sqlite3.Error, Died."""
        words = text.strip().lower()
        if words == "begin":  # who reads a state of one moment has a copy of it
            self.engine = self._database.copy()
        if words.startswith("pragma synchronous="):
            self._database.syncs = words.partition("=")[2] in SYNCED
        writes = not self.engine.in_transaction and words.startswith(WRITES)
        if writes or words == "begin immediate":
            self._database.begins()
        if writes:
            self.engine.execute("begin")
        elif words == "commit":
            self._database.check_room()
        cursor = self.engine.execute(text, values)
        if writes:
            self._database.check_room()
            self.engine.execute("commit")
        if writes or words == "commit":
            self._database.committed()
        elif words.startswith("pragma wal_checkpoint") and self._database.syncs:
            self._database.copied()
        return cursor

    def executemany(self, text: str, values: Iterable[Sequence[Any]]) -> real.Cursor:
        assert self.engine.in_transaction, "many rows are written in a transaction"
        return self.engine.executemany(text, values)

    def close(self) -> None:
        """Close this connection only."""


class Sqlite(ModuleStandIn):
    """As the module ``sqlite3``."""

    def connect(self, path: "SimPath", **_: object) -> Connection:
        databases = path.databases()
        name = str(path)
        if name not in databases:
            databases[name] = Database(path)
        return Connection(cast(Database, databases[name]))
