"""Times for the tables, from numbers that any process may have written. Pure."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stele.domain.column import as_list, column_of
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.snapshot import facts_to_image, image_to_facts
from stele.log.chain import Anchor
from stele.log.errors import LogError, MissedRecordsError, NoBeginningError, RecoveredError
from stele.log.fold import Start
from stele.placements.columns import NUMBER, TEXT, TIME, columns
from stele.placements.fold import FRESH, EventsHead, RecordJudge, Stray

MOST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since 1970: Python has no later dates."""
_EPOCH_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(at_ms: int) -> datetime:
    """Return the nearest time from 1970 to 9999, so that a wrong clock causes no error."""
    return _EPOCH_ZERO + timedelta(milliseconds=min(max(0, at_ms), MOST_MS))


def ms_of(at: datetime) -> int:
    return (at - _EPOCH_ZERO) // timedelta(milliseconds=1)


# Rows of the table ``events``: made from log records in Spark workers, read back as epochs. Pure.
#
# The heads are passed to the function that Spark runs, so that it judges, decodes and encodes in
# one pass.


EPOCH: Final = "epoch"
FACT: Final = "fact"
HEAD: Final = "head"
STOPPED: Final = "stopped"
SUMMARIES_STOPPED: Final = "summaries_stopped"
TOPIC_STOPPED: Final = "topic_stopped"
STRAY: Final = "stray"
SNAPSHOT: Final = "snapshot"
SNAPSHOT_FACT: Final = "snapshot_fact"

SCHEMA: Final = pa.schema(
    columns(
        (TEXT, "cluster row_kind"),
        (NUMBER, "epoch log_offset"),
        (TEXT, "log_id state_id prev_state_id request_id command actor reason origin"),
        (TIME, "decided_at"),
        (NUMBER, "fact_number"),
        (TEXT, "fact_kind fact_json"),
        (NUMBER, "anchor_offset"),
        (TEXT, "anchor_digest"),
        (NUMBER, "strays"),
    )
)
"""One table for nine kinds of rows; ids and digests are hex:

- ``epoch``: a winner, with the audit; ``fact_*`` are null.
- ``fact``: a winner's fact, numbered from 1, with the columns of its epoch; JSON as in the log.
- ``head``: the end of a batch: the last offset judged, and the epoch, log and state id there. It
  also has the last winner's offset and digest, and the total number of skipped records of other
  logs.
- ``stray``: the first record of another log, ``log_id``, which made a batch look at the anchor.
- ``stopped``: ``reason`` is why the cluster does not continue past ``epoch``, and what to do.
  ``fact_kind`` is the class of the error.
- ``summaries_stopped``, ``topic_stopped``: the same for a cluster that continues, except for its
  summary tables, or for its topic of placements or schema.
- ``snapshot``: the cluster continues from here, since its log no longer has the epochs before.
  ``fact_number`` is the number of its facts. Each fact is a row ``snapshot_fact``.
"""
SPARK_SCHEMA: Final = ", ".join(
    f"{field.name} {'timestamp' if field.name == 'decided_at' else 'string' if field.type == TEXT else 'long'}"
    for field in SCHEMA
)

_ELSEWHERE: Final = (NoBeginningError.__name__, RecoveredError.__name__)
_fact: Final[msgspec.json.Decoder[AnyFact]] = msgspec.json.Decoder(AnyFact, dec_hook=column_of)
_facts: Final = msgspec.json.Decoder(list[AnyFact], dec_hook=column_of)
_OF_EPOCHS: Final = (
    "cluster",
    "epoch",
    "prev_state_id",
    "state_id",
    "log_id",
    "request_id",
    "command",
    "actor",
    "reason",
    "decided_at",
)
"""The columns that ``evolve`` and the audit need; after the cluster in the order of ``_epoch_of``."""

Row = dict[str, Any]


class SnapshotRow(msgspec.Struct, frozen=True):
    """The epoch after which a cluster's events continue, and the number of facts that hold
    there.
    """

    epoch: int
    state_id: bytes
    facts: int


class NewRows(msgspec.Struct):
    """The content of a commit for one cluster."""

    head: EventsHead | None = None
    stopped: str = ""
    hole: bool = False
    """Stopped because records were not delivered; they may still exist."""
    elsewhere: bool = False
    """Stopped because the log continues from a state that only a snapshot has."""
    stray: Stray | None = None
    snapshot: SnapshotRow | None = None
    """The newest snapshot."""
    epochs: list[Epoch] = msgspec.field(default_factory=list)
    """Its winners, ascending, with all that ``evolve`` needs."""


def judge(
    heads: Mapping[str, EventsHead], stopped: frozenset[str], certain: Mapping[str, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` over (cluster, offset, value), each cluster's
    records in order.

    ``certain``: see ``fold.RecordJudge``.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if (
            not gc.get_freeze_count()
        ):  # a worker collects garbage after each batch, including all imported modules
            gc.freeze()
        judges: dict[str, RecordJudge] = {}
        for batch in batches:
            rows: list[Row] = []
            columns = (batch.column(name).to_pylist() for name in ("cluster", "offset", "value"))
            for cluster, offset, value in zip(*columns, strict=True):
                if cluster in stopped:
                    continue
                if cluster not in judges:
                    judges[cluster] = RecordJudge(
                        heads.get(cluster, FRESH), certain.get(cluster, 0)
                    )
                epoch = judges[cluster].offer(offset, value or b"")
                if epoch is not None:
                    rows.extend(_epoch_rows(cluster, offset, epoch))
            yield _to_arrow(rows)
        yield _to_arrow([row for name in sorted(judges) for row in _end_rows(name, judges[name])])

    return run


def new_rows(table: pa.Table) -> dict[str, NewRows]:
    """Return the content of rows of ``events`` by cluster."""
    found = {cluster: NewRows() for cluster in table["cluster"].unique().to_pylist()}
    kinds = table["row_kind"]
    few = pc.is_in(kinds, value_set=pa.array([HEAD, SNAPSHOT, STRAY, STOPPED]))
    for row in table.filter(few).to_pylist():
        _note(found[row["cluster"]], row)
    facts = _facts_of(table.filter(pc.equal(kinds, FACT)))
    epochs = table.filter(pc.equal(kinds, EPOCH))
    for cluster, number, *cells in sorted(_values(epochs, _OF_EPOCHS), key=itemgetter(0, 1)):
        found[cluster].epochs.append(_epoch_of(number, cells, facts.get((cluster, number), ())))
    return found


def _facts_of(rows: pa.Table) -> dict[tuple[str, int], tuple[AnyFact, ...]]:
    """Return the facts by cluster and epoch, in order.

    They dominate a batch, so they are decoded at once.
    """
    texts = rows["fact_json"].to_numpy()
    facts = _facts.decode(f"[{','.join(texts)}]")
    found: dict[tuple[str, int], list[tuple[int, AnyFact]]] = {}
    places = _values(rows, ("cluster", "epoch", "fact_number"))
    for (cluster, epoch, number), fact in zip(places, facts, strict=True):
        found.setdefault((cluster, epoch), []).append((number, fact))
    return {
        key: tuple(fact for _, fact in sorted(numbered, key=itemgetter(0)))
        for key, numbered in found.items()
    }


def _values(rows: pa.Table, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of columns without nulls. numpy creates Python values ten times as fast as
    Arrow. A time is a number of microseconds since 1970.
    """
    columns = (rows[name] for name in names)
    plain = (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in columns)
    return zip(*(column.to_numpy().tolist() for column in plain), strict=True)


def _note(mine: NewRows, row: Row) -> None:
    """Add a row that is neither an epoch nor a fact."""
    kind = row["row_kind"]
    if kind == HEAD:
        head = head_of(row)
        if mine.head is None or _place_in_time(head) > _place_in_time(mine.head):
            mine.head = head
    elif kind == SNAPSHOT:
        made = SnapshotRow(row["epoch"], bytes.fromhex(row["state_id"]), row["fact_number"])
        if mine.snapshot is None or made.epoch > mine.snapshot.epoch:
            mine.snapshot = made
    elif kind == STRAY:
        mine.stray = Stray(row["log_offset"], bytes.fromhex(row["log_id"]))
    elif kind == STOPPED:
        mine.stopped = row["reason"]
        mine.hole = row["fact_kind"] == MissedRecordsError.__name__
        mine.elsewhere = row["fact_kind"] in _ELSEWHERE


def _place_in_time(head: EventsHead) -> tuple[bytes, int]:
    """Return a sort key.

    A recovered log in another topic starts at low offsets again, but its id is greater.
    """
    return head.log_id, head.next_offset


def snapshot_rows(cluster: str, start: Start) -> pa.Table:
    """Return the rows that let a cluster continue after a snapshot: its facts, and the head."""
    image = start.image
    head = EventsHead(image.log_id, image.epoch, image.state_id, start.next_offset, start.anchor)
    shared = _place(cluster, head) | {"log_offset": head.next_offset - 1}
    facts = [
        {**shared, "row_kind": SNAPSHOT_FACT, **_fact_cells(number, fact)}
        for number, fact in enumerate(image_to_facts(image), start=1)
    ]
    whole = {**shared, "row_kind": SNAPSHOT, "fact_number": len(facts)}
    return pa.Table.from_pylist([whole, *facts, {**shared, **_head_cells(head)}], schema=SCHEMA)


def stopped_row(
    row_kind: str, cluster: str, image: Image, error: Exception, reason: str
) -> pa.Table:
    """Return the row for a cluster whose summaries or topic remain as before this image."""
    row = {
        "cluster": cluster,
        "row_kind": row_kind,
        "epoch": image.epoch,
        "state_id": image.state_id.hex(),
        "log_id": image.log_id.hex(),
        "fact_kind": type(error).__name__,
        "reason": reason,
    }
    return pa.Table.from_pylist([row], schema=SCHEMA)


def image_of(snapshot: SnapshotRow, rows: Iterable[Row]) -> Image | None:
    """Return the image of rows ``snapshot_fact``; None unless each of them is present exactly
    once.
    """
    numbered = sorted(rows, key=itemgetter("fact_number"))
    if [row["fact_number"] for row in numbered] != list(range(1, snapshot.facts + 1)):
        return None
    facts = (_fact.decode(row["fact_json"]) for row in numbered)
    return facts_to_image(facts, snapshot.epoch, snapshot.state_id)


def head_of(row: Row) -> EventsHead:
    offset, digest = row["anchor_offset"], row["anchor_digest"]
    return EventsHead(
        log_id=bytes.fromhex(row["log_id"]),
        epoch=row["epoch"],
        state_id=bytes.fromhex(row["state_id"]),
        next_offset=row["log_offset"] + 1,
        anchor=None if offset is None else Anchor(offset, bytes.fromhex(digest)),
        strays=row["strays"],
    )


def _epoch_of(number: int, cells: Sequence[Any], facts: tuple[AnyFact, ...]) -> Epoch:
    prev_state_id, state_id, log_id, request_id, command, actor, reason, decided_us = cells
    return Epoch(
        prev_state_id=bytes.fromhex(prev_state_id),
        state_id=bytes.fromhex(state_id),
        log_id=bytes.fromhex(log_id),
        epoch=number,
        request_id=request_id,
        command=command,
        facts=facts,
        actor=actor,
        reason=reason,
        at_ms=decided_us // 1000,
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
        "decided_at": time_of(epoch.at_ms),
    }
    yield {**shared, "row_kind": EPOCH}
    for number, fact in enumerate(epoch.facts, start=1):
        yield {**shared, "row_kind": FACT, **_fact_cells(number, fact)}


def _fact_cells(number: int, fact: AnyFact) -> Row:
    return {
        "fact_number": number,
        "fact_kind": type(fact).__name__,
        "fact_json": msgspec.json.encode(fact, enc_hook=as_list).decode(),
    }


def _place(cluster: str, head: EventsHead) -> Row:
    return {
        "cluster": cluster,
        "epoch": head.epoch,
        "state_id": head.state_id.hex(),
        "log_id": head.log_id.hex(),
    }


def _end_rows(cluster: str, judge: RecordJudge) -> Iterator[Row]:
    head = judge.head
    row = _place(cluster, head)
    if head != judge.start:
        yield {**row, **_head_cells(head)}
    if judge.stray is not None:
        stray = {"log_offset": judge.stray.offset, "log_id": judge.stray.log_id.hex()}
        yield {**row, "row_kind": STRAY, **stray}
    if judge.stopped is not None:
        yield {**row, **_stopped_cells(judge.stopped)}


def _head_cells(head: EventsHead) -> Row:
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
