"""Reports of streams: decoded in Spark's workers, and added up by stream. Pure.

A report counts from the beginning of one attempt. An attempt is over when it failed. It is also
over when a number is below the previous one, because the node was restarted. The amount moved is
the sum of the attempts, in the order of the topic. Lost reports, repeated reports and the
boundaries of batches do not change it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from stele.domain.messages import Report, StreamedFrom
from stele.domain.names import OrderKind, ReportStatus
from stele.log.codec import DecodeError, decode_report
from stele.placements.columns import NUMBER, TEXT, TIME, columns
from stele.placements.events import MOST_MS, ms_of, time_of

STREAM: Final = "stream"
HEAD: Final = "head"
MAX_TEXT: Final = 500
"""Longest error text and node name, because a reporter may send any text."""
MAX_SOURCES: Final = 10_000
_MOST: Final = 2**63 - 1

DECODED: Final = pa.schema({"cluster": TEXT, "log_offset": NUMBER, "report_json": TEXT})
"""Output of the workers: each record's offset and its report.

The report is empty for one that is not of a stream, and null for an unreadable record.
"""
SPARK_SCHEMA: Final = "cluster string, log_offset long, report_json string"
SCHEMA: Final = pa.schema(
    columns(
        (TEXT, "cluster row_kind"),
        (NUMBER, "commit_number log_offset"),
        (TEXT, "topic_id"),
        (NUMBER, "unreadable"),
        (TEXT, "session node_id order_request_id report_status"),
        (NUMBER, "bytes_moved rows_moved bytes_compared attempts"),
        (TEXT, "error_text"),
        (TIME, "began_at reported_at"),
        (TEXT, "counted_json"),
    )
)
"""``row_kind`` is ``stream`` or ``head``.

``stream``: progress of a node's stream after the commit ``commit_number``; the newest one counts.
``head``: the last offset of the topic ``topic_id`` that is in these rows, and the number of
unreadable records before it. ``counted_json``: the amounts by source, and the numbers of the
current attempt.
"""


class Counted(msgspec.Struct, frozen=True):
    """Sums of finished attempts, and the newest numbers of the current one, in total and by
    source.
    """

    before: tuple[int, int, int] = (0, 0, 0)
    now: tuple[int, int, int] = (0, 0, 0)
    sources_before: dict[str, tuple[int, int, int]] = {}
    sources_now: dict[str, tuple[int, int, int]] = {}

    def totals(self) -> tuple[int, int, int]:
        """Return the bytes and rows that moved, and the bytes that were equal."""
        return _sum(self.before, self.now)

    def sources(self) -> dict[str, tuple[int, int, int]]:
        names = sorted({*self.sources_before, *self.sources_now})
        nothing = (0, 0, 0)
        return {
            name: _sum(self.sources_before.get(name, nothing), self.sources_now.get(name, nothing))
            for name in names
        }


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a node's stream."""

    session: str
    node_id: str
    request_id: str
    status: str
    counted: Counted
    attempts: int
    error: str
    began_ms: int
    reported_ms: int


class ReportsHead(msgspec.Struct, frozen=True):
    """How far the table has read a cluster's topic of reports."""

    next_offset: int = 0
    topic_id: str = ""
    unreadable: int = 0


FRESH: Final = ReportsHead()

_encode: Final = msgspec.json.Encoder().encode
_report: Final = msgspec.json.Decoder(Report)
_counted: Final = msgspec.json.Decoder(Counted)


def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode records; the function for ``mapInArrow`` over (cluster, offset, value)."""
    for batch in batches:
        texts = [_text_of(value or b"") for value in batch.column("value").to_pylist()]
        columns = [batch.column("cluster"), batch.column("offset"), pa.array(texts, TEXT)]
        yield pa.RecordBatch.from_arrays(columns, schema=DECODED)


def _text_of(value: bytes) -> str | None:
    try:
        report = decode_report(value)
    except DecodeError:
        return None
    if report.kind is not OrderKind.STREAM or not report.session or len(report.session) > MAX_TEXT:
        return ""
    # The log id is binary. It need not be compared: no other log has the session.
    short = msgspec.structs.replace(
        report,
        log_id=b"",
        node_id=report.node_id[:MAX_TEXT],
        request_id=report.request_id[:MAX_TEXT],
        error=report.error[:MAX_TEXT],
        sources=report.sources[:MAX_SOURCES],
    )
    return _encode(short).decode()


def reports_of(
    rows: pa.Table, heads: Mapping[str, ReportsHead]
) -> dict[str, list[tuple[int, Report | None, bool]]]:
    """Return the records above each head, by cluster and offset.

    Each has its offset, the report if it is one of a stream, and whether it was readable.
    """
    found: dict[str, list[tuple[int, Report | None, bool]]] = {}
    columns = (rows[name].to_pylist() for name in DECODED.names)
    for cluster, offset, text in sorted(
        zip(*columns, strict=True), key=lambda each: (each[0], each[1])
    ):
        if offset >= heads.get(cluster, FRESH).next_offset:
            report = _report.decode(text) if text else None
            found.setdefault(cluster, []).append((offset, report, text is not None))
    return found


def follow(known: Stream | None, report: Report) -> Stream:
    """Add one report to a stream."""
    now = _numbers(report)
    sources_now = {
        source.node_id[:MAX_TEXT]: _numbers(source) for source in report.sources if source.node_id
    }
    at_ms = min(max(0, report.at_ms), MOST_MS)
    if known is None:
        counted, attempts, began_ms = Counted(now=now, sources_now=sources_now), 1, at_ms
    elif (known.status, known.reported_ms, known.counted.now) == (str(report.status), at_ms, now):
        return known  # the same record twice
    else:
        counted, attempts, began_ms = known.counted, known.attempts, known.began_ms
        again = _is_again(known, now, sources_now)
        if again:
            attempts += 1
            counted = Counted(counted.totals(), now, counted.sources(), sources_now)
        else:
            counted = msgspec.structs.replace(
                counted, now=now, sources_now=counted.sources_now | sources_now
            )
    return Stream(
        session=report.session,
        node_id=report.node_id,
        request_id=report.request_id,
        status=str(report.status),
        counted=counted,
        attempts=attempts,
        error=report.error,
        began_ms=began_ms,
        reported_ms=at_ms,
    )


def _is_again(
    known: Stream, now: tuple[int, int, int], sources: Mapping[str, tuple[int, int, int]]
) -> bool:
    if known.status == ReportStatus.FAILED:
        return True
    before, old = known.counted.now, known.counted.sources_now
    return _fell(before, now) or any(_fell(old[n], sources[n]) for n in sources if n in old)


def _fell(before: tuple[int, int, int], now: tuple[int, int, int]) -> bool:
    return any(new < old for old, new in zip(before, now, strict=True))


def _numbers(told: Report | StreamedFrom) -> tuple[int, int, int]:
    return max(0, told.bytes_done), max(0, told.keys_done), max(0, told.bytes_compared)


def _sum(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return sums that fit into a column."""
    first, second, third = (min(_MOST, a + b) for a, b in zip(one, other, strict=True))
    return first, second, third


def stream_cells(cluster: str, stream: Stream, offset: int, number: int) -> dict[str, Any]:
    """Return a row of the table."""
    bytes_moved, rows_moved, compared = stream.counted.totals()
    return {
        "cluster": cluster,
        "row_kind": STREAM,
        "commit_number": number,
        "log_offset": offset,
        "session": stream.session,
        "node_id": stream.node_id,
        "order_request_id": stream.request_id,
        "report_status": stream.status,
        "bytes_moved": bytes_moved,
        "rows_moved": rows_moved,
        "bytes_compared": compared,
        "attempts": stream.attempts,
        "error_text": stream.error,
        "began_at": time_of(stream.began_ms),
        "reported_at": time_of(stream.reported_ms),
        "counted_json": _encode(stream.counted).decode(),
    }


def head_cells(cluster: str, head: ReportsHead, number: int) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "row_kind": HEAD,
        "commit_number": number,
        "log_offset": head.next_offset - 1,
        "topic_id": head.topic_id,
        "unreadable": head.unreadable,
    }


def stream_of(row: Mapping[str, Any]) -> Stream:
    return Stream(
        session=row["session"],
        node_id=row["node_id"],
        request_id=row["order_request_id"],
        status=row["report_status"],
        counted=_counted.decode(row["counted_json"]),
        attempts=row["attempts"],
        error=row["error_text"],
        began_ms=ms_of(row["began_at"]),
        reported_ms=ms_of(row["reported_at"]),
    )
