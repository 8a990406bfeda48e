"""Data directories: missing, swapped, torn and foreign parts are detected at the start."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from stele.agent.identity import FILE, STORE_FILE, Acknowledged, DataDirectory, boot
from stele.node.binding import bind_store
from stele.node.store import connect
from stele.runtime.recent import Promised
from stele.runtime.service import locked
from stele.runtime.settings import ConfigurationError
from tests.disk import Disk


def started(folder: Path, node_id: str = "n1") -> DataDirectory:
    directory = boot(folder, node_id, "demo")
    bind_store(directory)
    return directory


def test_host_id_is_created_once_and_stored_in_both_files(tmp_path: Path) -> None:
    first, second = started(tmp_path).identity, started(tmp_path).identity
    assert first.host_id == second.host_id != started(tmp_path / "other").identity.host_id
    assert (first.boots, second.boots) == (1, 2)
    with sqlite3.connect(tmp_path / STORE_FILE) as store:
        assert store.execute("select * from meta").fetchall() == [("host_id", first.host_id)]
    store.close()


def test_data_directory_of_another_node_is_refused(tmp_path: Path) -> None:
    started(tmp_path)
    with pytest.raises(ConfigurationError, match="holds the data of node 'n1'"):
        boot(tmp_path, "n2", "demo")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda store: store.unlink(), "is missing"),
        (lambda store: store.write_bytes(b""), "is empty or belongs to no host"),
        (lambda store: store.write_bytes(b"no database at all" * 99), "cannot be read"),
    ],
)
def test_directory_with_a_lost_store_is_refused(tmp_path: Path, harm: object, said: str) -> None:
    started(tmp_path)
    harm(tmp_path / STORE_FILE)  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match=f"{said}.*put its own data directory back"):
        started(tmp_path)


def test_store_of_another_host_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    started(one)
    started(two, "n2")
    shutil.copy(two / STORE_FILE, one / STORE_FILE)
    with pytest.raises(
        ConfigurationError, match=r"belongs to host .* put its own data directory back"
    ):
        started(one)


def test_store_without_identity_file_is_refused(tmp_path: Path) -> None:
    started(tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(ConfigurationError, match=r"holds store.sqlite without node.json: put back"):
        started(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 40])
def test_torn_identity_file_is_refused_with_a_hint(tmp_path: Path, keep: int) -> None:
    started(tmp_path)
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(
        ConfigurationError, match=r"node.json is damaged .* give the node an empty folder"
    ):
        started(tmp_path)


def test_crash_during_a_write_keeps_the_previous_identity(tmp_path: Path) -> None:
    directory = started(tmp_path)
    (tmp_path / f"{FILE}.new").write_bytes(b'{"node_id": "n1", "clu')
    assert started(tmp_path).identity.host_id == directory.identity.host_id


@pytest.mark.parametrize("made", ["nothing", "an empty file", "a table without a host", "all"])
def test_next_start_completes_a_crashed_first_start(tmp_path: Path, made: str) -> None:
    directory = boot(tmp_path, "n1", "demo")
    path = tmp_path / STORE_FILE
    if made == "an empty file":
        path.touch()
    elif made == "a table without a host":
        connect(path).close()
    elif made == "all":
        bind_store(directory)
        directory.save(has_store=False)
    assert started(tmp_path).identity.has_store


def test_identity_and_its_folder_are_synced_before_save_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = started(tmp_path)
    steps: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: steps.append(f"sync {directory.identity.boots}"))
    replace = Path.replace

    def noted(self: Path, target: Path) -> Path:
        steps.append("replace")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    directory.save(boots=9)
    assert steps == ["sync 1", "replace", "sync 1", "replace"], "the last one renames the spare"
    assert directory.identity.boots == 9
    steps.clear()
    directory.save(boots=9)
    assert steps == [], "what is known already is not written again"


def test_acknowledged_state_survives_a_restart(tmp_path: Path) -> None:
    noted = Acknowledged(epoch=7, state_id="ab" * 16, version=5, fence_version=4)
    started(tmp_path).save(acknowledged=noted, cluster_id="c1", log_id="cd" * 16)
    again = started(tmp_path)
    assert (again.identity.acknowledged, again.identity.cluster_id) == (noted, "c1")
    assert again.promised() == Promised("cd" * 16, 7, "ab" * 16)
    assert started(tmp_path / "new").promised() is None


def _hold(folder: Path, held: object, end: object) -> None:
    with locked(folder):
        held.set()  # type: ignore[attr-defined]
        end.wait(150)  # type: ignore[attr-defined]


def test_two_processes_cannot_use_one_directory(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, end = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, held, end))
    process.start()
    try:
        assert held.wait(150), "the other process did not take the lock within 150 s"
        with pytest.raises(ConfigurationError, match="in use by another process"):
            with locked(tmp_path):
                pass
    finally:
        end.set()
        process.join(20)
    with locked(tmp_path):
        assert process.exitcode == 0


def test_start_with_a_locked_store_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.node.store.LOCK_TIMEOUT_S", 0.05)
    directory = boot(tmp_path, "n1", "demo")
    other = sqlite3.connect(tmp_path / STORE_FILE, isolation_level=None)
    other.execute("begin exclusive")
    with pytest.raises(ConfigurationError, match="locked by another process: end that one first"):
        bind_store(directory)
    other.execute("rollback")
    other.close()
    bind_store(directory)


def test_full_disk_at_the_first_start_is_not_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor treats configuration errors as final. The next start with free space creates the store."""

    def without_room(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("pragma max_page_count = 1")  # SQLite's own "database or disk is full"
        return connection

    directory = boot(tmp_path, "n1", "demo")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as full:
        patch.setattr("stele.node.binding.connect", without_room)
        bind_store(directory)
    assert full.value.filename == str(tmp_path / STORE_FILE)
    assert started(tmp_path).identity.has_store


@pytest.mark.parametrize("left_bytes", [0, 8192])
def test_full_disk_at_a_later_start_is_not_a_damaged_directory(disk: Disk, left_bytes: int) -> None:
    """SQLite calls it an I/O error. The advice to replace the node would lose a good replica."""
    started(disk.path / "data")
    disk.fill(left_bytes)
    with pytest.raises(OSError, match="No space left") as full:
        started(disk.path / "data")
    assert full.value.errno == errno.ENOSPC
    disk.empty()
    assert started(disk.path / "data").identity.has_store
