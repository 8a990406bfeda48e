"""Layout of an archive in a blob store: names, manifest, claim, and plans of what to put or delete.

A name contains epochs and history of its blob. All writers of a store therefore write equivalent
content under the same name.

    stele.json                                              the owner of the store: ``claim``
    logs/<log id>/segments/<first>-<last>-<state id>.avro   epochs, with the state id of the last
    logs/<log id>/snapshots/<epoch>-<state id>.avro         the facts that hold at an epoch
    logs/<log id>/snapshots/<epoch>-<state id>-decided.avro the memory of decided requests beside them

Epochs have 20 digits, ids are in hex. The log is that of the last epoch. If it was recovered from
another log, a segment may begin with epochs of that one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from stele.log.archive.container import LAST_EPOCH, EpochSpan, joined
from stele.log.blobs.port import Blob, BlobMissingError, BlobStore, StoreRefusedError

DIGITS: Final = 20
_LOG: Final = r"logs/([0-9a-f]{32})"
_SEGMENT: Final = re.compile(_LOG + r"/segments/(\d{20})-(\d{20})-([0-9a-f]{32})\.avro")
_SNAPSHOT: Final = re.compile(_LOG + r"/snapshots/(\d{20})-([0-9a-f]{32})(-decided)?\.avro")


class StoredSegment(NamedTuple):
    """A segment in a store: epochs ``first`` to ``last``. Epoch ``last`` is of log ``log_id``."""

    log_id: str
    first: int
    last: int
    state_id: str

    @property
    def name(self) -> str:
        epochs = f"{self.first:0{DIGITS}}-{self.last:0{DIGITS}}"
        return f"logs/{self.log_id}/segments/{epochs}-{self.state_id}.avro"


class StoredSnapshot(NamedTuple):
    """A snapshot in a store."""

    log_id: str
    epoch: int
    state_id: str

    @property
    def stem(self) -> str:
        """The snapshot's name in a replica's folder."""
        return f"{self.epoch:0{DIGITS}}-{self.state_id}"

    @property
    def name(self) -> str:
        return f"logs/{self.log_id}/snapshots/{self.stem}.avro"

    @property
    def decided_name(self) -> str:
        return f"logs/{self.log_id}/snapshots/{self.stem}-decided.avro"

    @property
    def names(self) -> tuple[str, str]:
        """Names of both files."""
        return self.name, self.decided_name


class Contents(NamedTuple):
    """A store's listing: pieces and snapshots in order, and the sizes of all blobs by name."""

    pieces: tuple[StoredSegment, ...]
    shots: tuple[StoredSnapshot, ...]
    """Snapshots with both files in the store."""
    sizes: dict[str, int]

    @property
    def logs(self) -> list[str]:
        """Log ids of the pieces and snapshots, the oldest first: log ids are ordered by time."""
        of_pieces = {piece.log_id for piece in self.pieces}
        return sorted(of_pieces | {shot.log_id for shot in self.shots})


def contents_of(blobs: Iterable[Blob]) -> Contents:
    """Parse a listing. Names of another form count only for the sizes."""
    pieces, sizes = list[StoredSegment](), dict[str, int]()
    files = defaultdict[StoredSnapshot, int](int)
    for name, size_bytes in blobs:
        sizes[name] = size_bytes
        if (found := _SEGMENT.fullmatch(name)) is not None:
            log_id, first, last, state_id = found.groups()
            pieces.append(StoredSegment(log_id, int(first), int(last), state_id))
        elif (found := _SNAPSHOT.fullmatch(name)) is not None:
            log_id, epoch, state_id, _ = found.groups()
            files[StoredSnapshot(log_id, int(epoch), state_id)] += 1
    shots = (shot for shot, count in files.items() if count == 2)
    return Contents(tuple(sorted(pieces)), tuple(sorted(shots)), sizes)


# The manifest of a backup: its blobs with their sizes and hashes.
#
# It is put last, as one blob. A backup that was interrupted therefore has the manifest of the
# backup before, all of whose blobs are still in the store.


MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = 1


class Entry(msgspec.Struct, frozen=True):
    """A blob of the backup. The hash has 64 hex digits."""

    name: str
    size_bytes: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A backup's content: epochs ``first_epoch`` to ``last_epoch``, which made ``state_id``."""

    cluster: str
    cluster_id: str
    log_id: str
    first_epoch: int
    last_epoch: int
    state_id: str
    snapshot_epochs: tuple[int, ...]
    made_ms: int
    """Time of the backup, in milliseconds since 1970."""
    made_from: str
    """Addresses of the replicas that the backup read."""
    files: tuple[Entry, ...]
    format: int = FORMAT

    def entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.files if entry.name == name), None)


async def manifest_in(store: BlobStore) -> BackupManifest | None:
    """Return the manifest in a store, or None.

    Raises StoreRefusedError for one that cannot be read, and BlobStoreError.
    """
    try:
        raw = await store.get(MANIFEST_NAME)
    except BlobMissingError:
        return None
    try:
        found = msgspec.json.decode(raw, type=BackupManifest)
    except msgspec.MsgspecError as error:
        raise StoreRefusedError(
            f"{MANIFEST_NAME} in {store.url} cannot be read ({error}). Delete it and back up again: what is"
            " there stays."
        ) from error
    if found.format > FORMAT:
        raise StoreRefusedError(
            f"{MANIFEST_NAME} in {store.url} has format {found.format}; this build knows {FORMAT}. Take a newer"
            " build."
        )
    return found


# Ownership of a store: its first blob names the cluster, and other clusters do not write to it.


CLAIM_NAME: Final = "stele.json"


class StoreKind(StrEnum):
    """The writer of a store. A mirror deletes segments that longer ones cover.

    In a backup the manifest may still name them, so the two never share a store.
    """

    MIRROR = "mirror"
    BACKUP = "backup"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Owner and kind of a store. ``format`` is the version of its names and files."""

    cluster: str
    cluster_id: str
    kind: StoreKind
    format: int = FORMAT


class ForeignStoreError(StoreRefusedError):
    """The store belongs to another cluster, a later log or another history, or is no archive."""


async def claim_of(store: BlobStore) -> Claim | None:
    """Return the claim of a store; None for a new one. Raises ForeignStoreError and BlobStoreError."""
    try:
        raw = await store.get(CLAIM_NAME)
    except BlobMissingError:
        return None
    try:
        found = msgspec.json.decode(raw, type=Claim)
    except msgspec.MsgspecError as error:
        raise ForeignStoreError(
            f"{CLAIM_NAME} in {store.url} cannot be read ({error}). Take another prefix, or restore it."
        ) from error
    if found.format > FORMAT:
        raise ForeignStoreError(
            f"{store.url} has format {found.format}; this build knows {FORMAT}. Upgrade this process."
        )
    return found


async def claim(store: BlobStore, own: Claim) -> None:
    """Claim the store permanently, or check its claim. Raises ForeignStoreError and BlobStoreError."""
    found = await claim_of(store)
    if found is None:
        # Two clusters may claim the store at once. Only one ``put_new`` succeeds, and reading the
        # claim back shows which.
        await store.put_new(CLAIM_NAME, msgspec.json.encode(own))
        found = await claim_of(store)
    if found is None:
        raise StoreRefusedError(
            f"{store.url} does not show {CLAIM_NAME} after it was written. Check the store."
        )
    if (found.cluster_id, found.kind) == (own.cluster_id, own.kind):
        return
    if found.cluster_id == own.cluster_id:
        raise ForeignStoreError(
            f"{store.url} holds a {found.kind} of this cluster, not a {own.kind}. Take another prefix."
        )
    raise ForeignStoreError(
        f"{store.url} holds the archive of cluster '{found.cluster}' ({found.cluster_id}), and this is"
        f" '{own.cluster}' ({own.cluster_id}). Take another prefix."
    )


# Select the pieces, and their epochs, that form the history of the newest log. Pure.
#
# A recovered log continues an epoch of the log before. The later epochs of that log were given up,
# but may still be in the store. Therefore epochs of an older log count only before the epochs of
# newer logs. If a snapshot of a newer log names the last epoch of the older one, they count only up
# to that.


class PieceRange(NamedTuple):
    """Epochs ``first`` to ``last`` of a piece."""

    piece: StoredSegment
    first: int
    last: int

    @property
    def is_to_end(self) -> bool:
        """True if it contains the last epoch of its piece, whose state id is in the name."""
        return self.last == self.piece.last


class PastLogs(NamedTuple):
    """The logs from which log ``log_id`` was recovered.

    ``ends`` maps each of them to its last epoch in the history. Other earlier logs have none.
    """

    log_id: str
    ends: Mapping[str, int]

    def end_of(self, log_id: str) -> int:
        """Return the last epoch of a log in the history; no limit for ``log_id`` and later ones."""
        return LAST_EPOCH if log_id >= self.log_id else self.ends.get(log_id, 0)


UNKNOWN: Final = PastLogs("", {})
"""The past when no snapshot names earlier logs."""


def history(pieces: Iterable[StoredSegment], past: PastLogs = UNKNOWN) -> list[PieceRange]:
    """Return the parts to read, in order of epochs, each epoch once. There may be gaps."""
    by_log = dict[str, list[StoredSegment]]()
    for piece in pieces:
        by_log.setdefault(piece.log_id, []).append(piece)
    found, before = list[PieceRange](), LAST_EPOCH
    # The newest log first: its first epoch limits the epochs of all older logs.
    for log_id in sorted(by_log, reverse=True):
        parts = _of_one_log(by_log[log_id], min(before, past.end_of(log_id) + 1))
        found = parts + found
        before = min((part.first for part in parts), default=before)
    return found


def spans(parts: Iterable[PieceRange]) -> list[EpochSpan]:
    """Return the spans of readable epochs."""
    return joined(EpochSpan(part.first, part.last) for part in parts)


def own_shots(
    contents: Contents, past: PastLogs = UNKNOWN
) -> tuple[list[StoredSnapshot], list[StoredSnapshot]]:
    """Return the snapshots of this history, and the doubtful ones.

    A doubtful snapshot belongs to an older log, and its epoch is in a piece of a newer log. Only
    the state id in that piece shows whether it belongs to the history.
    """
    parts = history(contents.pieces, past)
    ends = dict[str, int]()
    for part in parts:
        ends[part.piece.log_id] = max(part.last, ends.get(part.piece.log_id, 0))
    sure, doubtful = list[StoredSnapshot](), list[StoredSnapshot]()
    for shot in contents.shots:
        if shot.epoch > past.end_of(shot.log_id):
            continue
        if shot.log_id == contents.logs[-1] or shot.epoch <= ends.get(shot.log_id, 0):
            sure.append(shot)
        elif any(part.first <= shot.epoch <= part.last for part in parts):
            doubtful.append(shot)
    return sure, doubtful


def _of_one_log(pieces: list[StoredSegment], before: int) -> list[PieceRange]:
    """Return as few parts as possible of one log's pieces, only with epochs before ``before``."""
    found, following = list[PieceRange](), 0
    for first, last, piece in sorted((each.first, -each.last, each) for each in pieces):
        end = min(-last, before - 1)
        begin = max(first, following)
        if begin <= end:
            found.append(PieceRange(piece, begin, end))
            following = end + 1
    return found


# Plan which blobs to put into a store, and which to delete. Pure.
#
# All replicas cut the segments of a store at the same epochs, independent of their own files. They
# use blocks of ``BLOCK_EPOCHS``, divided into pieces of ``PIECE_BYTES``. Replicas that share a
# store thus find each other's segments. The newest block is put incomplete, again each time, until
# it is full. Each put covers the earlier ones.


BLOCK_EPOCHS: Final = 16_384
PIECE_BYTES: Final = 32 * 1024 * 1024
"""Most bytes of the records in a piece, before compression."""


def lacking(
    own: Iterable[EpochSpan], there: Iterable[EpochSpan], first: int = 1
) -> list[EpochSpan]:
    """Return the parts of blocks in ``own`` that ``there`` does not cover completely, in order.

    Epochs before ``first`` are left out.
    """
    stored = joined(there)
    return [
        part
        for span in own
        if span.last >= first
        for part in _blocks(EpochSpan(max(first, span.first), span.last))
        if not any(each.first <= part.first and part.last <= each.last for each in stored)
    ]


def covered(pieces: Iterable[StoredSegment]) -> dict[StoredSegment, StoredSegment]:
    """Return the pieces that a longer piece of the same log covers, each with that piece."""
    found, longest = dict[StoredSegment, StoredSegment](), dict[str, StoredSegment]()
    for piece in sorted(pieces, key=lambda each: (each.first, -each.last)):
        before = longest.get(piece.log_id)
        if before is None or piece.last > before.last:
            longest[piece.log_id] = piece
        elif (before.first, before.last) != (piece.first, piece.last):
            found[piece] = before
    return found


def base_of(shots: Iterable[StoredSnapshot], cutoff: int) -> int:
    """Return the epoch of the newest snapshot before epoch ``cutoff``; 0 if there is none.

    All later epochs can be folded from it.
    """
    return max((shot.epoch for shot in shots if shot.epoch < cutoff), default=0)


def expired(contents: Contents, base: int) -> list[str]:
    """Return names of blobs that the snapshot of epoch ``base`` and later epochs do not need."""
    names = [piece.name for piece in contents.pieces if piece.last < base]
    for shot in contents.shots:
        if shot.epoch < base:
            names += shot.names
    return names


def _blocks(span: EpochSpan) -> Iterator[EpochSpan]:
    first = span.first
    while first <= span.last:
        last = (first + BLOCK_EPOCHS - 1) // BLOCK_EPOCHS * BLOCK_EPOCHS
        yield EpochSpan(first, min(last, span.last))
        first = last + 1
