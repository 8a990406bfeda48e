"""Blobs as files in a folder, for example a mounted one.

Hashes are not stored beside the files. They are computed from the files on request.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final, TypeVar
from urllib.parse import urlsplit

from stele.log.archive.container import UNFINISHED, sync_folder
from stele.log.blobs.port import (
    NAME,
    Blob,
    BlobMissingError,
    BlobStore,
    Stat,
    StoreRefusedError,
    StoreUnavailableError,
    checked,
)

T = TypeVar("T")

LEFT_S: Final = 86_400.0
"""Age in seconds from which an unfinished file counts as left by a crash."""
PIECE_BYTES: Final = 1 << 20
_PERMANENT: Final = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOSPC}
_HINTS: Final = {errno.ENOSPC: "Make room there."}


class FolderStore:
    """Blobs of one folder, which is created with the first blob."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder = folder
        self._timeout_s = timeout_s

    @property
    def url(self) -> str:
        return str(self._folder)

    async def put(self, name: str, content: bytes | Path, sha256: str) -> None:
        path = self._path(name)
        await self._within(name, lambda: _write(path, content, new=False))

    async def put_new(self, name: str, content: bytes) -> bool:
        path = self._path(name)
        return await self._within(name, lambda: _write(path, content, new=True))

    async def get(self, name: str) -> bytes:
        return await self._within(name, self._path(name).read_bytes)

    async def get_range(self, name: str, begin: int, end: int) -> bytes:
        path = self._path(name)
        return await self._within(name, lambda: _read(path, begin, end))

    async def stat(self, name: str) -> Stat:
        path = self._path(name)
        return await self._within(name, lambda: _stat(path))

    async def list(self) -> Sequence[Blob]:
        return await self._within("", lambda: _list(self._folder))

    async def delete(self, name: str) -> None:
        path = self._path(name)
        await self._within(name, lambda: path.unlink(missing_ok=True))

    def _path(self, name: str) -> Path:
        return self._folder / checked(name)

    async def _within(self, name: str, call: Callable[[], T]) -> T:
        """Run a call in a thread with a time limit, and translate its errors.

        A thread that is blocked by the disk is abandoned after the time limit.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.to_thread(call)
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"{self.url} did not answer within {self._timeout_s:g} s."
            ) from error
        except FileNotFoundError as error:
            raise BlobMissingError(name, self.url) from error
        except OSError as error:
            text = f"{self.url}: {error}."
            if error.errno in _PERMANENT:
                hint = _HINTS.get(error.errno or 0, "Let this process read and write there.")
                raise StoreRefusedError(f"{text} {hint}") from error
            raise StoreUnavailableError(text) from error


def _write(path: Path, content: bytes | Path, *, new: bool) -> bool:
    """Write a file under a unique name first, because others may put the same blob."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
    try:
        with unfinished.open("wb") as file:
            _fill(file, content)
            file.flush()
            os.fsync(file.fileno())
        # The content is synced before it gets its name, so a power failure leaves a whole file or
        # none. A hard link fails if the name exists, a rename would replace it.
        if new:
            try:
                path.hardlink_to(unfinished)
            except FileExistsError:
                return False
        else:
            unfinished.replace(path)
        sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)
    return True


def _fill(file: IO[bytes], content: bytes | Path) -> None:
    if isinstance(content, bytes):
        file.write(content)
        return
    with content.open("rb") as source:
        shutil.copyfileobj(source, file, PIECE_BYTES)


def _read(path: Path, begin: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)


def _stat(path: Path) -> Stat:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return Stat(file.tell(), found)


def _list(folder: Path) -> list[Blob]:
    found, now_s = list[Blob](), time.time()
    for path in sorted(folder.rglob("*")):
        try:
            about = path.stat()
            if path.is_dir():
                continue
            if not path.name.endswith(UNFINISHED):
                found.append(Blob(path.relative_to(folder).as_posix(), about.st_size))
            elif now_s - about.st_mtime > LEFT_S:
                path.unlink(missing_ok=True)
        except FileNotFoundError:  # another process deleted or renamed it
            continue
    return found


# Open a blob store by its URL.


TIMEOUT_S: Final = 30.0
FORMS: Final = "Write s3://BUCKET/PREFIX, file:///PATH or a path."


def open_store(url: str, endpoint: str = "", timeout_s: float = TIMEOUT_S) -> BlobStore:
    """Return the store of ``s3://bucket/prefix``, ``file:///path`` or a path.

    This sends no request to the store. ``endpoint`` applies to S3 only. Raises ValueError with the
    correct form of the URL.
    """
    scheme, place, path, *_ = urlsplit(url)
    if not scheme and url:
        return FolderStore(Path(url), timeout_s)
    if scheme == "file" and place in ("", "localhost") and path.startswith("/"):
        return FolderStore(Path(path), timeout_s)
    if scheme == "s3" and place:
        prefix = path.strip("/")
        if prefix and NAME.fullmatch(prefix) is None:
            raise ValueError(f"'{url}': a prefix has letters, digits and . _ - between slashes.")
        if endpoint and urlsplit(endpoint).scheme not in ("http", "https"):
            raise ValueError(f"'{endpoint}' is no endpoint. Write http(s)://HOST:PORT.")
        from stele.log.blobs.s3 import S3Store  # noqa: PLC0415  (15 MB that few processes need)

        return S3Store(place, prefix, endpoint, timeout_s)
    raise ValueError(f"'{url}' names no store. {FORMS}")
