"""Binding of the store to the host id that it carries.

A swapped, emptied or lost store is detected (I13).
"""

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from stele.agent.identity import WHAT_TO_DO, DataDirectory, bind
from stele.agent.stores import parted
from stele.log.archive.container import sync_folder
from stele.node.commits import transaction
from stele.node.store import connect
from stele.runtime.settings import ConfigurationError

OPEN_BYTES: Final = 256 * 1024
"""Free space that SQLite needs at most to open a store: its shared memory and two pages."""

_META: Final = "create table if not exists meta (name text primary key, value text not null)"
_HOST_ID: Final = "select value from meta where name = 'host_id'"
_PARTITIONS: Final = """
    with recursive found(name) as (
        select min(keyspace) from cells
        union all
        select (select min(keyspace) from cells where keyspace > name) from found where name is not null
    )
    select name from found where name is not null
"""
"""Takes one step of the index for each name. ``distinct`` would read all rows."""
_HAS_META: Final = "select count(*) from sqlite_master where name = 'meta'"


def bind_store(directory: DataDirectory) -> Path:
    """Return the path of the directory's store, which the first start creates.

    Raises ConfigurationError, and OSError on a full disk.
    """
    return bind(directory, _host_id_in, _make, _data_ids_in)


def _host_id_in(path: Path) -> str:
    """Return the host id that the store carries; empty if it carries none."""
    with _opened(path, _connected) as store:
        if not store.execute(_HAS_META).fetchone()[0]:
            return ""
        found = store.execute(_HOST_ID).fetchone()
        return "" if found is None else str(found[0])


def _data_ids_in(path: Path) -> set[str]:
    """Return the ids of all data with rows in the store. Raises ConfigurationError, OSError."""
    with _opened(path, _connected) as store:
        return {parted(name)[0] for (name,) in store.execute(_PARTITIONS)}


def _make(path: Path, host_id: str) -> None:
    """Create a store that carries the host id, and sync it. Raises ConfigurationError, OSError."""
    with _opened(path, connect) as store, transaction(store):
        store.execute(_META)
        store.execute("insert into meta values ('host_id', ?)", (host_id,))
    # The file's entry in its folder must survive a crash too, before node.json records the data.
    sync_folder(path.parent)


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


@contextmanager
def _opened(
    path: Path, connect: Callable[[Path], sqlite3.Connection]
) -> Iterator[sqlite3.Connection]:
    """Open the store inside the block. Errors of SQLite are raised as ``_unusable`` ones."""
    try:
        with closing(connect(path)) as store:
            yield store
    except sqlite3.Error as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: sqlite3.Error) -> Exception:
    """Return the error to raise for an error of SQLite.

    A full disk is no fault of the directory, since the next start may find space. SQLite reports a
    failed extension of its shared memory as an I/O error.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
    is_io_error = code == sqlite3.SQLITE_IOERR
    if code == sqlite3.SQLITE_FULL or (
        is_io_error and shutil.disk_usage(path.parent).free < OPEN_BYTES
    ):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if is_io_error:
        return OSError(errno.EIO, f"the disk failed ({error}): check it", str(path))
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return ConfigurationError(f"{path} is locked by another process: end that one first")
    return ConfigurationError(f"{path} cannot be read ({error}); {WHAT_TO_DO}")
