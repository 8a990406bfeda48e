"""Files that are there whole or not at all, also after a power failure."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Protocol, runtime_checkable

UNFINISHED: Final = ".unfinished"


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write ``path`` inside the block: it gets its name once it is on the disk, unless the block fails."""
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
    """A file or folder that is none of this machine's, and knows itself how it gets on its disk."""

    def sync(self) -> None: ...


def sync_file(file: IO[bytes]) -> None:
    """Have what was written on the disk."""
    file.flush()
    if isinstance(file, Synced):
        file.sync()
    else:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    if isinstance(folder, Synced):
        folder.sync()
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def renamed_aside(path: Path, suffix: str) -> Path:
    """The file under a name that ends with ``suffix``, so that nobody reads it any more. One that was set aside
    under that name before stays: the new one gets a number, as in ``7-9.2.avro.lost``.
    """
    stem, _, ending = path.name.partition(".")
    aside, number = path.with_name(path.name + suffix), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{stem}.{number}.{ending}{suffix}")
    return path.replace(aside)


def swept(folder: Path) -> Path:
    """The folder, made if need be, without what a crash left unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"*{UNFINISHED}"):
        path.unlink()
    return folder
