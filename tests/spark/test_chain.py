"""Which records become epochs and rows: judged by first bytes, the same as the services' fold."""

import msgspec
import pyarrow as pa
import pytest

from stele.domain.facts import Epoch
from stele.domain.image import EMPTY
from stele.log.codec import decode_epoch, encode_epoch
from stele.log.errors import CorruptRecordError, LogError, UnknownFeatureError, UnknownSchemaError
from stele.placements.chain import FRESH, Chain, Head, HoleError
from stele.placements.events import SCHEMA, judge, new_rows
from tests.spark.histories import images, losers, random_log

SEEDS = (1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_chain_finds_the_winners_of_the_services_fold(seed: int) -> None:
    log, chain = random_log(seed), Chain(FRESH)
    found = [chain.offer(offset, value) for offset, value in enumerate(log)]
    epochs = [epoch.epoch for epoch in found if epoch is not None]
    last = images(log)[-1]
    assert losers(log) > 5
    assert epochs == list(range(1, last.epoch + 1))
    assert chain.head == Head(len(log), last.epoch, last.state_id)


def arrow(log: tuple[bytes, ...], first: int = 0, cluster: str = "c") -> pa.RecordBatch:
    rows = [
        {"cluster": cluster, "offset": first + number, "value": value}
        for number, value in enumerate(log)
    ]
    schema = pa.schema([("cluster", pa.string()), ("offset", pa.int64()), ("value", pa.binary())])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def rows_of(heads: dict[str, Head], *batches: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches(judge(heads, frozenset())(batches), schema=SCHEMA)


@pytest.mark.parametrize("cut", [1, 17, 40])
def test_rows_above_a_head_are_the_same_wherever_batches_are_cut(cut: int) -> None:
    log = random_log(1)
    whole = new_rows(rows_of({}, arrow(log)))["c"]
    first = new_rows(rows_of({}, arrow(log[:cut])))["c"]
    assert first.head is not None
    straddling = new_rows(rows_of({"c": first.head}, arrow(log[:30]), arrow(log[30:], 30)))["c"]
    assert [*first.epochs, *straddling.epochs] == whole.epochs
    assert straddling.head == whole.head


def test_records_that_were_judged_before_leave_no_row() -> None:
    log = random_log(1)
    head = new_rows(rows_of({}, arrow(log)))["c"].head
    assert head is not None
    assert rows_of({"c": head}, arrow(log)).num_rows == 0


def test_every_fact_is_a_row_with_its_epochs_audit() -> None:
    log = random_log(2)
    rows = rows_of({}, arrow(log)).to_pylist()
    chain = Chain(FRESH)
    winners = [e for o, v in enumerate(log) if (e := chain.offer(o, v)) is not None]
    facts = [row for row in rows if row["row_kind"] == "fact"]
    expected = [(w.epoch, w.actor, type(f).__name__) for w in winners for f in w.facts]
    assert [(row["epoch"], row["actor"], row["fact_kind"]) for row in facts] == expected
    kinds = {type(fact) for winner in winners for fact in winner.facts}
    assert len(kinds) > 3
    again = [msgspec.json.decode(r["fact_json"], type=_union(kinds)) for r in facts]
    assert again == [fact for winner in winners for fact in winner.facts]


def _union(kinds: set[type]) -> object:
    first, *rest = sorted(kinds, key=lambda kind: kind.__name__)
    found: object = first
    for kind in rest:
        found = found | kind  # type: ignore[operator]
    return found


def epoch_one(**more: object) -> Epoch:
    (first, *_) = random_log(1)
    return msgspec.structs.replace(decode_epoch(first), **more)


GOOD = encode_epoch(epoch_one())


@pytest.mark.parametrize(
    ("offset", "value", "error", "why"),
    [
        (5, GOOD, HoleError, "records 0 to 4 were not delivered"),
        (0, GOOD[:60], CorruptRecordError, "break inside"),
        (0, GOOD + b"x", CorruptRecordError, "too many"),
        (0, encode_epoch(epoch_one(epoch=4)), CorruptRecordError, "epoch 4 where 1 follows"),
        (0, encode_epoch(epoch_one(required_features=("x",))), UnknownFeatureError, "needs x"),
        (0, b"\xc3\x01" + bytes(90), UnknownSchemaError, "Upgrade this process"),
    ],
)
def test_a_chain_stops_where_every_reader_must_stop_and_says_what_to_do(
    offset: int, value: bytes, error: type[LogError], why: str
) -> None:
    chain = Chain(FRESH)
    assert chain.offer(offset, value) is None
    assert isinstance(chain.stopped, error)
    assert why in str(chain.stopped)
    assert chain.head == FRESH
    assert chain.offer(0, GOOD) is None
    (row,) = rows_of({}, arrow((value,), offset)).to_pylist()
    assert (row["row_kind"], row["fact_kind"]) == ("stopped", error.__name__)
    found = new_rows(rows_of({}, arrow((value,), offset)))["c"]
    assert why in found.stopped
    assert found.hole == (error is HoleError)


def test_a_loser_may_be_anything() -> None:
    chain = Chain(FRESH)
    losing = [b"", b"\xc3\x01", bytes(9), b"\xc3\x01" + bytes(8) + b"x" * 80]
    assert [chain.offer(offset, value) for offset, value in enumerate(losing)] == [None] * 4
    assert chain.offer(4, GOOD) == epoch_one()
    assert EMPTY.epoch == 0


def test_a_clusters_trouble_leaves_the_others_of_its_batch_alone() -> None:
    log = random_log(1)
    bad = rows_of({}, arrow((GOOD[:60],), 0, "bad"), arrow(log, 0, "good"))
    found = new_rows(bad)
    assert found["bad"].stopped
    assert found["good"].epochs[-1].epoch == images(log)[-1].epoch
