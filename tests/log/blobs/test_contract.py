"""The contract of blob stores, for each adapter."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from stele.log.archive.container import UNFINISHED
from stele.log.blobs.folder import FolderStore, open_store
from stele.log.blobs.port import (
    Blob,
    BlobMissingError,
    BlobStore,
    StoreRefusedError,
    StoreUnavailableError,
)
from stele.log.blobs.s3 import PART_BYTES
from stele_harness.stack.ports import free_port
from tests.servers import S3Server


@pytest.fixture(params=["folder", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BlobStore:
    if request.param == "folder":
        return open_store(f"file://{tmp_path}/store")
    server: S3Server = request.getfixturevalue("s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{server.new_bucket()}/some/prefix", server.endpoint, timeout_s=60)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def put(store: BlobStore, name: str, content: bytes) -> None:
    await store.put(name, content, sha256(content))


async def test_blob_is_read_back_as_it_was_put(store: BlobStore) -> None:
    await put(store, "logs/a/x.avro", b"0123456789")
    assert await store.get("logs/a/x.avro") == b"0123456789"
    assert await store.get_range("logs/a/x.avro", 3, 6) == b"345"
    assert await store.get_range("logs/a/x.avro", 8, 100) == b"89"
    assert await store.get_range("logs/a/x.avro", 4, 4) == b""
    assert await store.stat("logs/a/x.avro") == (10, sha256(b"0123456789"))
    await put(store, "logs/a/x.avro", b"other")
    assert await store.get("logs/a/x.avro") == b"other"


async def test_multipart_file_is_put_whole(store: BlobStore, tmp_path: Path) -> None:
    content = os.urandom(2 * PART_BYTES + 17)
    (tmp_path / "large").write_bytes(content)
    await store.put("large", tmp_path / "large", sha256(content))
    assert await store.stat("large") == (len(content), sha256(content))
    assert (
        await store.get_range("large", PART_BYTES - 2, PART_BYTES + 2)
        == (content[PART_BYTES - 2 : PART_BYTES + 2])
    )


async def test_put_new_succeeds_once_for_each_name(store: BlobStore) -> None:
    assert await store.put_new("stele.json", b"one")
    assert not await store.put_new("stele.json", b"two")
    assert await store.get("stele.json") == b"one"


async def test_list_returns_blobs_sorted_by_name(store: BlobStore) -> None:
    assert list(await store.list()) == []
    for name in ("logs/b/2", "logs/a/1", "logs/ab", "stele.json"):
        await put(store, name, name.encode())
    assert [blob.name for blob in await store.list()] == [
        "logs/a/1",
        "logs/ab",
        "logs/b/2",
        "stele.json",
    ]
    assert Blob("logs/a/1", 8) in await store.list()


async def test_deleted_blob_is_missing(store: BlobStore) -> None:
    await put(store, "a/b", b"1")
    await store.delete("a/b")
    await store.delete("a/b")
    for ask in (store.get("a/b"), store.stat("a/b"), store.get_range("a/b", 0, 1)):
        with pytest.raises(BlobMissingError, match="a/b is not in"):
            await ask
    assert list(await store.list()) == []


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a b"])
async def test_invalid_blob_names_are_refused(store: BlobStore, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        await put(store, name, b"1")


async def test_unfinished_files_are_hidden_and_deleted_after_a_day(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, timeout_s=60)
    await put(store, "a/whole", b"1")
    young, old = (tmp_path / "a" / f"{name}{UNFINISHED}" for name in ("young", "old"))
    for path in (young, old):
        path.write_bytes(b"half of it")
    os.utime(old, (0, 0))
    assert [blob.name for blob in await store.list()] == ["a/whole"]
    assert young.exists()
    assert not old.exists()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "read-only"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    yield folder
    folder.chmod(stat.S_IRWXU)


async def test_error_of_an_inaccessible_folder_says_what_to_do(read_only: Path) -> None:
    file = read_only.parent / "file"
    file.write_bytes(b"")
    with pytest.raises(StoreRefusedError, match="Let this process read and write there"):
        await put(FolderStore(file, 5), "a/b", b"1")
    if os.geteuid() == 0:
        return
    with pytest.raises(StoreRefusedError, match="Let this process read and write there"):
        await put(FolderStore(read_only, 5), "a/b", b"1")


async def test_missing_bucket_is_refused(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store("s3://nobody/has/this", s3.endpoint, timeout_s=60)
    for ask in (put(store, "a", b"1"), store.get("a"), store.list(), store.delete("a")):
        with pytest.raises(StoreRefusedError, match="no such bucket"):
            await ask


async def test_unreachable_store_is_unavailable_within_its_timeout(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store("s3://bucket", f"http://127.0.0.1:{free_port()}", timeout_s=1)
    for ask in (put(store, "a", b"1"), store.put_new("a", b"1"), store.get("a"), store.list()):
        with pytest.raises(StoreUnavailableError, match=r"s3://bucket at http://127.0.0.1"):
            await ask


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("", ""),
        ("ftp://a/b", ""),
        ("s3://", ""),
        ("s3:///a", ""),
        ("s3://bucket/a b", ""),
        ("file://host/a", ""),
        ("s3://bucket/a", "127.0.0.1:9000"),
    ],
)
def test_invalid_store_urls_are_refused(url: str, endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"names no store|a prefix has|is no endpoint"):
        open_store(url, endpoint)


async def test_silent_store_is_unavailable_within_its_timeout(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = open_store("s3://bucket", endpoint, timeout_s=0.3)
        for ask in (put(store, "a", b"1"), store.get("a"), store.list()):
            async with asyncio.timeout(240):
                with pytest.raises(StoreUnavailableError):
                    await ask
