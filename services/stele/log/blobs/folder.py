"""Blobs as files of a folder, such as one that is mounted from elsewhere.

Hashes are not written beside the files: they are taken from the files whenever somebody asks.
"""

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

from stele.log.archive.files import UNFINISHED, sync_folder
from stele.log.blobs.port import (
    Blob,
    BlobMissingError,
    Stat,
    StoreRefusedError,
    StoreUnavailableError,
    checked,
)

T = TypeVar("T")

LEFT_S: Final = 86_400.0
"""What somebody began to write so long ago was left by a crash."""
PIECE_BYTES: Final = 1 << 20
_PERMANENT: Final = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOSPC}
_HINTS: Final = {errno.ENOSPC: "Make room there."}


class FolderStore:
    """The folder is made when the first blob is put."""

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

    async def list(self, folder: str = "") -> Sequence[Blob]:
        top = self._path(folder) if folder else self._folder
        return await self._within(folder, lambda: _list(self._folder, top))

    async def delete(self, name: str) -> None:
        path = self._path(name)
        await self._within(name, lambda: path.unlink(missing_ok=True))

    def _path(self, name: str) -> Path:
        return self._folder / checked(name)

    async def _within(self, name: str, call: Callable[[], T]) -> T:
        """In a thread. One that the disk holds on to is left behind when its time is over."""
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
    """Under a name of its own first: others may be putting the same blob."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
    try:
        with unfinished.open("wb") as file:
            _fill(file, content)
            file.flush()
            os.fsync(file.fileno())
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


def _list(folder: Path, top: Path) -> list[Blob]:
    found, now_s = list[Blob](), time.time()
    for path in sorted(top.rglob("*")):
        try:
            about = path.stat()
            if path.is_dir():
                continue
            if not path.name.endswith(UNFINISHED):
                found.append(Blob(path.relative_to(folder).as_posix(), about.st_size))
            elif now_s - about.st_mtime > LEFT_S:
                path.unlink(missing_ok=True)
        except FileNotFoundError:  # somebody was faster
            continue
    return found
