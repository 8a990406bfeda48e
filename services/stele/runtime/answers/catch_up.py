"""Answers of catch-up: what its archive holds, and where a reader of the log begins."""

from enum import StrEnum
from typing import Final

import msgspec

from stele.domain.cluster.model import Incarnation
from stele.log.archive_store.verify import ArchiveVerdict

MOST_EPOCHS: Final = 100
"""Whose state ids one question about a history may ask for; each is looked up on the disk."""


class SnapshotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the metadata that this replica holds. Only who decides needs its ``decided_bytes`` too."""

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
    """How far this replica has put its archive into a blob store: epochs up to ``epoch``; ``why`` it does not
    get on, empty when it does.
    """

    url: str
    epoch: int = 0
    snapshot_epoch: int = 0
    why: str = ""


class CheckState(StrEnum):
    """Of a check of the whole archive. Failed is one that came to no verdict."""

    NONE = "none"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class CheckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The newest check of the whole archive: epochs ``first`` to ``epoch`` were looked at, of those up to
    ``last``, and so many ``snapshots`` compared. ``why`` it failed.
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
    """What one replica holds. ``epoch`` is the newest that it has applied, ``spans`` what is on its disk: more
    than one means that something is missing in between.
    """

    replica_id: str
    cluster: str
    cluster_id: str
    log_id: str
    incarnations: tuple[Incarnation, ...]
    epoch: int
    trouble: str
    """Why it does not read the log any further, or not for certain; empty while it does."""
    spans: tuple[SpanAnswer, ...]
    size_bytes: int
    snapshots: tuple[SnapshotAnswer, ...]
    damaged: tuple[str, ...]
    filling: str = ""
    """What it is being given by others, in words."""
    store: StoreAnswer | None = None
    begins: int = 0
    """Epochs before this one were deleted from the archives of all; 0: none was."""


class Known(StrEnum):
    """Whether an epoch that a reader remembers is one of this log's."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"
    """The archive does not hold it, or not yet."""


class StartAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a reader gets to the newest epoch: by ``snapshot``, or without one by the records after its own.

    Those take about ``tail_bytes`` on this replica's disk, up to epoch ``last``; None when some are missing.
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
    """Why it reads the log no further; empty while it does."""
    begins: int = 0
    """Epochs before this one were deleted from the archives of all; 0: none was."""


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica can give back of the log: state ids that it knows, as hex digits by epoch, and from which
    epoch to which it has the image. ``nodes`` and ``replicas`` are the addresses of members and of catch-up
    replicas that the log has, by id.
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
    """The log goes on as ``log_id`` with its first ``epoch``, which stands at ``offset`` of the topic."""

    replica_id: str
    log_id: str
    epoch: int
    offset: int
    last_epoch: int
    known_epoch: int
    was_there: bool
    """Somebody else had recovered it before."""


class RecoverableAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """No known fact prevents a recovery. ``not_looked_at``: why the topic, which may have such a fact, was
    not read.
    """

    not_looked_at: str = ""
