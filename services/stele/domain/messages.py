"""Messages that coordinator, balancer and nodes exchange beside the log.

Each may be lost, repeated or late. Only the log decides, and senders repeat what is missing. Each
carries ``log_id``, and receivers ignore messages of another log (docs/design.md, rules 13 and 46).
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

import msgspec
from immutables import Map

from stele.domain.names import OrderKind, ReportStatus
from stele.domain.ring.ranges import RangeReplicas

WorkKey = tuple[str, OrderKind, str]
"""Node, kind and session. Two orders with equal keys are the same work.

The version is no part of the key, because rounds elsewhere change it while the work runs.
"""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Work that the coordinator of ``term`` orders from a node.

    The node first reads the log up to ``epoch``. ``session`` is the transition's, or a node's own
    for a cleanup. A node refuses older terms and indices that it has seen. It joins an order of the
    same work that is running already, or answers again with its result.
    """

    node_id: str
    term: int
    index: int
    kind: OrderKind
    epoch: int
    session: str
    request_id: str = ""
    log_id: bytes = b""

    def work(self) -> WorkKey:
        return self.node_id, self.kind, self.session


class StreamedFrom(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one source: bytes and keys sent, and bytes that both nodes had.

    ``bytes_compared`` were not streamed because this node has the same data.
    """

    node_id: str
    bytes_done: int = 0
    keys_done: int = 0
    bytes_compared: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Result or progress of an order; bytes and keys count the order's own work.

    ``bytes_compared`` were not streamed because this node has the same data. ``manifest`` is the
    hash of the files that it has written for a snapshot. ``sources`` is the progress of a stream by
    source, once the feature REPORT_SOURCES is enabled.
    """

    node_id: str
    term: int
    index: int
    kind: OrderKind
    session: str
    request_id: str
    status: ReportStatus
    bytes_done: int = 0
    bytes_total: int = 0
    keys_done: int = 0
    bytes_compared: int = 0
    error: str = ""
    at_ms: int = 0
    log_id: bytes = b""
    manifest: str = ""
    sources: tuple[StreamedFrom, ...] = ()

    def work(self) -> WorkKey:
        return self.node_id, self.kind, self.session


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat of a node: the epoch that it has applied, and what it still uses.

    ``boot_id`` is new at each start of the process and sorts after those of earlier starts.
    ``sequence`` continues over all starts, and a number on the node's disk is ahead of it. An older
    copy of the directory is recognized by that. ``oldest_version_in_use`` is the lowest topology
    version that any of its requests still holds, or its current version. ``sessions_in_use`` are
    the sessions with running work. ``host_id`` names the data directory that acknowledges. An ack
    with another host id than the node's row is ignored.
    """

    node_id: str
    boot_id: str
    sequence: int
    epoch: int
    version: int
    fence_version: int
    oldest_version_in_use: int
    sessions_in_use: tuple[str, ...] = ()
    at_ms: int = 0
    log_id: bytes = b""
    state_id: bytes = b""
    """State id of ``epoch``. An ack of another history does not count."""
    host_id: str = ""
    prepared: tuple[str, ...] = ()
    """Requests to split tables for which the node has divided its storage."""


UNKNOWN_RATE: Final = -1
"""Rate of a tablet that has not been counted for long enough."""


class TabletSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the tablets that a node has of a table, in ascending order, and their rates.

    ``tablet_count`` is that of the table's whole map at the report's epoch. Rates are operations
    per second. ``lower_half_per_s`` are the reads and writes in the lower half of each tablet's
    range, as a split divides it. A node that does not count leaves all rates empty.
    """

    data_id: str
    tablet_count: int
    tablets: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    reads_per_s: tuple[int, ...] = ()
    writes_per_s: tuple[int, ...] = ()
    lower_half_per_s: tuple[int, ...] = ()

    def rates(self) -> Iterator[tuple[int, int, int]]:
        """Yield reads, writes and those in the lower half of each tablet.

        Empty if the node does not count.
        """
        return zip(self.reads_per_s, self.writes_per_s, self.lower_half_per_s, strict=True)

    def flaw(self) -> str:
        """Return why the sizes are invalid; empty when they are valid."""
        known, last = self.tablets, -1
        if self.tablet_count < 1:
            return f"{self.data_id} has {self.tablet_count} tablets"
        if len(known) != len(self.sizes_bytes):
            return f"{len(known)} tablets of {self.data_id} have {len(self.sizes_bytes)} sizes"
        for tablet in known:
            # The ascending order also excludes a tablet that is listed twice.
            if not last < tablet < self.tablet_count:
                return (
                    f"tablet {tablet} of {self.tablet_count} of {self.data_id} comes after {last}"
                )
            last = tablet
        if min(self.sizes_bytes, default=0) < 0:
            return f"a tablet of {self.data_id} has less than nothing"
        return self._flaw_of_rates()

    def _flaw_of_rates(self) -> str:
        # Either all rates are missing, or each tablet has one of each kind.
        counted = {*map(len, (self.reads_per_s, self.writes_per_s, self.lower_half_per_s))}
        if counted not in ({0}, {len(self.tablets)}):
            return f"{len(self.tablets)} tablets of {self.data_id} have {sorted(counted)} rates"
        for reads, writes, lower in self.rates():
            unknown = reads == writes == lower == UNKNOWN_RATE
            if not unknown and (min(reads, writes) < 0 or not 0 <= lower <= reads + writes):
                which = f"a tablet of {self.data_id}"
                return f"of {reads} reads and {writes} writes of {which} {lower} are in a half"
        return ""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a node: the tablets that it serves reads of, and its disk.

    ``boot_id``, ``sequence`` and ``host_id`` are those of ``Ack``. ``epoch`` is the epoch whose
    tablet maps were used for the measurement.
    """

    node_id: str
    host_id: str
    boot_id: str
    sequence: int
    epoch: int
    at_ms: int
    disk_total_bytes: int
    disk_free_bytes: int
    tables: tuple[TabletSizes, ...] = ()
    log_id: bytes = b""

    def flaw(self) -> str:
        """Return why the load is invalid; empty when it is valid."""
        if not 0 <= self.disk_free_bytes <= self.disk_total_bytes:
            return f"{self.disk_free_bytes} of {self.disk_total_bytes} bytes are free"
        return next(filter(None, (table.flaw() for table in self.tables)), "")


class PlacementRow(msgspec.Struct, frozen=True, kw_only=True):
    """A range in the topic ``placements``.

    ``epoch`` and ``state_id`` (hex) are those of the next marker.
    """

    cluster: str
    placement: str
    range_start: int
    range_end: int
    read_replicas: tuple[str, ...]
    write_replicas: tuple[str, ...]
    other_replicas: tuple[str, ...]
    version: int
    version_before: int
    from_epoch: int
    shards: tuple[int, ...]
    other_shards: tuple[int, ...]
    epoch: int
    state_id: str

    @property
    def row(self) -> RangeReplicas:
        return RangeReplicas(
            self.range_start,
            self.range_end,
            self.read_replicas,
            self.write_replicas,
            self.version,
            self.version_before,
            self.other_replicas,
            self.shards,
            self.other_shards,
        )


class SchemaColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table, or a field of a type, whose id is 0 and whose kind is ``field``."""

    column_id: int
    name: str
    type: str
    kind: str
    order: str = ""


class SchemaObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the schema in the topic ``schema``.

    ``object_kind`` is keyspace, table, type, function or aggregate. ``epoch`` and ``state_id``
    (hex) are those of the next marker.
    """

    cluster: str
    object_kind: str
    object_id: str
    keyspace_name: str
    object_name: str
    columns: tuple[SchemaColumn, ...]
    base_table_id: str
    cql: str
    epoch: int
    state_id: str


class PlacementsMarker(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an epoch in the topics ``placements`` and ``schema``; ``state_id`` is hex.

    A reader that has reached it holds exactly the rows of this epoch.
    """

    cluster: str
    epoch: int
    state_id: str


# The state of orders: the newest report of each node's work, from any order for it.


class ReceivedReport(msgspec.Struct, frozen=True):
    """The newest report of some work, with the times of its arrival and last progress (seconds)."""

    report: Report
    at_s: float
    progress_at_s: float
    furthest: tuple[int, int] = (0, 0)
    """The greatest progress of any attempt."""
    restarts: int = 0
    """How often it has restarted since that progress, for example after a crash of its node."""


class ReportTable(msgspec.Struct, frozen=True, dict=True):
    """The newest report by work.

    Success is final in any term. Late and repeated reports change nothing.
    """

    by_work: Map[WorkKey, ReceivedReport] = Map()

    def with_report(self, report: Report, now_s: float) -> "ReportTable":
        known = self.by_work.get(report.work())
        if known is not None and not _newer(report, known.report):
            return self
        progress = _progress(report)
        if known is None or progress > known.furthest:
            received = ReceivedReport(report, now_s, now_s, progress)
        else:
            before = _progress(known.report)
            # Progress below the report before means that the node has started the work again.
            progress_at_s = known.progress_at_s if progress == before else now_s
            restarts = known.restarts + (progress < before)
            received = ReceivedReport(report, now_s, progress_at_s, known.furthest, restarts)
        return ReportTable(self.by_work.set(report.work(), received))

    def of_session(self, session: str) -> Mapping[str, ReceivedReport]:
        """Return each node's newest report on the work of a session, by node id, sorted."""
        return self._by_session.get(session, {}) if session else {}

    @cached_property
    def _by_session(self) -> dict[str, dict[str, ReceivedReport]]:
        found = dict[str, dict[str, ReceivedReport]]()
        for (node_id, _, session), received in sorted(
            self.by_work.items(), key=lambda item: item[0]
        ):
            found.setdefault(session, {})[node_id] = received
        return found

    def only(self, sessions: frozenset[str]) -> "ReportTable":
        """Return the table without the work of sessions that are not among these."""
        kept = {work: report for work, report in self.by_work.items() if work[2] in sessions}
        return self if len(kept) == len(self.by_work) else ReportTable(Map(kept))


def _newer(report: Report, known: Report) -> bool:
    # Success is final: a late report of progress must not reopen the work, and a late success
    # counts (docs/design.md, rule 44).
    if known.status is ReportStatus.SUCCESS:
        return False
    if report.status is ReportStatus.SUCCESS:
        return True
    return (report.term, report.index, *_progress(report), _rank(report)) > (
        known.term,
        known.index,
        *_progress(known),
        _rank(known),
    )


def _progress(report: Report) -> tuple[int, int]:
    """Return the numbers that only grow while an order is carried out."""
    return report.bytes_compared + report.bytes_done, report.bytes_done


def _rank(report: Report) -> int:
    return 0 if report.status is ReportStatus.RUNNING else 1
