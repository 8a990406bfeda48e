"""``stele backup``, ``stele backup verify`` and ``stele restore``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from stele.log.archive.archive import Archive
from stele.log.archive_store.backup import back_up
from stele.log.archive_store.source import LocalSource
from stele.log.blobs.folder import FolderStore
from stele_harness.stack.ports import free_port
from tests.cli.conftest import Stele
from tests.log.archive_store.made import Made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "archive")


@pytest.fixture
def copy(tmp_path: Path, made: Made) -> Path:
    """A backup in a folder."""
    folder = tmp_path / "backup"
    source = LocalSource(made.archive, lambda: made.about)
    asyncio.run(back_up(FolderStore(folder, 5), source, made_ms=1, made_from="here"))
    return folder


def test_backup_is_verified_and_restored(stele: Stele, copy: Path, tmp_path: Path) -> None:
    verified = stele.ok("backup", "verify", str(copy))
    assert "epochs 1 to 80, 80 of them folded; 1 snapshot compared" in verified.out
    assert "nothing is wrong" in verified.out
    restored = stele.ok("restore", f"file://{copy}", "--into", str(tmp_path / "into"))
    assert "epochs 1 to 80, newest snapshot of epoch 60" in restored.out
    assert "It is the metadata" in restored.out
    assert Archive(tmp_path / "into").segments.spans() == [(1, 80)]
    again = stele.exits(2, "restore", str(copy), "--into", str(tmp_path / "into"))
    assert "is not empty. Name a folder that does not exist." in again.err


def test_json_output_has_the_same_values(stele: Stele, copy: Path, tmp_path: Path) -> None:
    verified = msgspec.json.decode(stele("backup", "verify", str(copy), "--json").out)
    restored = msgspec.json.decode(
        stele("restore", str(copy), "--into", str(tmp_path / "into"), "--json").out
    )
    assert (verified["first_epoch"], verified["last_epoch"], verified["flaws"]) == (1, 80, [])
    assert restored["state_id"] == verified["state_id"]


def test_verify_names_a_damaged_file_and_restore_fails(
    stele: Stele, copy: Path, tmp_path: Path
) -> None:
    path = next(copy.rglob("*-decided.avro"))
    path.write_bytes(path.read_bytes()[:-5])
    verified = stele.exits(1, "backup", "verify", str(copy))
    assert path.name in verified.out
    assert "wrong: 1" in verified.out
    assert "--check" in verified.out
    restored = stele.exits(1, "restore", str(copy), "--into", str(tmp_path / "into"))
    assert "`stele backup verify` lists all errors" in restored.err
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["backup", "x"], 2, "No address of catch-up is known. Give --catch-up"),
        (["backup", "create", "x"], 2, "`stele backup TARGET`"),
        (["backup", "create"], 2, "no command 'create'. Write `stele backup TARGET`"),
        (["backup", "restore"], 2, "Write `stele restore TARGET --into FOLDER`"),
        (["backup", "ftp://x", "--catch-up", "http://127.0.0.1:1"], 2, "names no store"),
        (["backup", "verify", "nowhere"], 1, "holds no archive of Stele"),
        (["backup", "verify", "s3://b/x", "--endpoint", "b:1"], 2, "is no endpoint"),
        (["restore", "nowhere", "--into", "there"], 1, "holds no archive of Stele"),
        (["restore", "nowhere"], 2, "--into"),
    ],
)
def test_impossible_requests_fail_with_one_line(
    stele: Stele,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    exit_code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STELE_CATCH_UP_URLS", raising=False)
    ran = stele(*arguments)
    assert ran.exit_code == exit_code
    assert said in ran.err
    assert ran.out == ""
    assert list(tmp_path.iterdir()) == []


def test_backup_fails_if_no_replica_answers(stele: Stele, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ran = stele.exits(3, "backup", str(tmp_path / "backup"), "--catch-up", url)
    assert "Is catch-up running?" in ran.err
    assert ran.out == ""
