"""What ``GET /v1/progress`` shows: how far the operation is, how fast it goes, and who holds it up."""

from typing import Final

import msgspec

from stele.domain.acks import Blocker
from stele.domain.image import Image
from stele.domain.reports import Heard, ReportTable

WINDOW_S: Final = 10.0
"""The rate is measured over this time: long enough to be steady, short enough to follow."""


class NodeProgress(msgspec.Struct, frozen=True):
    """One node's newest report of the work of the present version."""

    kind: str
    status: str
    bytes_done: int
    bytes_total: int
    keys_done: int
    error: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """``eta_s`` is None while the rate is unknown; ``silent_for_s`` of a blocker, when never heard."""

    term: int
    active: bool
    waiting_for: str
    blockers: tuple[Blocker, ...]
    request_id: str
    transition_state: str
    nodes: dict[str, NodeProgress]
    bytes_done: int
    bytes_total: int
    bytes_per_s: float | None
    eta_s: float | None


class Rate(msgspec.Struct, frozen=True):
    """Sums of bytes done at different times of one version, as (seconds, bytes), oldest first."""

    version: int = 0
    samples: tuple[tuple[float, int], ...] = ()

    def with_sample(self, version: int, now_s: float, bytes_done: int) -> "Rate":
        """One more sample. Those older than the window go, but for the newest of them."""
        if version != self.version:
            return Rate(version, ((now_s, bytes_done),))
        begin_s = now_s - WINDOW_S
        old = [sample for sample in self.samples if sample[0] <= begin_s]
        kept = [sample for sample in self.samples if sample[0] > begin_s]
        return Rate(version, (*old[-1:], *kept, (now_s, bytes_done)))

    def bytes_per_s(self) -> float | None:
        """None until two samples at different times are there, and when nothing moved."""
        if len(self.samples) < 2:
            return None
        (first_s, first), (last_s, last) = self.samples[0], self.samples[-1]
        moved = last - first
        return moved / (last_s - first_s) if moved > 0 and last_s > first_s else None


def work_now(image: Image, reports: ReportTable) -> dict[str, Heard]:
    """Newest report of each node about the work of the present version and session, by node id."""
    topology = image.topology.topology
    return {
        node_id: heard
        for (node_id, _, version, session), heard in sorted(reports.by_work.items())
        if version == topology.version and session == topology.session
    }


def bytes_done(image: Image, reports: ReportTable) -> int:
    return sum(heard.report.bytes_done for heard in work_now(image, reports).values())


def progress_of(
    image: Image,
    reports: ReportTable,
    rate: Rate,
    *,
    term: int,
    active: bool,
    waiting_for: str,
    blockers: tuple[Blocker, ...],
) -> Progress:
    """How things stand. The sums are over the nodes that have reported."""
    found = work_now(image, reports)
    operation, topology = image.topology.operation, image.topology.topology
    total = sum(heard.report.bytes_total for heard in found.values())
    done = sum(heard.report.bytes_done for heard in found.values())
    bytes_per_s = rate.bytes_per_s() if rate.version == topology.version else None
    return Progress(
        term=term,
        active=active,
        waiting_for=waiting_for,
        blockers=blockers,
        request_id=operation.request_id if operation is not None else "",
        transition_state=topology.transition_state,
        nodes={node_id: _node_progress(heard) for node_id, heard in found.items()},
        bytes_done=done,
        bytes_total=total,
        bytes_per_s=bytes_per_s,
        eta_s=_eta_s(total - done, bytes_per_s) if found else None,
    )


def _eta_s(missing_bytes: int, bytes_per_s: float | None) -> float | None:
    if missing_bytes <= 0:
        return 0.0
    return None if bytes_per_s is None else missing_bytes / bytes_per_s


def _node_progress(heard: Heard) -> NodeProgress:
    report = heard.report
    return NodeProgress(
        kind=report.kind,
        status=report.status,
        bytes_done=report.bytes_done,
        bytes_total=report.bytes_total,
        keys_done=report.keys_done,
        error=report.error,
    )
