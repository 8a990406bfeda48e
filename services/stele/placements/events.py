"""Rows of the table ``events``: made from a log's records in Spark's workers, read back as epochs. Pure.

The function that Spark runs gets the heads with it, so that it judges, decodes and encodes in one pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final

import msgspec
import pyarrow as pa

from stele.domain.facts import AnyFact, Epoch
from stele.log.chain import Anchor
from stele.log.errors import LogError, MissedRecordsError
from stele.placements.chain import FRESH, Head, Judge, Stray

EPOCH: Final = "epoch"
FACT: Final = "fact"
HEAD: Final = "head"
STOPPED: Final = "stopped"
STRAY: Final = "stray"

_TEXT: Final = pa.string()
SCHEMA: Final = pa.schema(
    [
        ("cluster", _TEXT),
        ("row_kind", _TEXT),
        ("epoch", pa.int64()),
        ("log_offset", pa.int64()),
        ("log_id", _TEXT),
        ("state_id", _TEXT),
        ("prev_state_id", _TEXT),
        ("request_id", _TEXT),
        ("command", _TEXT),
        ("actor", _TEXT),
        ("reason", _TEXT),
        ("origin", _TEXT),
        ("decided_at", pa.timestamp("us", tz="UTC")),
        ("fact_number", pa.int64()),
        ("fact_kind", _TEXT),
        ("fact_json", _TEXT),
        ("anchor_offset", pa.int64()),
        ("anchor_digest", _TEXT),
        ("strays", pa.int64()),
    ]
)
"""One table for five kinds of rows; ids and digests are hex:

- ``epoch``: a winner, with the audit; ``fact_*`` are null.
- ``fact``: a winner's fact, numbered from 1, with the columns of its epoch; JSON as the log has it.
- ``head``: what the batch left: the last offset judged, the epoch, log and state id there, where the last
  winner lies and a digest of it, and how many records of other logs were skipped since the beginning.
- ``stray``: the first record of another log, ``log_id``, that made a batch look at the anchor.
- ``stopped``: ``reason`` says why the cluster does not go on past ``epoch``, and what to do;
  ``fact_kind`` is the class of the error.
"""
SPARK_SCHEMA: Final = ", ".join(
    f"{field.name} {'timestamp' if field.name == 'decided_at' else 'string' if field.type == _TEXT else 'long'}"
    for field in SCHEMA
)

_EPOCH_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_fact: Final[msgspec.json.Decoder[AnyFact]] = msgspec.json.Decoder(AnyFact)

Row = dict[str, Any]


class NewRows(msgspec.Struct):
    """What a commit brings one cluster."""

    head: Head | None = None
    stopped: str = ""
    hole: bool = False
    """Stopped because records were not delivered, which may still be there."""
    stray: Stray | None = None
    epochs: list[Epoch] = msgspec.field(default_factory=list)
    """Its winners, ascending: all that ``evolve`` needs of them."""


def judge(
    heads: Mapping[str, Head], stopped: frozenset[str], certain: Mapping[str, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow`` over (cluster, offset, value); a cluster's records in their order.

    ``certain``: see ``chain.Judge``.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        judges: dict[str, Judge] = {}
        for batch in batches:
            rows: list[Row] = []
            columns = (batch.column(name).to_pylist() for name in ("cluster", "offset", "value"))
            for cluster, offset, value in zip(*columns, strict=True):
                if cluster in stopped:
                    continue
                if cluster not in judges:
                    judges[cluster] = Judge(heads.get(cluster, FRESH), certain.get(cluster, 0))
                epoch = judges[cluster].offer(offset, value or b"")
                if epoch is not None:
                    rows.extend(_epoch_rows(cluster, offset, epoch))
            yield _to_arrow(rows)
        yield _to_arrow([row for name in sorted(judges) for row in _end_rows(name, judges[name])])

    return run


def new_rows(table: pa.Table) -> dict[str, NewRows]:
    """What rows of ``events`` bring each cluster."""
    found: dict[str, NewRows] = {}
    epochs: dict[tuple[str, int], Row] = {}
    facts: dict[tuple[str, int], list[tuple[int, AnyFact]]] = {}
    for row in table.to_pylist():
        cluster, kind = row["cluster"], row["row_kind"]
        mine = found.setdefault(cluster, NewRows())
        if kind == EPOCH:
            epochs[cluster, row["epoch"]] = row
        elif kind == FACT:
            fact = _fact.decode(row["fact_json"])
            facts.setdefault((cluster, row["epoch"]), []).append((row["fact_number"], fact))
        elif kind == HEAD:
            head = head_of(row)
            if mine.head is None or head.next_offset > mine.head.next_offset:
                mine.head = head
        elif kind == STRAY:
            mine.stray = Stray(row["log_offset"], bytes.fromhex(row["log_id"]))
        elif kind == STOPPED:
            mine.stopped = row["reason"]
            mine.hole = row["fact_kind"] == MissedRecordsError.__name__
    for key in sorted(epochs):
        numbered = sorted(facts.get(key, ()), key=itemgetter(0))
        found[key[0]].epochs.append(_epoch_of(epochs[key], tuple(fact for _, fact in numbered)))
    return found


def head_of(row: Row) -> Head:
    offset, digest = row["anchor_offset"], row["anchor_digest"]
    return Head(
        log_id=bytes.fromhex(row["log_id"]),
        epoch=row["epoch"],
        state_id=bytes.fromhex(row["state_id"]),
        next_offset=row["log_offset"] + 1,
        anchor=None if offset is None else Anchor(offset, bytes.fromhex(digest)),
        strays=row["strays"],
    )


def _epoch_of(row: Row, facts: tuple[AnyFact, ...]) -> Epoch:
    return Epoch(
        prev_state_id=bytes.fromhex(row["prev_state_id"]),
        state_id=bytes.fromhex(row["state_id"]),
        log_id=bytes.fromhex(row["log_id"]),
        epoch=row["epoch"],
        request_id=row["request_id"],
        command=row["command"],
        facts=facts,
    )


def _epoch_rows(cluster: str, offset: int, epoch: Epoch) -> Iterator[Row]:
    shared: Row = {
        "cluster": cluster,
        "epoch": epoch.epoch,
        "log_offset": offset,
        "log_id": epoch.log_id.hex(),
        "state_id": epoch.state_id.hex(),
        "prev_state_id": epoch.prev_state_id.hex(),
        "request_id": epoch.request_id,
        "command": epoch.command,
        "actor": epoch.actor,
        "reason": epoch.reason,
        "origin": epoch.origin,
        "decided_at": _EPOCH_ZERO + timedelta(milliseconds=epoch.at_ms),
    }
    yield {**shared, "row_kind": EPOCH}
    for number, fact in enumerate(epoch.facts, start=1):
        yield {
            **shared,
            "row_kind": FACT,
            "fact_number": number,
            "fact_kind": type(fact).__name__,
            "fact_json": msgspec.json.encode(fact).decode(),
        }


def _end_rows(cluster: str, judge: Judge) -> Iterator[Row]:
    head = judge.head
    row: Row = {
        "cluster": cluster,
        "epoch": head.epoch,
        "state_id": head.state_id.hex(),
        "log_id": head.log_id.hex(),
    }
    if head != judge.start:
        yield {**row, **_head_cells(head)}
    if judge.stray is not None:
        stray = {"log_offset": judge.stray.offset, "log_id": judge.stray.log_id.hex()}
        yield {**row, "row_kind": STRAY, **stray}
    if judge.stopped is not None:
        yield {**row, **_stopped_cells(judge.stopped)}


def _head_cells(head: Head) -> Row:
    return {
        "row_kind": HEAD,
        "log_offset": head.next_offset - 1,
        "anchor_offset": None if head.anchor is None else head.anchor.offset,
        "anchor_digest": None if head.anchor is None else head.anchor.digest.hex(),
        "strays": head.strays,
    }


def _stopped_cells(error: LogError) -> Row:
    return {
        "row_kind": STOPPED,
        "log_offset": error.offset,
        "reason": str(error),
        "fact_kind": type(error).__name__,
    }


def _to_arrow(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
