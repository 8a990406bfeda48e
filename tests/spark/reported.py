"""Reports of the streams of a random log, as nodes send them, and an independent sum of moved bytes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stele.domain.image import Image
from stele.domain.messages import Report, StreamedFrom
from stele.domain.names import OrderKind, ReportStatus
from stele.domain.topology.operations.table import OPERATIONS
from stele.log.codec import decode_report, encode_report
from stele.placements.reports import DECODED, decode
from tests.spark.histories import images

AT_MS = 1_700_000_000_000


class Attempt(msgspec.Struct):
    """One run of an order, with the final bytes of each source."""

    session: str
    node_id: str
    gives: dict[str, int]
    fails: bool


def sessions(log: tuple[bytes, ...]) -> dict[str, tuple[Image, list[str]]]:
    """Return the image that opened each session, and the receivers, by session."""
    found: dict[str, tuple[Image, list[str]]] = {}
    for image in images(log)[1:]:
        for transition in image.topology.open():
            state = OPERATIONS[transition.kind].states[transition.state]
            if state.streams and transition.plans and transition.session not in found:
                receivers = OPERATIONS[transition.kind].receiving(image, transition)
                found[transition.session] = image, receivers
    return found


def attempts(log: tuple[bytes, ...], seed: int) -> list[Attempt]:
    """Return attempts of each stream: some that failed or were killed, and a last one that succeeded."""
    chance = random.Random(seed)
    found = []
    for session, (image, receivers) in sessions(log).items():
        members = sorted(image.membership.nodes)
        for node_id in receivers:
            for left in range(chance.randrange(3), -1, -1):
                sources = chance.sample([n for n in members if n != node_id], 2)
                gives = {name: chance.randrange(1, 100_000) for name in sources}
                fails = bool(left) and chance.random() < 0.5
                found.append(Attempt(session, node_id, gives, fails))
    return found


def reports_of(attempt: Attempt, is_last: bool, says_sources: bool = True) -> list[Report]:
    """Return the reports of an attempt: at its start, in between, and at its end unless the node was killed."""
    made = []
    for part in range(4):
        status = ReportStatus.RUNNING
        if part == 3:
            if not (attempt.fails or is_last):
                continue
            status = ReportStatus.FAILED if attempt.fails else ReportStatus.SUCCESS
        given = {name: size * part // 3 for name, size in attempt.gives.items()}
        made.append(
            Report(
                node_id=attempt.node_id,
                term=1,
                index=part,
                kind=OrderKind.STREAM,
                session=attempt.session,
                request_id="",
                status=status,
                bytes_done=sum(given.values()),
                keys_done=sum(size // 100 for size in given.values()),
                error="it is full" if attempt.fails and part == 3 else "",
                at_ms=AT_MS + 1000 * part,
                sources=tuple(
                    StreamedFrom(node_id=n, bytes_done=b, keys_done=b // 100)
                    for n, b in given.items()
                )
                if says_sources
                else (),
            )
        )
    return made


def told(log: tuple[bytes, ...], seed: int, says_sources: bool = True) -> tuple[bytes, ...]:
    """Return the records of the topic, with duplicates, reports of other work, and invalid records."""
    chance = random.Random(seed)
    runs = attempts(log, seed)
    last = {(run.session, run.node_id): run for run in runs}
    found: list[bytes] = []
    for run in runs:
        reports = reports_of(run, last[run.session, run.node_id] is run, says_sources)
        for report in reports:
            found += [encode_report(report)] * chance.choice((1, 1, 2))
            found += chance.choice(((), (b"no report",), (encode_report(other(report)),)))
    return tuple(found)


def other(report: Report) -> Report:
    """Return a report of no stream, or of an unknown session."""
    if report.index % 2:
        return msgspec.structs.replace(report, kind=OrderKind.CLEANUP)
    return msgspec.structs.replace(report, session="it's nobody's")


def moved(log: tuple[bytes, ...], values: Sequence[bytes]) -> dict[tuple[str, str, str], int]:
    """Return bytes by session, source and receiver: the maximum of each attempt, summed over attempts. An
    attempt begins with a report of zero.
    """
    known = sessions(log)
    most: dict[tuple[str, str], list[dict[str, int]]] = defaultdict(list)
    for value in values:
        if not value.startswith(b"\xc3\x01"):
            continue
        report = decode_report(value)
        if report.kind is not OrderKind.STREAM or report.session not in known:
            continue
        runs = most[report.session, report.node_id]
        begins = not report.bytes_done and not (runs and not any(runs[-1].values()))
        if begins:
            runs.append({})
        for source in report.sources:
            runs[-1][source.node_id] = max(runs[-1].get(source.node_id, 0), source.bytes_done)
    totals: dict[tuple[str, str, str], int] = defaultdict(int)
    for (session, node_id), runs in most.items():
        for run in runs:
            for name, size in run.items():
                totals[session, name, node_id] += size
    return dict(totals)


def held(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str, str], int]:
    """Return the same sums from rows of the table, each of which must be unique."""
    found = {
        (row["session"], row["from_node"], row["to_node"]): int(row["bytes_moved"]) for row in rows
    }
    assert len(found) == len(rows)
    return found


def decoded(values: Sequence[bytes], first: int = 0, cluster: str = "c") -> pa.Table:
    """Return records of a topic as Spark's workers decode them."""
    columns = {
        "cluster": pa.array([cluster] * len(values), pa.string()),
        "offset": pa.array([*range(first, first + len(values))], pa.int64()),
        "value": pa.array([*values], pa.binary()),
    }
    return pa.Table.from_batches(decode([pa.RecordBatch.from_pydict(columns)]), schema=DECODED)
