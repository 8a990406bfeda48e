"""Snapshots of the metadata as files: the facts that are true at an epoch, and where the log goes on.

Equal images give equal bytes, on every replica. The facts are in records of the log's own format, so that
whatever reads old records reads old snapshots. The memory of decided requests is a file of its own beside it,
since only those who decide need it.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Set
from itertools import chain, islice
from pathlib import Path
from typing import IO, Final

import msgspec

from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.registry import KNOWN_FEATURES, required_features
from stele.domain.snapshot import facts_to_image
from stele.log.archive.container import Container, ContainerWriter, DamagedFileError, long_bytes
from stele.log.chain import Anchor
from stele.log.codec import DecodeError, decode_epoch, encode_epoch
from stele.log.start import Start

SCHEMA: Final = "SnapshotPart"
HEAD: Final = "stele.snapshot"
FACTS_A_PART: Final = 64
LAST_PART: Final = -1
EPOCH_DIGITS: Final = 20
DAMAGED: Final = ".damaged"
NOTHING: Final[tuple[AnyFact, ...]] = ()
_SYNC: Final = b"stele-snapshot-1"


class SnapshotHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot is of, and where a reader goes on behind it; ids as hex digits."""

    cluster: str
    cluster_id: str
    log_id: str
    topic_id: str
    epoch: int
    state_id: str
    at_ms: int
    """The time of its epoch, milliseconds since 1970."""
    next_offset: int
    anchor_offset: int
    anchor_digest: str
    features: tuple[str, ...] = ()
    """Without these it cannot be read."""

    @property
    def name(self) -> str:
        """The same of every snapshot of this state."""
        return f"{self.epoch:0{EPOCH_DIGITS}}-{self.state_id}"

    def start(self, facts: Iterable[AnyFact]) -> Start:
        """Where a reader goes on, with these facts. Raises ValueError when an id is none."""
        image = facts_to_image(facts, self.epoch, bytes.fromhex(self.state_id))
        anchor = Anchor(self.anchor_offset, bytes.fromhex(self.anchor_digest))
        return Start(image, self.next_offset, anchor)


class UnreadableSnapshotError(Exception):
    """A whole snapshot that this build cannot read. Upgrade this process."""


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
    """Write a snapshot; its SHA-256 as hex digits, which depends on head and facts alone."""
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
    """Raises DamagedFileError, and UnreadableSnapshotError where it needs what is not ``supported``."""
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
    """Of a snapshot's file. Raises DamagedFileError, UnreadableSnapshotError."""
    return read_head(Container(io.BytesIO(content), SCHEMA))


def read_facts(container: Container) -> Iterator[AnyFact]:
    """The facts, part by part. Ends with DamagedFileError unless all of them were there.

    Raises UnreadableSnapshotError for facts that this build does not know.
    """
    digest = hashlib.sha256(container.metadata[HEAD].encode())
    for following, record in enumerate(container.records(container.blocks())):
        part, value = record["part"], record["value"]
        if part == LAST_PART:
            if value != digest.digest():
                raise DamagedFileError("its parts are not those that were written")
            return
        if part != following:
            raise DamagedFileError(f"part {part} stands where {following} should")
        digest.update(value)
        try:
            epoch = decode_epoch(value)
        except DecodeError as error:
            if error.unknown_schema:
                raise UnreadableSnapshotError(f"{error}. Upgrade this process.") from error
            raise DamagedFileError(f"part {part}: {error}") from error
        yield from epoch.facts
    raise DamagedFileError("its end is missing")


def hash_of(path: Path) -> str:
    """The SHA-256 that ``write`` gave, once more from the file. Raises DamagedFileError."""
    with path.open("rb") as file:
        container = Container(file, SCHEMA)
        digest = hashlib.sha256(container.metadata[HEAD].encode())
        for record in container.records(container.blocks()):
            if record["part"] == LAST_PART:
                if record["value"] != digest.digest():
                    raise DamagedFileError(f"{path}: its parts are not those that were written")
                return digest.hexdigest()
            digest.update(record["value"])
    raise DamagedFileError(f"{path}: its end is missing")


def start_of(
    image_file: IO[bytes],
    decided_file: IO[bytes] | None = None,
    *,
    supported: Set[str] = KNOWN_FEATURES,
) -> Start:
    """Where a reader begins that has this snapshot and supports these features; with the memory of decided
    requests if that is given.

    Raises DamagedFileError, UnreadableSnapshotError, OSError.
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
    """A record of the log's format that nobody ever writes there."""
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
        required_features=required_features(facts),
    )


def _encoded(part: int, value: bytes) -> bytes:
    return b"".join((long_bytes(part), long_bytes(len(value)), value))
