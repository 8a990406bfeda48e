"""A full simulated disk refuses the same writes as a real one, and keeps the earlier content."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import cast

import pytest

from stele.agent.identity import Acknowledged, boot
from stele.node.commits import transaction
from stele_simulator.processes.disk import Disk
from stele_simulator.processes.sqlite import Sqlite

SQLITE = Sqlite(sqlite3, lambda: None)
CREATE = "create table cells (key text primary key, value blob)"
INSERT = "insert into cells values (?, ?)"
KEYS = "select key from cells order by key"


def half_of_them() -> float:
    return 0.5


def test_full_disk_writes_half_of_the_bytes_but_allows_renames() -> None:
    disk = Disk(half_of_them)
    folder = disk.plug().path("/data")
    disk.full = True
    with (folder / "a.new").open("wb") as file, pytest.raises(OSError) as full:
        file.write(b"12345678")
    assert full.value.errno == errno.ENOSPC
    assert (folder / "a.new").read_bytes() == b"1234"
    (folder / "a.new").replace(folder / "a")
    (folder / "a").unlink()
    disk.full = False
    with (folder / "a").open("wb") as file:
        file.write(b"12345678")
    assert (folder / "a").read_bytes() == b"12345678"


def test_node_keeps_its_promises_on_a_full_disk() -> None:
    """Otherwise it could acknowledge no version, and operations that give it room would wait for it."""
    disk = Disk(half_of_them)
    folder = cast(Path, disk.plug().path("/data"))
    boot(folder, "n1", "demo")
    directory = boot(folder, "n1", "demo")
    disk.full = True
    for epoch in (9, 10, 100_000):
        told = Acknowledged(epoch, state_id=f"{epoch:032x}", version=epoch, fence_version=epoch)
        directory.save(acknowledged=told)
    disk.lose_power()
    disk.full = False
    assert boot(folder, "n1", "demo").identity.acknowledged == told


def refusal(connection: sqlite3.Connection) -> tuple[type[sqlite3.Error], int, str, bool]:
    """Return the error of a transaction without room, and whether it is still open."""
    with pytest.raises(sqlite3.Error) as full, transaction(connection):
        connection.execute(INSERT, ("large", bytes(1_000_000)))
    error = full.value
    return type(error), error.sqlite_errorcode, str(error), connection.in_transaction


def test_overwrite_needs_no_room() -> None:
    disk = Disk(half_of_them)
    path = disk.plug().path("/data/a")
    with path.open("wb") as file:
        file.write(b"12345678")
    disk.full = True
    with path.open("r+b") as file:
        file.seek(4)
        file.write(b"abcd")
        with pytest.raises(OSError):
            file.write(b"e")
    assert path.read_bytes() == b"1234abcd"


def test_sqlite_on_a_full_disk_fails_like_on_a_real_disk(
    tmp_path: Path,
) -> None:
    real = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
    disk = Disk(half_of_them)
    path = disk.plug().path("/data/store.sqlite")
    simulated = cast(sqlite3.Connection, SQLITE.connect(path))
    for connection in (real, simulated):
        connection.execute(CREATE)
        connection.execute(INSERT, ("before", b""))
    real.execute("pragma max_page_count = 1")
    disk.full = True
    assert refusal(simulated) == refusal(real)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        simulated.execute(INSERT, ("large", b""))
    with transaction(simulated):
        assert simulated.execute(KEYS).fetchall() == [("before",)]
    disk.full = False
    simulated.execute(INSERT, ("later", b""))
    assert simulated.execute(KEYS).fetchall() == [("before",), ("later",)]
    later = SQLITE.connect(disk.plug().path("/data/store.sqlite"))
    assert later.execute(KEYS).fetchall() == [("before",), ("later",)]
    real.close()
