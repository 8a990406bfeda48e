"""Records that become epochs and rows, by the rule of the log, as in the fold of the services."""

import re
from collections.abc import Mapping

import msgspec
import pyarrow as pa
import pytest

from stele.domain.column import column_of
from stele.domain.commands import FoundCluster
from stele.domain.facts import AnyFact, Epoch
from stele.domain.snapshot import state_hash
from stele.log.chain import FROZEN_BYTES, Anchor, digest_of
from stele.log.codec import decode_epoch, encode_epoch
from stele.log.errors import (
    CorruptRecordError,
    LogError,
    LostWinnersError,
    MissedRecordsError,
    NoBeginningError,
    UnknownFeatureError,
    UnknownSchemaError,
)
from stele.log.fold import Start
from stele.placements.events import SCHEMA, image_of, judge, new_rows, snapshot_rows
from stele.placements.fold import FRESH, EventsHead, RecordJudge, Stray
from tests.domain.epochs import History
from tests.spark.histories import OTHER_LOG, images, losers, random_log, stray

SEEDS = (1, 2, 3)
ALL = 10**6
"""The anchor was checked after all records."""


def winners(log: tuple[bytes, ...]) -> list[Epoch]:
    judging = RecordJudge(FRESH, ALL)
    return [epoch for o, v in enumerate(log) if (epoch := judging.offer(o, v)) is not None]


@pytest.mark.parametrize("seed", SEEDS)
def test_judge_finds_the_winners_of_the_fold(seed: int) -> None:
    log, judging = random_log(seed), RecordJudge(FRESH, ALL)
    found = [judging.offer(offset, value) for offset, value in enumerate(log)]
    epochs = [epoch.epoch for epoch in found if epoch is not None]
    last = images(log)[-1]
    assert losers(log) > 5
    assert epochs == list(range(1, last.epoch + 1))
    place = max(offset for offset, epoch in enumerate(found) if epoch is not None)
    anchor = Anchor(place, digest_of(log[place]))
    assert judging.head == EventsHead(last.log_id, last.epoch, last.state_id, len(log), anchor, 2)


def arrow(log: tuple[bytes, ...], first: int = 0, cluster: str = "c") -> pa.RecordBatch:
    rows = [
        {"cluster": cluster, "offset": first + number, "value": value}
        for number, value in enumerate(log)
    ]
    schema = pa.schema([("cluster", pa.string()), ("offset", pa.int64()), ("value", pa.binary())])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def rows_of(
    heads: dict[str, EventsHead], *batches: pa.RecordBatch, certain: Mapping[str, int] = {"c": ALL}
) -> pa.Table:
    run = judge(heads, frozenset(), certain)
    return pa.Table.from_batches(run(batches), schema=SCHEMA)


@pytest.mark.parametrize("cut", [1, 17, 40])
def test_new_rows_do_not_depend_on_batch_boundaries(cut: int) -> None:
    log = random_log(1)
    whole = new_rows(rows_of({}, arrow(log)))["c"]
    first = new_rows(rows_of({}, arrow(log[:cut])))["c"]
    assert first.head is not None
    straddling = new_rows(rows_of({"c": first.head}, arrow(log[:30]), arrow(log[30:], 30)))["c"]
    assert [*first.epochs, *straddling.epochs] == whole.epochs
    assert straddling.head == whole.head


def test_judged_records_produce_no_rows() -> None:
    log = random_log(1)
    head = new_rows(rows_of({}, arrow(log)))["c"].head
    assert head is not None
    assert rows_of({"c": head}, arrow(log)).num_rows == 0


def test_every_fact_is_a_row_with_the_audit_data_of_its_epoch() -> None:
    log = random_log(2)
    rows = rows_of({}, arrow(log)).to_pylist()
    facts = [row for row in rows if row["row_kind"] == "fact"]
    expected = [(w.epoch, w.actor, type(f).__name__) for w in winners(log) for f in w.facts]
    assert [(row["epoch"], row["actor"], row["fact_kind"]) for row in facts] == expected
    kinds = {row["fact_kind"] for row in facts}
    assert {"NodeNumbered", "PlacementChanged", "PlacementDropped", "KeyspaceChanged"} <= kinds
    assert {"TransitionOpened", "TransitionMoved", "CommandRefused"} <= kinds
    again = [
        msgspec.json.decode(row["fact_json"], type=AnyFact, dec_hook=column_of) for row in facts
    ]
    assert again == [fact for winner in winners(log) for fact in winner.facts]


def test_stray_stops_its_cluster_until_the_anchor_is_checked() -> None:
    own = [value for value in random_log(1) if value != stray()]
    log = (*own[:5], stray(), *own[5:9])
    first = new_rows(rows_of({}, arrow(log), certain={}))["c"]
    assert first.stray == Stray(5, OTHER_LOG)
    assert first.head is not None
    assert (first.head.next_offset, first.head.strays, first.stopped) == (5, 0, "")
    again = new_rows(rows_of({"c": first.head}, arrow(log), certain={"c": 6}))["c"]
    assert again.stray is None
    assert again.head is not None
    assert (again.head.next_offset, again.head.strays) == (10, 1)
    assert [*first.epochs, *again.epochs] == new_rows(rows_of({}, arrow(log)))["c"].epochs


def test_log_without_a_founding_record_is_not_read() -> None:
    judging = RecordJudge(FRESH)
    assert judging.offer(0, random_log(1)[1]) is None
    assert isinstance(judging.stopped, NoBeginningError)
    assert (judging.stray, judging.head) == (None, FRESH)


def epoch_one(**more: object) -> Epoch:
    history = History()
    assert history.apply(FoundCluster("demo/1")) is None
    return msgspec.structs.replace(history.epochs[0], **more)


GOOD = encode_epoch(epoch_one())
UNKNOWN = b"\xc3\x01" + bytes(8) + GOOD[10:FROZEN_BYTES] + b"whatever"


@pytest.mark.parametrize(
    ("offset", "value", "error", "why"),
    [
        (5, GOOD, MissedRecordsError, "offset 0 should follow.*restore the topic or the table"),
        (0, GOOD[:60], CorruptRecordError, "has 60 bytes.*Restore the topic"),
        (0, GOOD[:95], CorruptRecordError, "break inside.*Restore the topic"),
        (0, GOOD + b"x", CorruptRecordError, "too many"),
        (0, b"", CorruptRecordError, "begins with nothing"),
        (0, encode_epoch(epoch_one(epoch=4)), CorruptRecordError, "epoch 4 where 1 follows"),
        (0, encode_epoch(epoch_one(required_features=("x",))), UnknownFeatureError, "needs x"),
        (0, UNKNOWN, UnknownSchemaError, "Upgrade this process"),
    ],
)
def test_judge_stops_at_unreadable_records_with_a_hint(
    offset: int, value: bytes, error: type[LogError], why: str
) -> None:
    judging = RecordJudge(FRESH, ALL)
    assert judging.offer(offset, value) is None
    assert isinstance(judging.stopped, error)
    assert re.search(why, str(judging.stopped))
    assert judging.head == FRESH
    assert judging.offer(0, GOOD) is None
    rows = rows_of({}, arrow((value,), offset))
    (row,) = rows.to_pylist()
    assert (row["row_kind"], row["fact_kind"]) == ("stopped", error.__name__)
    found = new_rows(rows)["c"]
    assert re.search(why, found.stopped)
    assert found.hole == (error is MissedRecordsError)


@pytest.mark.parametrize("at_ms", [2**63 - 1, 253_402_300_800_000, -(2**63)])
def test_extreme_writer_times_are_clamped_to_valid_dates(at_ms: int) -> None:
    odd = arrow((encode_epoch(epoch_one(at_ms=at_ms)),), 0, "odd")
    table = rows_of({}, odd, arrow(random_log(1), 0, "good"), certain={"good": ALL})
    found = new_rows(table)
    assert (found["odd"].stopped, [epoch.epoch for epoch in found["odd"].epochs]) == ("", [1])
    years = {
        r["decided_at"].year for r in table.to_pylist() if r["decided_at"] and r["cluster"] == "odd"
    }
    assert years == {1970 if at_ms < 0 else 9999}
    assert found["good"].epochs[-1].epoch == images(random_log(1))[-1].epoch


def test_record_that_proves_lost_winners_stops_with_a_hint() -> None:
    log = random_log(1)
    ahead = decode_epoch(log[0])
    state = bytes(15) + b"x"
    proof = msgspec.structs.replace(ahead, witness_epoch=99, witness_state_id=state)
    judging = RecordJudge(FRESH, ALL)
    judging.offer(0, log[0])
    judging.offer(1, encode_epoch(proof))
    assert isinstance(judging.stopped, LostWinnersError)
    assert "Restore the topic" in str(judging.stopped)
    assert judging.head.next_offset == 1


def test_body_of_a_loser_is_not_decoded() -> None:
    judging = RecordJudge(FRESH)
    assert judging.offer(0, GOOD) == epoch_one()
    assert judging.offer(1, UNKNOWN) is None  # its prev_state_id is no longer the newest
    assert judging.offer(2, GOOD[:FROZEN_BYTES]) is None
    assert (judging.stopped, judging.head.next_offset) == (None, 3)


def test_failure_of_one_cluster_does_not_affect_others_in_the_batch() -> None:
    log = random_log(1)
    bad = arrow((GOOD[:60],), 0, "bad")
    found = new_rows(rows_of({}, bad, arrow(log, 0, "good"), certain={"good": ALL}))
    assert found["bad"].stopped
    assert found["good"].epochs[-1].epoch == images(log)[-1].epoch


def test_rows_of_a_snapshot_give_its_image_and_next_head() -> None:
    log = random_log(1)
    image = images(log)[40]
    anchor = Anchor(47, digest_of(log[47]))
    rows = snapshot_rows("c", Start(image, 48, anchor))
    found = new_rows(rows)["c"]
    assert found.head == EventsHead(image.log_id, 40, image.state_id, 48, anchor)
    assert found.epochs == []
    assert found.snapshot is not None
    facts = [row for row in rows.to_pylist() if row["row_kind"] == "snapshot_fact"]
    assert found.snapshot.facts == len(facts) > 10
    made = image_of(found.snapshot, reversed(facts))
    assert made is not None
    assert state_hash(made) == state_hash(image)
    assert (made.epoch, made.state_id, made.log_id) == (40, image.state_id, image.log_id)


def test_snapshot_with_a_missing_or_duplicate_row_is_rejected() -> None:
    image = images(random_log(1))[40]
    rows = snapshot_rows("c", Start(image, 48, Anchor(47, bytes(16))))
    whole = new_rows(rows)["c"].snapshot
    assert whole is not None
    facts = [row for row in rows.to_pylist() if row["row_kind"] == "snapshot_fact"]
    assert image_of(whole, facts[1:]) is None
    assert image_of(whole, [*facts, facts[3]]) is None
