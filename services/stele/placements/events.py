"""Rows of the table ``events``: made from a log's records in Spark's workers, read back as epochs. Pure.

The function that Spark runs gets the heads with it, so that it judges, decodes and encodes in one pass.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from stele.log.start import Start
from stele.placements.chain import FRESH, Head, Judge, Stray
from stele.placements.times import time_of

EPOCH: Final = "epoch"
FACT: Final = "fact"
HEAD: Final = "head"
STOPPED: Final = "stopped"
SUMMARIES_STOPPED: Final = "summaries_stopped"
TOPIC_STOPPED: Final = "topic_stopped"
STRAY: Final = "stray"
SNAPSHOT: Final = "snapshot"
SNAPSHOT_FACT: Final = "snapshot_fact"

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
"""One table for nine kinds of rows; ids and digests are hex:

- ``epoch``: a winner, with the audit; ``fact_*`` are null.
- ``fact``: a winner's fact, numbered from 1, with the columns of its epoch; JSON as the log has it.
- ``head``: what the batch left: the last offset judged, the epoch, log and state id there, where the last
  winner lies and a digest of it, and how many records of other logs were skipped since the beginning.
- ``stray``: the first record of another log, ``log_id``, that made a batch look at the anchor.
- ``stopped``: ``reason`` says why the cluster does not go on past ``epoch``, and what to do;
  ``fact_kind`` is the class of the error.
- ``summaries_stopped``, ``topic_stopped``: the same of a cluster that goes on, but for the tables of what is
  true now, or for its topic of placements.
- ``snapshot``: the cluster goes on from here, since its log does not have the epochs before any more;
  ``fact_number`` counts the facts of the snapshot, each of which is a row ``snapshot_fact``.
"""
SPARK_SCHEMA: Final = ", ".join(
    f"{field.name} {'timestamp' if field.name == 'decided_at' else 'string' if field.type == _TEXT else 'long'}"
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
)
"""What ``evolve`` needs of one; behind the cluster in the order of ``_epoch_of``."""

Row = dict[str, Any]


class SnapshotRow(msgspec.Struct, frozen=True):
    """From where a cluster's epochs go on, and how many facts are true there."""

    epoch: int
    state_id: bytes
    facts: int


class NewRows(msgspec.Struct):
    """What a commit brings one cluster."""

    head: Head | None = None
    stopped: str = ""
    hole: bool = False
    """Stopped because records were not delivered, which may still be there."""
    elsewhere: bool = False
    """Stopped because the log goes on from a state that only a snapshot has."""
    stray: Stray | None = None
    snapshot: SnapshotRow | None = None
    """The newest one."""
    epochs: list[Epoch] = msgspec.field(default_factory=list)
    """Its winners, ascending: all that ``evolve`` needs of them."""


def judge(
    heads: Mapping[str, Head], stopped: frozenset[str], certain: Mapping[str, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow`` over (cluster, offset, value); a cluster's records in their order.

    ``certain``: see ``chain.Judge``.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if (
            not gc.get_freeze_count()
        ):  # a worker collects garbage after each batch, among all that it imported
            gc.freeze()
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
    found = {cluster: NewRows() for cluster in table["cluster"].unique().to_pylist()}
    kinds = table["row_kind"]
    few = pc.is_in(kinds, value_set=pa.array([HEAD, SNAPSHOT, STRAY, STOPPED]))
    for row in table.filter(few).to_pylist():
        _note(found[row["cluster"]], row)
    facts = _facts_of(table.filter(pc.equal(kinds, FACT)))
    epochs = table.filter(pc.equal(kinds, EPOCH))
    for cluster, number, *texts in sorted(_values(epochs, _OF_EPOCHS), key=itemgetter(0, 1)):
        found[cluster].epochs.append(_epoch_of(number, texts, facts.get((cluster, number), ())))
    return found


def _facts_of(rows: pa.Table) -> dict[tuple[str, int], tuple[AnyFact, ...]]:
    """By cluster and epoch, as they are numbered. They are most of a batch, so all are decoded at once."""
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
    """Rows of columns without nulls; numpy makes Python's values ten times as fast as Arrow."""
    return zip(*(rows[name].to_numpy().tolist() for name in names), strict=True)


def _note(mine: NewRows, row: Row) -> None:
    """A row that is neither an epoch nor a fact."""
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


def _place_in_time(head: Head) -> tuple[bytes, int]:
    """A log that was recovered in another topic begins with its first offsets; its id is greater."""
    return head.log_id, head.next_offset


def snapshot_rows(cluster: str, start: Start) -> pa.Table:
    """What has a cluster go on behind a snapshot: its facts, and the head."""
    image = start.image
    head = Head(image.log_id, image.epoch, image.state_id, start.next_offset, start.anchor)
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
    """What has the summaries, or the topic, of a cluster stay as they were before this image's."""
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
    """The image that rows ``snapshot_fact`` describe; None when they are not all there, each once."""
    numbered = sorted(rows, key=itemgetter("fact_number"))
    if [row["fact_number"] for row in numbered] != list(range(1, snapshot.facts + 1)):
        return None
    facts = (_fact.decode(row["fact_json"]) for row in numbered)
    return facts_to_image(facts, snapshot.epoch, snapshot.state_id)


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


def _epoch_of(number: int, texts: Sequence[str], facts: tuple[AnyFact, ...]) -> Epoch:
    prev_state_id, state_id, log_id, request_id, command = texts
    return Epoch(
        prev_state_id=bytes.fromhex(prev_state_id),
        state_id=bytes.fromhex(state_id),
        log_id=bytes.fromhex(log_id),
        epoch=number,
        request_id=request_id,
        command=command,
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


def _place(cluster: str, head: Head) -> Row:
    return {
        "cluster": cluster,
        "epoch": head.epoch,
        "state_id": head.state_id.hex(),
        "log_id": head.log_id.hex(),
    }


def _end_rows(cluster: str, judge: Judge) -> Iterator[Row]:
    head = judge.head
    row = _place(cluster, head)
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
