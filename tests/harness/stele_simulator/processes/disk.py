"""A simulated disk: files and folders of one machine, and their state after a power failure.

``SimPath`` has the part of ``pathlib.Path`` that production uses. Later lives of the process see everything
written. After a power failure only synced data is there, and perhaps some of the rest.
"""

import errno
import fnmatch
import io
import os
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple, Self

from stele_simulator.processes.event_loop import Died

READ: Final = "rb"


class Stat(NamedTuple):
    st_size: int


class Content:
    """The content of a file, and its synced part."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.is_whole = False
        """It is written as a whole: a power failure leaves what was synced, or all of it, and no part."""


class Disk:
    """The files of a machine by their whole names. ``trap`` counts down to the operation in which the process
    dies; ``on_trap`` is called then.
    """

    def __init__(self, luck: Callable[[], float]) -> None:
        self.files: dict[str, Content] = {}
        self.on_platter: dict[str, Content] = {}
        self.trap = -1
        self.on_trap: Callable[[], None] = lambda: None
        self.full = False
        """No file grows; names come, change and go all the same."""
        self.flipped = set[bytes]()
        """Contents that are not what was written."""
        self._luck = luck

    def plug(self) -> "Plug":
        """For one life of a process."""
        return Plug(self)

    def lose_power(self) -> None:
        """Names and bytes that were not synced may be there or not."""
        names = {
            name: content
            for name, content in self.files.items()
            if self.on_platter.get(name) is content or self._luck() < 0.5
        }
        for name, content in self.on_platter.items():
            if name not in self.files and self._luck() < 0.5:  # it was deleted or renamed
                names.setdefault(name, content)
        for content in names.values():
            rest = bytes(content.data[len(content.synced) :])
            is_appended = content.data.startswith(content.synced) and not content.is_whole
            kept = rest[: int(len(rest) * self._luck())] if is_appended else b""
            content.data = bytearray(content.synced + kept)
        self.files, self.on_platter = names, dict(names)

    def wipe(self) -> None:
        self.files, self.on_platter = {}, {}

    def copy(self) -> dict[str, bytes]:
        """Return a copy of the disk, to be restored later."""
        return {name: bytes(content.data) for name, content in self.files.items()}

    def put_back(self, files: dict[str, bytes]) -> None:
        self.wipe()
        for name, data in files.items():
            content = self.files[name] = Content()
            content.data, content.synced = bytearray(data), data
        self.on_platter = dict(self.files)

    def flip(self, name: str, place: float) -> None:
        """One bit of a file is another one."""
        data = self.files[name].data
        if data:
            data[int(len(data) * place)] ^= 1 << int(8 * self._luck())
            self.files[name].synced = bytes(data)
            self.flipped.add(bytes(data))

    def operation(self) -> None:
        """Raises Died where the trap is."""
        if self.trap >= 0:
            self.trap -= 1
            if self.trap < 0:
                self.on_trap()
                raise Died


class Plug:
    """A process's access to its disk, which ends with it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.is_out = False
        self.databases: dict[str, object] = {}
        """By the names of their files."""

    @property
    def disk(self) -> Disk:
        if self.is_out:
            raise Died
        return self._disk

    def path(self, name: str) -> "SimPath":
        return SimPath(self, PurePosixPath(name))


class SimPath:
    """A path on a simulated disk."""

    def __init__(self, plug: Plug, pure: PurePosixPath) -> None:
        self._plug = plug
        self._pure = pure

    def __truediv__(self, part: str) -> "SimPath":
        return SimPath(self._plug, self._pure / part)

    def __str__(self) -> str:
        return str(self._pure)

    __repr__ = __str__

    def __fspath__(self) -> str:
        return str(self._pure)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimPath) and self._pure == other._pure

    def __hash__(self) -> int:
        return hash(self._pure)

    def __lt__(self, other: "SimPath") -> bool:
        return self._pure < other._pure

    @property
    def name(self) -> str:
        return self._pure.name

    @property
    def stem(self) -> str:
        return self._pure.stem

    @property
    def parent(self) -> "SimPath":
        return SimPath(self._plug, self._pure.parent)

    @property
    def parents(self) -> list["SimPath"]:
        return [SimPath(self._plug, pure) for pure in self._pure.parents]

    def with_name(self, name: str) -> "SimPath":
        return SimPath(self._plug, self._pure.with_name(name))

    def exists(self) -> bool:
        return str(self) in self._plug.disk.files

    def stat(self) -> Stat:
        return Stat(len(self._content().data))

    def mkdir(self, **_: bool) -> None:
        """Folders are there as soon as they have files."""

    def rmdir(self) -> None:
        """Folders are gone with their files."""

    def iterdir(self) -> Iterator["SimPath"]:
        return self.glob("*")

    def glob(self, pattern: str) -> Iterator["SimPath"]:
        """Files and folders."""
        before, depth = f"{self}/", pattern.count("/") + 1
        found = {
            "/".join(name[len(before) :].split("/")[:depth])
            for name in self._plug.disk.files
            if name.startswith(before)
        }
        wanted = pattern.split("/")
        return iter([self / name for name in sorted(found) if _is_like(name, wanted)])

    def remove_all(self) -> None:
        """The folder and all that is in it."""
        before = f"{self}/"
        for name in [each for each in self._plug.disk.files if each.startswith(before)]:
            self._plug.disk.operation()
            del self._plug.disk.files[name]

    def open(self, mode: str = READ) -> "SimFile":
        if mode == READ:
            return SimFile(self._plug, self._content(), writes=False)
        self._plug.disk.operation()
        if mode == "r+b":
            return SimFile(self._plug, self._content(), writes=True)
        content = self._plug.disk.files[str(self)] = Content()
        return SimFile(self._plug, content, writes=True)

    def read_bytes(self) -> bytes:
        return bytes(self._content().data)

    def replace(self, target: "SimPath") -> "SimPath":
        content = self._content()
        self._plug.disk.operation()
        del self._plug.disk.files[str(self)]
        self._plug.disk.files[str(target)] = content
        return target

    def hardlink_to(self, target: "SimPath") -> None:
        content = target._content()
        self._plug.disk.operation()
        self._plug.disk.files[str(self)] = content

    def unlink(self, *, missing_ok: bool = False) -> None:
        if not self.exists():
            if missing_ok:
                return
            raise FileNotFoundError(str(self))
        self._plug.disk.operation()
        del self._plug.disk.files[str(self)]

    def sync(self) -> None:
        """The names in this folder are on the platter."""
        disk, before = self._plug.disk, f"{self}/"
        disk.operation()
        for name in [n for n in disk.on_platter if n.startswith(before) and n not in disk.files]:
            del disk.on_platter[name]
        for name, content in disk.files.items():
            if name.startswith(before):
                disk.on_platter[name] = content

    def is_full(self) -> bool:
        """Its disk is. Raises Died."""
        return self._plug.disk.full

    def databases(self) -> dict[str, object]:
        """Databases of this life of the process."""
        return self._plug.databases

    def put_whole(self, data: bytes) -> None:
        """All of it is written, or nothing of it. Raises Died."""
        self._plug.disk.operation()
        content = self._content()
        content.is_whole, content.data = True, bytearray(data)

    def sync_content(self) -> None:
        """Raises Died."""
        content = self._content()
        if content.synced != content.data:
            self._plug.disk.operation()
            content.synced = bytes(content.data)

    def _content(self) -> Content:
        try:
            return self._plug.disk.files[str(self)]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", str(self)) from None


def _is_like(name: str, wanted: list[str]) -> bool:
    parts = name.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


class SimFile(io.RawIOBase):
    """An open file. Each write is an operation of the disk."""

    def __init__(self, plug: Plug, content: Content, *, writes: bool) -> None:
        super().__init__()
        self._plug = plug
        self._content = content
        self._writes = writes
        self._at = 0

    def __enter__(self) -> Self:
        return self

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return self._writes

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._at, 2: len(self._content.data)}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._content.data) if size is None or size < 0 else self._at + size
        found = bytes(self._content.data[self._at : end])
        self._at += len(found)
        return found

    def write(self, data: object) -> int:
        """Raises OSError when the disk is full, Died: then half of it is there."""
        given = bytes(data)  # type: ignore[call-overload]
        try:
            self._plug.disk.operation()
        except Died:
            if not self._plug.is_out:
                self._put(given[: len(given) // 2])
            raise
        if self._plug.disk.full and self._at + len(given) > len(self._content.data):
            self._put(given[: len(given) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._put(given)
        return len(given)

    def truncate(self, size: int | None = None) -> int:
        self._plug.disk.operation()
        size = self._at if size is None else size
        del self._content.data[size:]
        return size

    def sync(self) -> None:
        self._plug.disk.operation()
        self._content.synced = bytes(self._content.data)

    def _put(self, given: bytes) -> None:
        data = self._content.data
        if len(data) < self._at:
            data.extend(bytes(self._at - len(data)))
        data[self._at : self._at + len(given)] = given
        self._at += len(given)
