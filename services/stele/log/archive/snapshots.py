"""Snapshots of the metadata as files: the facts that hold at an epoch, and the next offset.

Equal images give equal bytes on every replica. The facts are in records of the log's format, so
that code that reads old records also reads old snapshots. The memory of decided requests is in a
separate file, because only writers of the log need it.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Iterable, Iterator, Set
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import IO, Final

import msgspec

from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image, without_memory
from stele.domain.registry import KNOWN_FEATURES, features_of
from stele.domain.snapshot import facts_to_image, image_to_facts
from stele.log.archive.container import (
    UNFINISHED,
    Container,
    ContainerWriter,
    DamagedFileError,
    renamed_aside,
    swept,
    sync_folder,
    whole_file,
)
from stele.log.avro_writer import write_bytes, write_long
from stele.log.chain import Anchor
from stele.log.codec import DecodeError, decode_epoch, encode_epoch
from stele.log.fold import Start

SCHEMA: Final = "SnapshotPart"
HEAD: Final = "stele.snapshot"
FACTS_A_PART: Final = 64
LAST_PART: Final = -1
EPOCH_DIGITS: Final = 20
DAMAGED: Final = ".damaged"
NOTHING: Final[tuple[AnyFact, ...]] = ()
_SYNC: Final = b"stele-snapshot-1"


class SnapshotHead(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a snapshot holds, and the position in the log behind it. Ids are in hex."""

    cluster: str
    cluster_id: str
    log_id: str
    topic_id: str
    epoch: int
    state_id: str
    at_ms: int
    """The time of the epoch, in milliseconds since 1970."""
    next_offset: int
    anchor_offset: int
    anchor_digest: str
    features: tuple[str, ...] = ()
    """Features that a reader of the snapshot needs."""

    @property
    def name(self) -> str:
        """The file name without suffix, equal for every snapshot of this state."""
        return f"{self.epoch:0{EPOCH_DIGITS}}-{self.state_id}"

    def start(self, facts: Iterable[AnyFact]) -> Start:
        """Return the start of a reader with these facts. Raises ValueError for an invalid id."""
        image = facts_to_image(facts, self.epoch, bytes.fromhex(self.state_id))
        anchor = Anchor(self.anchor_offset, bytes.fromhex(self.anchor_digest))
        return Start(image, self.next_offset, anchor)


class UnreadableSnapshotError(Exception):
    """An intact snapshot that this build cannot read. Upgrade this process."""


def head_of(image: Image, next_offset: int, anchor: Anchor, at_ms: int) -> SnapshotHead:
    return SnapshotHead(
        cluster=image.cluster,
        cluster_id=image.cluster_id,
        log_id=image.log_id.hex(),
        topic_id=image.topic_id,
        epoch=image.epoch,
        state_id=image.state_id.hex(),
        at_ms=at_ms,
        next_offset=next_offset,
        anchor_offset=anchor.offset,
        anchor_digest=anchor.digest.hex(),
        features=image.features.enabled,
    )


def write(file: IO[bytes], head: SnapshotHead, facts: Iterable[AnyFact]) -> str:
    """Write a snapshot; return its SHA-256 in hex, which depends only on head and facts."""
    described = msgspec.json.encode(head)
    writer = ContainerWriter(file, SCHEMA, {HEAD: described.decode()}, _SYNC)
    digest, rest, part = hashlib.sha256(described), iter(facts), 0
    while group := tuple(islice(rest, FACTS_A_PART)):
        value = encode_epoch(_record(head, group))
        digest.update(value)
        writer.block([_encoded(part, value)])
        part += 1
    writer.block([_encoded(LAST_PART, digest.digest())])
    return digest.hexdigest()


def read_head(container: Container, supported: Set[str] = KNOWN_FEATURES) -> SnapshotHead:
    """Return the head of a snapshot.

    Raises DamagedFileError, and UnreadableSnapshotError if it needs a feature that is not
    ``supported``.
    """
    try:
        head = msgspec.json.decode(container.metadata[HEAD], type=SnapshotHead)
        head.start(NOTHING)
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        raise DamagedFileError(f"it is no snapshot: {error!r}") from error
    lacking = sorted({*head.features} - supported)
    if lacking:
        raise UnreadableSnapshotError(
            f"The snapshot of epoch {head.epoch} needs {', '.join(lacking)}, which this build does not"
            " support. Upgrade this process."
        )
    return head


def head_in(content: bytes) -> SnapshotHead:
    """Return the head in a snapshot's file. Raises DamagedFileError, UnreadableSnapshotError."""
    return read_head(Container(io.BytesIO(content), SCHEMA))


def read_facts(container: Container) -> Iterator[AnyFact]:
    """Yield the facts, part by part. Raises DamagedFileError at the end if any are missing.

    Raises UnreadableSnapshotError for facts of an unknown schema.
    """
    for part, value in _parts(container, hashlib.sha256()):
        try:
            epoch = decode_epoch(value)
        except DecodeError as error:
            if error.unknown_schema:
                raise UnreadableSnapshotError(f"{error}. Upgrade this process.") from error
            raise DamagedFileError(f"part {part}: {error}") from error
        yield from epoch.facts


def hash_of(path: Path) -> str:
    """Compute the SHA-256 that ``write`` returned from the file. Raises DamagedFileError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        container = Container(file, SCHEMA)
        try:
            deque(_parts(container, digest), maxlen=0)
        except DamagedFileError as error:
            raise DamagedFileError(f"{path}: {error}") from error
    return digest.hexdigest()


def _parts(container: Container, digest: hashlib._Hash) -> Iterator[tuple[int, bytes]]:
    """Yield the parts, and add them to ``digest``. Raises DamagedFileError if any are missing."""
    digest.update(container.metadata[HEAD].encode())
    for following, record in enumerate(container.records(container.blocks())):
        part, value = record["part"], record["value"]
        # The last part holds the digest of all others. Without it the file is incomplete.
        if part == LAST_PART:
            if value != digest.digest():
                raise DamagedFileError("its parts are not those that were written")
            return
        if part != following:
            raise DamagedFileError(f"part {part} stands where {following} should")
        digest.update(value)
        yield part, value
    raise DamagedFileError("its end is missing")


def start_of(
    image_file: IO[bytes],
    decided_file: IO[bytes] | None = None,
    *,
    supported: Set[str] = KNOWN_FEATURES,
) -> Start:
    """Return the start of a reader with this snapshot.

    ``supported`` are the features of its process. The start includes the memory of decided requests
    if ``decided_file`` is given. Raises DamagedFileError, UnreadableSnapshotError, OSError.
    """
    container = Container(image_file, SCHEMA)
    head, facts = read_head(container, supported), read_facts(container)
    if decided_file is not None:
        beside = Container(decided_file, SCHEMA)
        if read_head(beside, supported) != head:
            raise DamagedFileError("the decided requests are of another snapshot")
        facts = chain(facts, read_facts(beside))
    return head.start(facts)


def _record(head: SnapshotHead, facts: tuple[AnyFact, ...]) -> Epoch:
    """Return a record in the log's format for a part of a snapshot. The log never contains it."""
    state_id = bytes.fromhex(head.state_id)
    return Epoch(
        prev_state_id=state_id,
        state_id=state_id,
        log_id=bytes.fromhex(head.log_id),
        epoch=head.epoch,
        request_id="",
        command="snapshot",
        facts=facts,
        at_ms=head.at_ms,
        required_features=features_of(facts).required,
    )


def _encoded(part: int, value: bytes) -> bytes:
    out = bytearray()
    write_long(out, part)
    write_bytes(out, value)
    return bytes(out)


# The snapshots of one folder.


def _start_of(image_path: Path, decided_path: Path | None, *, supported: Set[str]) -> Start:
    with ExitStack() as stack:
        image_file = stack.enter_context(image_path.open("rb"))
        decided = None if decided_path is None else stack.enter_context(decided_path.open("rb"))
        return start_of(image_file, decided, supported=supported)


class Kept(msgspec.Struct, frozen=True):
    """A snapshot in the folder, with its files and their sizes."""

    head: SnapshotHead
    path: Path
    decided_path: Path
    size_bytes: int
    decided_bytes: int
    hash: str = ""
    """SHA-256 in hex; empty for a snapshot that this process neither wrote nor checked."""


class Snapshots:
    """The snapshots of a folder. One thread may write while others read.

    ``supported`` are the features of the process. A snapshot that needs others is kept but not
    read.
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
        """Return the newest snapshot, or the newest one not after epoch ``at_most``."""
        found = (k for k in self.all() if at_most is None or k.head.epoch <= at_most)
        return next(found, None)

    def named(self, name: str) -> Kept | None:
        return self._kept.get(name)

    def hashed(self, kept: Kept) -> Kept | None:
        """Return the snapshot with its hash, from its file if necessary.

        A damaged snapshot is set aside; the result is then None.
        """
        return kept if kept.hash else self.checked(kept)

    def checked(self, kept: Kept) -> Kept | None:
        """Return the snapshot with the hash of its file as it is now.

        A damaged snapshot is set aside; the result is then None.
        """
        try:
            return self._keep(kept.head, hash_of(kept.path))
        except (DamagedFileError, OSError) as error:
            self.set_aside(kept, str(error))
            return None

    def write(self, image: Image, head: SnapshotHead, decided: Iterable[AnyFact]) -> Kept:
        """Write a snapshot to the disk. Raises OSError."""
        path, decided_path = self._paths(head.name)
        # The decided requests first: a snapshot exists once its image file does.
        with whole_file(decided_path) as file:
            write(file, head, decided)
        with whole_file(path) as file:
            hashed = write(file, head, image_to_facts(without_memory(image)))
        return self._keep(head, hashed)

    def adopt(self, image_file: bytes, decided_file: bytes) -> Kept:
        """Check and store a snapshot of another replica. Raises DamagedFileError, OSError."""
        unnamed = [self._folder / f"{each}.avro{UNFINISHED}" for each in ("image", "decided")]
        for path, content in zip(unnamed, (image_file, decided_file), strict=True):
            with whole_file(path) as file:
                file.write(content)
        # Read all of both files before they get their names: damaged ones must never be found.
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
        """Return the start of a reader behind a snapshot.

        A damaged snapshot is set aside; the result is then None. Raises UnreadableSnapshotError.
        """
        try:
            decided_path = kept.decided_path if decided else None
            return _start_of(kept.path, decided_path, supported=self._supported)
        except (DamagedFileError, OSError) as error:
            self.set_aside(kept, str(error))
            return None

    def forget(self, kept: Kept) -> None:
        """Delete a snapshot."""
        self._kept.pop(kept.head.name, None)
        kept.path.unlink(missing_ok=True)
        kept.decided_path.unlink(missing_ok=True)

    def forget_deleted(self) -> int:
        """Forget snapshots with a file that others have deleted; return how many."""
        gone = [k for k in self.all() if not (k.path.exists() and k.decided_path.exists())]
        # This process may have replaced or forgotten a snapshot since it was listed.
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
        """Stop using a snapshot, and rename its files. Does nothing if it was forgotten meanwhile.

        Until ``sync``, a power failure may undo the renames.
        """
        if self._kept.pop(kept.head.name, None) is None:
            return
        self.damaged.append(f"{kept.path}: {why}")
        for path in (kept.path, kept.decided_path):
            if path.exists():
                renamed_aside(path, DAMAGED)

    def sync(self) -> None:
        """Flush renames to the disk. Raises OSError."""
        sync_folder(self._folder)
