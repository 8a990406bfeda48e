"""A store belongs to the host whose id it carries: one that was swapped, emptied or lost is noticed (I13)."""

import sqlite3
from pathlib import Path
from typing import Final

from stele.node.commits import transaction
from stele.node.identity import DataDirectory, sync_folder
from stele.node.store import connect
from stele.runtime.settings import ConfigurationError

_META: Final = "create table if not exists meta (name text primary key, value text not null)"
_HOST_ID: Final = "select value from meta where name = 'host_id'"
_HAS_META: Final = "select count(*) from sqlite_master where name = 'meta'"
_WHAT_TO_DO: Final = (
    "this is not the replica that the cluster knows: restore its data directory from a backup, or give the"
    " node an empty folder and a new name, and remove or replace the old one"
)


def bind_store(directory: DataDirectory) -> Path:
    """The directory's store, made at the first start. Raises ConfigurationError.

    A crash at any moment of the first start is mended by the next one: the store gets its host id in the
    transaction that makes it, and node.json says that there is a store only after that.
    """
    path, identity = directory.store_path, directory.identity
    if identity.has_store:
        if not path.exists():
            raise ConfigurationError(f"{path} is missing; {_WHAT_TO_DO}")
        _check(path, _host_id_in(path), identity.host_id)
        return path
    found = _host_id_in(path) if path.exists() else ""
    if found:
        _check(path, found, identity.host_id)
    else:
        _make(path, identity.host_id)
    directory.save(has_store=True)
    return path


def _check(path: Path, found: str, host_id: str) -> None:
    if found != host_id:
        belongs = f"belongs to host {found}" if found else "is empty or belongs to no host"
        raise ConfigurationError(f"{path} {belongs}, node.json to host {host_id}; {_WHAT_TO_DO}")


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


def _unusable(path: Path, error: sqlite3.Error) -> ConfigurationError:
    if getattr(error, "sqlite_errorcode", 0) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return ConfigurationError(f"{path} is locked by another process: end that one first")
    return ConfigurationError(f"{path} cannot be read ({error}); {_WHAT_TO_DO}")
