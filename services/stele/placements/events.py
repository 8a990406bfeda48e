"""Rows of the table ``events``: made from a log's records in Spark's workers, read back as changes. Pure.

The function that Spark runs gets the heads with it, so that it judges, decodes and encodes in one pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from stele.domain.facts import Epoch, PlacementChanged, PlacementDropped
from stele.log.errors import LogError
from stele.placements.chain import FRESH, Chain, Head, HoleError
from stele.placements.fold import EpochChanges

EPOCH: Final = "epoch"
FACT: Final = "fact"
HEAD: Final = "head"
STOPPED: Final = "stopped"

_TEXT: Final = pa.string()
SCHEMA: Final = pa.schema(
    [
        ("cluster", _TEXT),
        ("row_kind", _TEXT),
        ("epoch", pa.int64()),
        ("log_offset", pa.int64()),
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
    ]
)
"""One table for four kinds of rows:

- ``epoch``: a winner, with the audit; ``fact_*`` are null.
- ``fact``: a winner's fact, numbered from 1, with the columns of its epoch.
- ``head``: what the batch left: the last offset judged, the epoch and the state id there.
- ``stopped``: ``reason`` says why the cluster does not go on past ``epoch``, and what to do;
  ``fact_kind`` is the class of the error.
"""
SPARK_SCHEMA: Final = ", ".join(
    f"{field.name} {'timestamp' if field.name == 'decided_at' else 'string' if field.type == _TEXT else 'long'}"
    for field in SCHEMA
)

PLACEMENT_FACTS: Final = (PlacementChanged.__name__, PlacementDropped.__name__)
_EPOCH_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_fact: Final = msgspec.json.Decoder(PlacementChanged | PlacementDropped)

Row = dict[str, Any]


class NewRows(msgspec.Struct):
    """What a commit brings one cluster."""

    head: Head | None = None
    stopped: str = ""
    hole: bool = False
    """Stopped because records were not delivered, which may still be there."""
    epochs: list[EpochChanges] = msgspec.field(default_factory=list)
    """Its winners, ascending, with their changes of placements."""


def judge(
    heads: Mapping[str, Head], stopped: frozenset[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow`` over (cluster, offset, value); a cluster's records in their order."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chains: dict[str, Chain] = {}
        for batch in batches:
            rows: list[Row] = []
            columns = (batch.column(name).to_pylist() for name in ("cluster", "offset", "value"))
            for cluster, offset, value in zip(*columns, strict=True):
                if cluster in stopped:
                    continue
                if cluster not in chains:
                    chains[cluster] = Chain(heads.get(cluster, FRESH))
                epoch = chains[cluster].offer(offset, value or b"")
                if epoch is not None:
                    rows.extend(_epoch_rows(cluster, offset, epoch))
            yield _to_arrow(rows)
        yield _to_arrow([row for name in sorted(chains) for row in _end_rows(name, chains[name])])

    return run


def new_rows(table: pa.Table) -> dict[str, NewRows]:
    """What rows of ``events`` bring each cluster; facts other than placements' may be left out."""
    found: dict[str, NewRows] = {}
    changes: dict[tuple[str, int], list[tuple[int, PlacementChanged | PlacementDropped]]] = {}
    epochs: dict[tuple[str, int], str] = {}
    for row in table.to_pylist():
        cluster, kind = row["cluster"], row["row_kind"]
        mine = found.setdefault(cluster, NewRows())
        if kind == EPOCH:
            epochs[cluster, row["epoch"]] = row["state_id"]
        elif kind == FACT and row["fact_kind"] in PLACEMENT_FACTS:
            fact = _fact.decode(row["fact_json"])
            changes.setdefault((cluster, row["epoch"]), []).append((row["fact_number"], fact))
        elif kind == HEAD:
            head = head_of(row)
            if mine.head is None or head.next_offset > mine.head.next_offset:
                mine.head = head
        elif kind == STOPPED:
            mine.stopped = row["reason"]
            mine.hole = row["fact_kind"] == HoleError.__name__
    for (cluster, number), state_id in sorted(epochs.items()):
        numbered = sorted(changes.get((cluster, number), ()), key=lambda pair: pair[0])
        facts = tuple(fact for _, fact in numbered)
        found[cluster].epochs.append(EpochChanges(number, bytes.fromhex(state_id), facts))
    return found


def head_of(row: Row) -> Head:
    return Head(row["log_offset"] + 1, row["epoch"], bytes.fromhex(row["state_id"]))


def _epoch_rows(cluster: str, offset: int, epoch: Epoch) -> Iterator[Row]:
    shared: Row = {
        "cluster": cluster,
        "epoch": epoch.epoch,
        "log_offset": offset,
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


def _end_rows(cluster: str, chain: Chain) -> Iterator[Row]:
    head = chain.head
    row: Row = {"cluster": cluster, "epoch": head.epoch, "state_id": head.state_id.hex()}
    if head != chain.start:
        yield {**row, "row_kind": HEAD, "log_offset": head.next_offset - 1}
    if chain.stopped is not None:
        yield {**row, **_stopped(chain.stopped)}


def _stopped(error: LogError) -> Row:
    kind = type(error).__name__
    return {
        "row_kind": STOPPED,
        "log_offset": error.offset,
        "reason": str(error),
        "fact_kind": kind,
    }


def _to_arrow(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
