"""The snapshots of one folder."""

from collections.abc import Iterable, Set
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from stele.domain.facts import AnyFact
from stele.domain.image import Image, without_memory
from stele.domain.registry import KNOWN_FEATURES
from stele.domain.snapshot import image_to_facts
from stele.log.archive.container import Container, DamagedFileError
from stele.log.archive.files import UNFINISHED, renamed_aside, swept, sync_folder, whole_file
from stele.log.archive.snapshots import (
    HEAD,
    SCHEMA,
    SnapshotHead,
    hash_of,
    read_head,
    start_of,
    write,
)
from stele.log.start import Start

DAMAGED: Final = ".damaged"


def _start_of(image_path: Path, decided_path: Path | None, *, supported: Set[str]) -> Start:
    with ExitStack() as stack:
        image_file = stack.enter_context(image_path.open("rb"))
        decided = None if decided_path is None else stack.enter_context(decided_path.open("rb"))
        return start_of(image_file, decided, supported=supported)


class Kept(msgspec.Struct, frozen=True):
    """A snapshot that is in the folder."""

    head: SnapshotHead
    path: Path
    decided_path: Path
    size_bytes: int
    decided_bytes: int
    hash: str = ""
    """Known of those that this process wrote or has checked."""


class Snapshots:
    """The snapshots of a folder, the newest first. One thread may write while others read.

    ``supported`` are the features of the process: a snapshot that needs others is kept, and not read.
    """

    def __init__(self, folder: Path, supported: Set[str] = KNOWN_FEATURES) -> None:
        self.damaged: list[str] = []
        self._supported = supported
        self._folder = swept(folder)
        self._kept: dict[str, Kept] = {}
        for path in sorted(folder.glob("*.avro")):
            if not path.stem.endswith("-decided"):
                self._look_at(path)

    def all(self) -> list[Kept]:
        return sorted(self._kept.values(), key=lambda kept: kept.head.epoch, reverse=True)

    def newest(self, at_most: int | None = None) -> Kept | None:
        """The newest, or the newest that is not after epoch ``at_most``."""
        found = (k for k in self.all() if at_most is None or k.head.epoch <= at_most)
        return next(found, None)

    def named(self, name: str) -> Kept | None:
        return self._kept.get(name)

    def hash_of(self, kept: Kept) -> str:
        """The SHA-256 of its facts, from the file if need be; empty when it is damaged, and set aside."""
        found = kept if kept.hash else self.checked(kept)
        return "" if found is None else found.hash

    def checked(self, kept: Kept) -> Kept | None:
        """It, with the hash of its facts as the file has them now; None when it is damaged, and set aside."""
        try:
            return self._keep(kept.head, hash_of(kept.path))
        except (DamagedFileError, OSError) as error:
            self.set_aside(kept, str(error))
            return None

    def write(self, image: Image, head: SnapshotHead, decided: Iterable[AnyFact]) -> Kept:
        """Keep a snapshot; it is on the disk then. Raises OSError."""
        path, decided_path = self._paths(head.name)
        with whole_file(decided_path) as file:
            write(file, head, decided)
        with whole_file(path) as file:
            hashed = write(file, head, image_to_facts(without_memory(image)))
        return self._keep(head, hashed)

    def adopt(self, image_file: bytes, decided_file: bytes) -> Kept:
        """Keep a snapshot that another replica has given. Raises DamagedFileError, OSError."""
        unnamed = [self._folder / f"{each}.avro{UNFINISHED}" for each in ("image", "decided")]
        for path, content in zip(unnamed, (image_file, decided_file), strict=True):
            with whole_file(path) as file:
                file.write(content)
        try:
            _start_of(*unnamed, supported=self._supported)
            hashed = hash_of(unnamed[0])
            with unnamed[0].open("rb") as file:
                head = read_head(Container(file, SCHEMA), self._supported)
            path, decided_path = self._paths(head.name)
            unnamed[1].replace(decided_path)
            unnamed[0].replace(path)
            sync_folder(self._folder)
        finally:
            for left in unnamed:
                left.unlink(missing_ok=True)
        return self._keep(head, hashed)

    def start(self, kept: Kept, *, decided: bool) -> Start | None:
        """Where a reader begins behind it; None, and it is set aside, when it is damaged.

        Raises UnreadableSnapshotError.
        """
        try:
            decided_path = kept.decided_path if decided else None
            return _start_of(kept.path, decided_path, supported=self._supported)
        except (DamagedFileError, OSError) as error:
            self.set_aside(kept, str(error))
            return None

    def forget(self, kept: Kept) -> None:
        """Delete it."""
        self._kept.pop(kept.head.name, None)
        kept.path.unlink(missing_ok=True)
        kept.decided_path.unlink(missing_ok=True)

    def forget_deleted(self) -> int:
        """Those of which somebody has deleted a file are not here any more; how many."""
        gone = [k for k in self.all() if not (k.path.exists() and k.decided_path.exists())]
        gone = [kept for kept in gone if self.named(kept.head.name) is kept]
        for kept in gone:
            self.set_aside(kept, "it was deleted")
        return len(gone)

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self._folder / f"{name}.avro", self._folder / f"{name}-decided.avro"

    def _keep(self, head: SnapshotHead, hashed: str = "") -> Kept:
        path, decided_path = self._paths(head.name)
        sizes = path.stat().st_size, decided_path.stat().st_size
        kept = self._kept[head.name] = Kept(head, path, decided_path, *sizes, hashed)
        return kept

    def _look_at(self, path: Path) -> None:
        _, decided_path = self._paths(path.stem)
        try:
            with path.open("rb") as file:
                container = Container(file, SCHEMA)
                head = msgspec.json.decode(container.metadata[HEAD], type=SnapshotHead)
            if path.stem != head.name:
                raise DamagedFileError(f"it is snapshot {head.name}, by another name")
            if not decided_path.exists():
                raise DamagedFileError("its decided requests are missing")
        except (DamagedFileError, KeyError, msgspec.DecodeError, OSError) as error:
            self.damaged.append(f"{path}: {error}")
            renamed_aside(path, DAMAGED)
            return
        self._keep(head)

    def set_aside(self, kept: Kept, why: str) -> None:
        """It is not used any more, and its files are renamed; nothing is done if it was forgotten meanwhile. It
        may be there again after a power failure, until ``sync``.
        """
        if self._kept.pop(kept.head.name, None) is None:
            return
        self.damaged.append(f"{kept.path}: {why}")
        for path in (kept.path, kept.decided_path):
            if path.exists():
                renamed_aside(path, DAMAGED)

    def sync(self) -> None:
        """Have what was renamed on the disk. Raises OSError."""
        sync_folder(self._folder)
