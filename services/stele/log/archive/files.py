"""Atomic files: after a power failure, a file is whole or absent."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Protocol, runtime_checkable

UNFINISHED: Final = ".unfinished"


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write ``path`` in a with-block. On success the file gets its name when it is on disk."""
    # The order matters: sync the content, rename, sync the folder. A rename before the content is
    # on disk could leave an empty file of this name after a power failure.
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with unfinished.open("w+b") as file:
            yield file
            sync_file(file)
        unfinished.replace(path)
        sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


@runtime_checkable
class Synced(Protocol):
    """A file or folder that is not the operating system's, and has a ``sync`` for its own disk."""

    def sync(self) -> None: ...


def sync_file(file: IO[bytes]) -> None:
    """Flush a file to the disk."""
    file.flush()
    if isinstance(file, Synced):
        file.sync()
    else:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    if isinstance(folder, Synced):
        folder.sync()
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def renamed_aside(path: Path, suffix: str) -> Path:
    """Rename a file to end with ``suffix``, so that it is not read any more; return the new path.

    An existing file of that name stays. The new one then gets a number, as in ``7-9.2.avro.lost``.
    """
    stem, _, ending = path.name.partition(".")
    aside, number = path.with_name(path.name + suffix), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{stem}.{number}.{ending}{suffix}")
    return path.replace(aside)


def swept(folder: Path) -> Path:
    """Create a folder if necessary, delete unfinished files that a crash left, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"*{UNFINISHED}"):
        path.unlink()
    return folder
