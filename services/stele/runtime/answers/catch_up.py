"""Answers of catch-up: contents of its archive, and the start of a reader of the log."""

from enum import StrEnum
from typing import Final

import msgspec

from stele.domain.model.cluster import Incarnation
from stele.log.archive_store.verify import ArchiveVerdict

MOST_EPOCHS: Final = 100
"""Limit of the epochs in one request for state ids. Each is read from the disk."""


class SnapshotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the metadata that this replica holds.

    ``decided_bytes`` is the size of the memory of decided requests, which only a metadata-log reads.
    """

    name: str
    epoch: int
    state_id: str
    log_id: str
    at_ms: int
    size_bytes: int
    decided_bytes: int
    next_offset: int
    anchor_offset: int


class SpanAnswer(msgspec.Struct, frozen=True):
    """Epochs ``first`` to ``last``, both included."""

    first: int
    last: int


class StoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the copy of this replica's archive to a blob store.

    The store has the epochs up to ``epoch``. ``why`` is the reason of a failure, empty without one.
    """

    url: str
    epoch: int = 0
    snapshot_epoch: int = 0
    why: str = ""


class CheckState(StrEnum):
    """State of a check of the whole archive. A failed check has no verdict."""

    NONE = "none"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class CheckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The newest check of the whole archive.

    Epochs ``first`` to ``epoch`` are checked, up to ``last`` are to be checked. ``snapshots`` is
    the number of compared snapshots, ``why`` the reason of a failure.
    """

    state: CheckState
    began_ms: int = 0
    ended_ms: int = 0
    first: int = 0
    epoch: int = 0
    last: int = 0
    snapshots: int = 0
    verdict: ArchiveVerdict | None = None
    why: str = ""


class ArchiveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The archive of one replica.

    ``epoch`` is the newest that it has applied. ``spans`` are the epochs on its disk. Epochs between
    two spans are missing.
    """

    replica_id: str
    cluster: str
    cluster_id: str
    log_id: str
    incarnations: tuple[Incarnation, ...]
    epoch: int
    trouble: str
    """Reason why it does not read the log, or has doubts about it; empty if neither is so."""
    spans: tuple[SpanAnswer, ...]
    size_bytes: int
    snapshots: tuple[SnapshotAnswer, ...]
    damaged: tuple[str, ...]
    filling: str = ""
    """The transfer of missing epochs from other replicas, as text."""
    store: StoreAnswer | None = None
    begins: int = 0
    """Epochs before this one were deleted from all archives; 0: none."""


class Known(StrEnum):
    """Whether the epoch that a reader has belongs to this log."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"
    """The archive does not hold it, or not yet."""


class StartAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The way of a reader to the newest epoch: ``snapshot``, or the records after its own epoch.

    These records have about ``tail_bytes`` on this replica's disk, up to epoch ``last``. None: some
    are missing.
    """

    replica_id: str
    log_id: str
    known: Known
    last: int
    last_state_id: str
    """State id of epoch ``last``; empty while there is none."""
    tail_bytes: int | None
    recovered: bool = False
    """The log continues another one, so its topic alone cannot be read from the beginning."""
    snapshot: SnapshotAnswer | None = None
    stopped: str = ""
    """Reason why it does not read the log; empty while it does."""
    begins: int = 0
    """Epochs before this one were deleted from all archives; 0: none."""


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the log that a replica can restore.

    ``states`` are state ids in hex, by epoch. The replica has the images of epochs ``first_image`` to
    ``last_image``. ``nodes`` and ``replicas`` are the addresses of members and of catch-up replicas in
    the log, by id.
    """

    replica_id: str
    log_id: str
    states: dict[int, str]
    first_image: int
    last_image: int
    incarnations: tuple[Incarnation, ...]
    nodes: dict[str, str]
    replicas: dict[str, str] = {}
    trouble: str


class RecoveredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The log continues as ``log_id``. Its first ``epoch`` is at ``offset`` of the topic."""

    replica_id: str
    log_id: str
    epoch: int
    offset: int
    last_epoch: int
    known_epoch: int
    was_there: bool
    """An earlier recovery had written it."""


class RecoverableAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """No known fact prevents a recovery.

    ``not_looked_at`` is the reason why the topic was not read. It may have such a fact.
    """

    not_looked_at: str = ""
