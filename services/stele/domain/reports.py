"""How orders stand: the newest report of each node's work, whoever ordered it and however often."""

import msgspec
from immutables import Map

from stele.domain.messages import Report, WorkKey
from stele.domain.names import ReportStatus


class ReceivedReport(msgspec.Struct, frozen=True):
    """The newest report of a piece of work, when it came, and when it last made progress (seconds)."""

    report: Report
    at_s: float
    progress_at_s: float
    furthest: tuple[int, int] = (0, 0)
    """The most progress that any try of it has made."""
    begun_anew: int = 0
    """How often it has begun anew since then, as after each crash of its node."""


class ReportTable(msgspec.Struct, frozen=True):
    """Newest report by work. Success is final whatever the term; late and doubled reports change nothing."""

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
            progress_at_s = known.progress_at_s if progress == before else now_s
            begun_anew = known.begun_anew + (progress < before)
            received = ReceivedReport(report, now_s, progress_at_s, known.furthest, begun_anew)
        return ReportTable(self.by_work.set(report.work(), received))

    def only(self, sessions: frozenset[str]) -> "ReportTable":
        """Forget the work of sessions that are not among these."""
        kept = {work: report for work, report in self.by_work.items() if work[2] in sessions}
        return self if len(kept) == len(self.by_work) else ReportTable(Map(kept))


def _newer(report: Report, known: Report) -> bool:
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
    """What only grows while an order is carried out."""
    return report.bytes_compared + report.bytes_done, report.bytes_done


def _rank(report: Report) -> int:
    return 0 if report.status is ReportStatus.RUNNING else 1
