"""A store belongs to the host whose id it carries: one that was swapped, emptied or lost is noticed (I13)."""

import errno
import os
import sqlite3
from pathlib import Path
from typing import Final

from stele.agent.binding import WHAT_TO_DO, bind
from stele.agent.identity import DataDirectory
from stele.log.archive.files import sync_folder
from stele.node.commits import transaction
from stele.node.store import connect
from stele.runtime.settings import ConfigurationError

_META: Final = "create table if not exists meta (name text primary key, value text not null)"
_HOST_ID: Final = "select value from meta where name = 'host_id'"
_HAS_META: Final = "select count(*) from sqlite_master where name = 'meta'"


def bind_store(directory: DataDirectory) -> Path:
    """The directory's store, made at the first start. Raises ConfigurationError, and OSError on a full disk."""
    return bind(directory, _host_id_in, _make)


def _host_id_in(path: Path) -> str:
    """Empty when the store carries none."""
    connection = None
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        if not connection.execute(_HAS_META).fetchone()[0]:
            return ""
        found = connection.execute(_HOST_ID).fetchone()
        return "" if found is None else str(found[0])
    except sqlite3.Error as error:
        raise _unusable(path, error) from error
    finally:
        if connection is not None:
            connection.close()


def _make(path: Path, host_id: str) -> None:
    try:
        connection = connect(path)
        try:
            with transaction(connection):
                connection.execute(_META)
                connection.execute("insert into meta values ('host_id', ?)", (host_id,))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise _unusable(path, error) from error
    sync_folder(path.parent)


def _unusable(path: Path, error: sqlite3.Error) -> Exception:
    """A full disk is no fault of the directory: the next start may find room."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return ConfigurationError(f"{path} is locked by another process: end that one first")
    return ConfigurationError(f"{path} cannot be read ({error}); {WHAT_TO_DO}")
