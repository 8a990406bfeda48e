"""The state of orders: the newest report of each node's work, from any order for it."""

from collections.abc import Mapping
from functools import cached_property

import msgspec
from immutables import Map

from stele.domain.messages import Report, WorkKey
from stele.domain.names import ReportStatus


class ReceivedReport(msgspec.Struct, frozen=True):
    """The newest report of some work, with the times of its arrival and last progress (seconds)."""

    report: Report
    at_s: float
    progress_at_s: float
    furthest: tuple[int, int] = (0, 0)
    """The greatest progress of any attempt."""
    begun_anew: int = 0
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
            begun_anew = known.begun_anew + (progress < before)
            received = ReceivedReport(report, now_s, progress_at_s, known.furthest, begun_anew)
        return ReportTable(self.by_work.set(report.work(), received))

    def of_session(self, session: str) -> Mapping[str, ReceivedReport]:
        """Return each node's newest report on the work of a session, by node id, sorted."""
        return self._by_session.get(session, {}) if session else {}

    @cached_property
    def _by_session(self) -> dict[str, dict[str, ReceivedReport]]:
        found = dict[str, dict[str, ReceivedReport]]()
        for (node_id, _, session), received in sorted(self.by_work.items(), key=_work):
            found.setdefault(session, {})[node_id] = received
        return found

    def only(self, sessions: frozenset[str]) -> "ReportTable":
        """Return the table without the work of sessions that are not among these."""
        kept = {work: report for work, report in self.by_work.items() if work[2] in sessions}
        return self if len(kept) == len(self.by_work) else ReportTable(Map(kept))


def _work(item: tuple[WorkKey, ReceivedReport]) -> WorkKey:
    return item[0]


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
