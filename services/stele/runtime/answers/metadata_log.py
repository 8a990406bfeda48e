"""Answers of metadata-log, and its requests with a command.

Every answer about the state has its epoch and state id (32 hex digits). A page has at most
``limit`` rows. ``next_cursor`` requests the next page of the same epoch, and is empty in the last
page.
"""

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from stele.domain.commands import (
    AnyCommand,
    Envelope,
    Outcome,
    Rejection,
    command_name,
)
from stele.domain.epoch_stats import EpochStats
from stele.domain.model.archive import (
    AgreedSnapshot,
    ArchiveSummary,
    LogReader,
    ReplicaSummary,
    Trimming,
    Truncation,
)
from stele.domain.model.cdc import GenerationSummary
from stele.domain.model.commits import Commits
from stele.domain.model.membership import Node
from stele.domain.model.requests import Request
from stele.domain.model.schema import Balancing, Keyspace, Table
from stele.domain.model.schema_objects import (
    Aggregate,
    Function,
    SchemaVersion,
    TableSchema,
    UserType,
)
from stele.domain.model.services import Service
from stele.domain.model.table_snapshots import TableSnapshot
from stele.domain.model.topology import Coordinator, TransitionSummary, Versions
from stele.domain.ring.ranges import RangeReplicas
from stele.runtime.request_ids import new_request_id

if TYPE_CHECKING:
    from stele.runtime.callers import Caller


class AtEpoch(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    state_id: str


class CursorPage(AtEpoch, frozen=True, kw_only=True):
    next_cursor: str = ""


class NodesPage(CursorPage, frozen=True, kw_only=True):
    """Nodes by id, including those that left."""

    nodes: tuple[Node, ...]


class ServicesPage(CursorPage, frozen=True, kw_only=True):
    """Services by id."""

    services: tuple[Service, ...]


class RequestsPage(CursorPage, frozen=True, kw_only=True):
    """Topology requests by id.

    All that ended after ``since_epoch``, at ``since_ms`` (milliseconds since 1970), are included. 0:
    none was forgotten.
    """

    since_epoch: int = 0
    since_ms: int = 0
    requests: tuple[Request, ...]


class RequestAnswer(AtEpoch, frozen=True, kw_only=True):
    """One request, and the open transition that carries it out."""

    request: Request
    transition: TransitionSummary | None = None


class KeyspacesPage(CursorPage, frozen=True, kw_only=True):
    """Keyspaces by name, including those that are being dropped. ``balancing`` is that of the cluster."""

    balancing: Balancing = Balancing()
    keyspaces: tuple[Keyspace, ...]


class TablesPage(CursorPage, frozen=True, kw_only=True):
    """Tables by keyspace and name, including those that are being dropped.

    ``tablets`` is the number of tablets of each table that has them, by the table's id.
    """

    tablets: dict[str, int] = {}
    tables: tuple[Table, ...]


class SchemaAnswer(AtEpoch, frozen=True, kw_only=True):
    """All objects of the schema. ``schema_version`` is the last epoch that changed it, with its state id."""

    schema_version: SchemaVersion
    keyspaces: tuple[Keyspace, ...]
    tables: tuple[Table, ...]
    table_schemas: tuple[TableSchema, ...]
    """Columns of the tables that are not opaque, by the table's id."""
    types: tuple[UserType, ...]
    functions: tuple[Function, ...]
    aggregates: tuple[Aggregate, ...]


class PlacementsPage(CursorPage, frozen=True, kw_only=True):
    """Rows of one placement in ring order. ``keyspaces`` share it. ``ranges`` is the number of all rows."""

    placement: str
    keyspaces: tuple[str, ...]
    ranges: int
    rows: tuple[RangeReplicas, ...]


class TableSnapshotsPage(CursorPage, frozen=True, kw_only=True):
    """Snapshots of tables, by their tags."""

    table_snapshots: tuple[TableSnapshot, ...]


class CatchUpAnswer(AtEpoch, frozen=True, kw_only=True):
    """The archive: replicas and readers by id, and the snapshots of a majority of members, newest first.

    ``archive_replication`` is the number of members that is asked for. ``truncation`` is the limit of
    a truncation of the log at the time of the epoch.
    """

    archive_replication: str
    replicas: tuple[ReplicaSummary, ...]
    readers: tuple[LogReader, ...]
    agreed: tuple[AgreedSnapshot, ...]
    archive: ArchiveSummary
    truncation: Truncation
    trimming: Trimming = Trimming()
    """The limits of deletions at the beginning of the archive."""


class TabletRepairTime(msgspec.Struct, frozen=True):
    """The time of the last repair of a tablet, in milliseconds of the log's time; 0: never."""

    tablet: int
    repaired_ms: int


class RepairsPage(CursorPage, frozen=True, kw_only=True):
    """Tablets of one table by number, with their last repairs. ``tablets`` is the number of all."""

    table: str
    tablets: int
    repairs: tuple[TabletRepairTime, ...]


class TopologyAnswer(AtEpoch, frozen=True, kw_only=True, dict=True):
    """The cluster, its versions, open transitions, and the callers whose commands the log takes."""

    cluster: str
    cluster_id: str
    log_id: str
    topology: Versions
    coordinator: Coordinator
    transitions: tuple[TransitionSummary, ...]
    commits: Commits = Commits()

    @cached_property
    def by_request(self) -> dict[str, TransitionSummary]:
        """Open transitions by the requests that they carry out."""
        return {i: each for each in reversed(self.transitions) for i in each.request_ids()}


class PlannedRow(msgspec.Struct, frozen=True):
    """A range whose replicas a transition changes."""

    placement: str
    start: int
    end: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    old_shards: tuple[int, ...] = ()
    new_shards: tuple[int, ...] = ()


class TransitionPage(CursorPage, frozen=True, kw_only=True):
    """One open transition, and rows of its plan: by placement, in ring order."""

    transition: TransitionSummary
    rows: tuple[PlannedRow, ...]


class SettingsPage(CursorPage, frozen=True, kw_only=True):
    """Features that are enabled, and settings by name."""

    features: tuple[str, ...]
    settings: dict[str, str]


class CdcGenerationsPage(CursorPage, frozen=True, kw_only=True):
    """CDC generations in the order of their creation. Those that are not committed have no time."""

    cdc_generations: tuple[GenerationSummary, ...]


class CdcStream(msgspec.Struct, frozen=True):
    """The stream of the range that ends with token ``end``. Its id has 32 hex digits."""

    end: int
    stream_id: str


class CdcStreamsPage(CursorPage, frozen=True, kw_only=True):
    """Streams of one CDC generation, in ring order."""

    generation: GenerationSummary
    streams: tuple[CdcStream, ...]


class StatsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the epochs that this call examined."""

    newest: int
    next_from: int
    """``from`` of the next call; 0: all epochs were examined."""
    losers: int
    """Number of records that lost their epoch, among those that this process has read."""
    strays: int
    """Number of records of other logs, counted in the same way."""
    stats: EpochStats
    begins: int = 0
    """Epochs up to this one are not kept; 0: all are kept."""
    stores: tuple[str, ...] = ()
    """Stores that may have epochs that are not kept."""


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command with its actor and reason. Without ``request_id`` the service creates one.

    Send your own request id, a UUID of version 7, to retry after a time-out: all requests with one id
    take effect once. A retry without one is another request.
    """

    command: AnyCommand
    request_id: str = ""
    actor: str = ""
    reason: str = ""
    origin: str = ""
    log_id: str = ""

    def envelope(self, horizon_ms: int, caller: "Caller | None" = None) -> Envelope:
        """Return the envelope. A created id is newer than the log's horizon.

        Raises HttpError if ``caller`` is known and may not send the command.
        """
        if caller is not None:
            caller.check(command_name(self.command))
        return Envelope(
            request_id=self.request_id or new_request_id(horizon_ms=horizon_ms),
            command=self.command,
            actor=self.actor if caller is None else caller.actor(self.actor),
            reason=self.reason,
            origin=self.origin or "http",
            log_id=self.log_id,
        )


class OutcomeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command: applied as ``epoch``, or rejected at ``epoch``."""

    request_id: str
    applied: bool
    epoch: int
    state_id: str
    rejection: Rejection | None = None
    log_id: str = ""


def outcome_answer(outcome: Outcome) -> OutcomeAnswer:
    return OutcomeAnswer(
        request_id=outcome.request_id,
        applied=outcome.applied,
        epoch=outcome.epoch,
        state_id=outcome.state_id.hex(),
        rejection=outcome.rejection,
        log_id=outcome.log_id.hex(),
    )
