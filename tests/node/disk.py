"""A disk that loses unsynced writes: a SQLite VFS that records the writes and syncs of each file.

It is registered with the very library that Python's ``sqlite3`` uses, so the production store runs over it
unchanged. ``remains`` returns the files after a power failure: all synced content, and of the later
writes none, or any that the test picks.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

SQLITE_OK = 0
SQLITE_IOERR_FSYNC = 10 | (4 << 8)
NAME = b"forgetful"

_File = ctypes.c_void_p
_CLOSE = ctypes.CFUNCTYPE(ctypes.c_int, _File)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _File, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _File, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _File, ctypes.c_int)
_OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, _File, ctypes.c_int, ctypes.c_void_p
)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


class _Methods(ctypes.Structure):
    """``sqlite3_io_methods``, version 3."""

    _fields_: ClassVar[list[Any]] = [
        ("version", ctypes.c_int),
        ("close", _CLOSE),
        ("read", ctypes.c_void_p),
        ("write", _WRITE),
        ("truncate", _TRUNCATE),
        ("sync", _SYNC),
        ("others", ctypes.c_void_p * 13),
    ]


class _Vfs(ctypes.Structure):
    """``sqlite3_vfs``, version 3."""

    _fields_: ClassVar[list[Any]] = [
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("max_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("app_data", ctypes.c_void_p),
        ("open", _OPEN),
        ("delete", _DELETE),
        ("others", ctypes.c_void_p * 14),
    ]


class Unsupported(Exception):
    """The SQLite library of this Python cannot be used; the message has the reason."""


class Change:
    """A write, or a truncation (``data`` is None) to ``offset``."""

    def __init__(self, offset: int, data: bytes | None) -> None:
        self.offset, self.data = offset, data

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.offset :]
            return
        content.extend(bytes(max(0, self.offset - len(content))))
        content[self.offset : self.offset + len(self.data)] = self.data


class _Content:
    def __init__(self) -> None:
        self.synced = bytearray()
        self.unsynced: list[Change] = []


class ForgetfulDisk:
    """The files of one folder that are opened while it is ``inserted``. ``syncs`` counts their syncs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.syncs = 0
        self.on_sync: Callable[[str], None] = lambda name: None
        self.failing = False
        """Let the next syncs fail, as a dying disk does."""
        self._files: dict[str, _Content] = {}
        self._lock = threading.Lock()

    def holds(self, name: str) -> bool:
        return bool(name) and Path(name).parent == self._folder

    def wrote(self, name: str, offset: int, data: bytes | None) -> None:
        with self._lock:
            self._files[name].unsynced.append(Change(offset, data))

    def synced(self, name: str) -> bool:
        self.on_sync(name)
        if self.failing:
            return False
        with self._lock:
            self.syncs += 1
            content = self._files[name]
            for change in content.unsynced:
                change.apply(content.synced)
            content.unsynced = []
        return True

    def opened(self, name: str) -> None:
        with self._lock:
            self._files.setdefault(name, _Content())

    def deleted(self, name: str) -> None:
        with self._lock:
            self._files.pop(name, None)

    def remains(
        self, folder: Path, survives: Callable[[Change], bool] = lambda change: False
    ) -> Path:
        """Create the files in ``folder`` as a power failure at this moment leaves them."""
        folder.mkdir()
        with self._lock:
            for name, content in self._files.items():
                left = bytearray(content.synced)
                for change in content.unsynced:
                    if survives(change):
                        change.apply(left)
                (folder / Path(name).name).write_bytes(left)
        return folder


@contextmanager
def inserted(disk: ForgetfulDisk) -> Iterator[None]:
    """Map files opened in the disk's folder inside the block to this disk. Raises Unsupported."""
    library = _library()
    original = library.sqlite3_vfs_find(None)
    vfs = _Vfs.from_buffer_copy(original.contents)
    vfs.name = NAME
    kept: list[Any] = [vfs]  # what SQLite points to must stay where it is
    names: dict[int, str] = {}

    def open_(own: int, path: int, file: int, flags: int, out_flags: int) -> int:
        code: int = original.contents.open(own, path, file, flags, out_flags)
        name = ctypes.string_at(path).decode() if path else ""  # a file without one is temporary
        if code == SQLITE_OK and disk.holds(name):
            methods_of = ctypes.cast(file, ctypes.POINTER(ctypes.POINTER(_Methods)))
            methods = _over(methods_of[0].contents, names, disk)
            kept.append(methods)
            methods_of[0] = ctypes.pointer(methods)
            names[file] = name
            disk.opened(name)
        return code

    def delete(own: int, path: int, sync_folder: int) -> int:
        disk.deleted(ctypes.string_at(path).decode())
        code: int = original.contents.delete(own, path, sync_folder)
        return code

    callbacks = (_OPEN(open_), _DELETE(delete))
    vfs.open, vfs.delete = callbacks
    kept += callbacks
    assert library.sqlite3_vfs_register(ctypes.byref(vfs), 1) == SQLITE_OK
    _KEPT.append(kept)
    try:
        yield
    finally:
        assert library.sqlite3_vfs_register(original, 1) == SQLITE_OK
        assert library.sqlite3_vfs_unregister(ctypes.byref(vfs)) == SQLITE_OK


_KEPT: list[list[Any]] = []
"""Connections that outlive the block still call objects created in it."""


def _over(original: _Methods, names: dict[int, str], disk: ForgetfulDisk) -> _Methods:
    """Wrap the methods of a file so that its writes, truncations and syncs are recorded."""
    methods = _Methods.from_buffer_copy(original)
    real_write, real_truncate, real_sync = original.write, original.truncate, original.sync

    def write(file: int, data: int, size: int, offset: int) -> int:
        code: int = real_write(file, data, size, offset)
        if code == SQLITE_OK:
            disk.wrote(names[file], offset, ctypes.string_at(data, size))
        return code

    def truncate(file: int, size: int) -> int:
        code: int = real_truncate(file, size)
        if code == SQLITE_OK:
            disk.wrote(names[file], size, None)
        return code

    def sync(file: int, flags: int) -> int:
        code: int = real_sync(file, flags)
        if code == SQLITE_OK and not disk.synced(names[file]):
            return SQLITE_IOERR_FSYNC
        return code

    methods.write, methods.truncate, methods.sync = _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)
    return methods


def _library() -> Any:
    import _sqlite3

    try:
        library = ctypes.CDLL(_sqlite3.__file__)  # its symbols, or those of what it is linked to
        version = library.sqlite3_libversion
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    except (OSError, AttributeError) as error:
        raise Unsupported(f"SQLite's functions cannot be called directly: {error}") from error
    version.restype = ctypes.c_char_p
    if version().decode() != sqlite3.sqlite_version:
        raise Unsupported("another SQLite was found than the one that Python uses")
    return library
