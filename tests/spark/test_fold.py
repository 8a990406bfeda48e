"""The fold of rows, without Spark: it equals the image's placements, in batches of any size."""

import itertools
import random

import msgspec
import pytest

from stele.domain import facts
from stele.domain.image import Image
from stele.domain.placement_hash import placement_hash
from stele.domain.ring.ranges import Range, RangeReplicas
from stele.domain.ring.tokens import MIN_TOKEN
from stele.log.codec import decode_epoch
from stele.log.errors import CorruptRecordError, LogError, UnknownFeatureError
from stele.placements.fold import (
    FRESH,
    Change,
    ClusterFold,
    HeldRows,
    HistoryRow,
    LogRecord,
    TruncatedLogError,
)
from stele.placements.rows import decode_rows, encode_rows, rows_out
from tests.spark.histories import images, losers, random_log

SEEDS = (1, 2, 3)


def record_of(offset: int, value: bytes) -> LogRecord:
    epoch = decode_epoch(value)
    changes = [
        Change(fact.placement, removed=fact.removed, added=fact.added)
        if isinstance(fact, facts.PlacementChanged)
        else Change(fact.placement, dropped=True)
        for fact in epoch.facts
        if isinstance(fact, facts.PlacementChanged | facts.PlacementDropped)
    ]
    plain = {name: getattr(epoch, name) for name in ("epoch", "state_id", "request_id", "command")}
    return LogRecord(
        offset=offset, prev_state_id=epoch.prev_state_id, changes=tuple(changes), **plain
    )


class Tables:
    """Batches of any size, and the two tables that they leave, as dictionaries."""

    def __init__(self) -> None:
        self.place = FRESH
        self.state: dict[str, bytes] = {}
        self.history: dict[tuple[str, int, int], HistoryRow] = {}
        self.current: dict[tuple[str, int], RangeReplicas] = {}
        self.epochs: list[int] = []

    def batch(self, records: list[LogRecord]) -> ClusterFold:
        fold = ClusterFold(self.place, self._load)
        for record in records:
            fold.offer(record)
        self.place = fold.place
        self.epochs += [winner.epoch for winner in fold.winners]
        for name, rows in fold.changed.items():
            if rows is None:
                self.state.pop(name, None)
            else:
                self.state[name] = encode_rows(rows)
        for row in fold.history:
            self.history[row.placement, row.row.start, row.from_epoch] = row
        for key in fold.touched:
            held = fold.current(*key)
            self.current.pop(key, None)
            if held is not None:
                self.current[key] = held.row
        return fold

    def current_hash(self) -> str:
        found: dict[str, list[RangeReplicas]] = {}
        for (name, _), row in self.current.items():
            found.setdefault(name, []).append(row)
        return placement_hash(found)

    def hash_at(self, epoch: int) -> str:
        found: dict[str, list[RangeReplicas]] = {}
        for row in self.history.values():
            if row.from_epoch <= epoch and (row.to_epoch is None or epoch < row.to_epoch):
                found.setdefault(row.placement, []).append(row.row)
        return placement_hash(found)

    def _load(self, placement: str) -> HeldRows | None:
        found = self.state.get(placement)
        return None if found is None else decode_rows(found)


def image_hash(image: Image) -> str:
    return placement_hash({n: p.rows for n, p in image.ring.placements.items()})


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_of_any_size_give_the_image_at_their_end_and_the_history_at_every_epoch(
    seed: int,
) -> None:
    log, chance, tables = random_log(seed), random.Random(seed), Tables()
    expected = images(log)
    records = [record_of(offset, value) for offset, value in enumerate(log)]
    while records:
        size = chance.randrange(1, 30)
        tables.batch(records[:size])
        records = records[size:]
        assert tables.current_hash() == image_hash(expected[tables.place.epoch])
    assert tables.epochs == list(range(1, len(expected)))
    assert [tables.hash_at(e) for e in range(len(expected))] == [image_hash(i) for i in expected]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_logs_hold_losers_and_placements_that_split_merge_and_vanish(seed: int) -> None:
    log = random_log(seed)
    placements = [{name: len(p.rows) for name, p in i.ring.placements.items()} for i in images(log)]
    sizes = [found.get("dc1:3", 0) for found in placements]
    assert losers(log) > 5
    assert any(a < b for a, b in itertools.pairwise(sizes) if a)
    assert any(a > b for a, b in itertools.pairwise(sizes))
    assert any(set(a) - set(b) for a, b in itertools.pairwise(placements))


def test_a_batch_offered_again_changes_nothing() -> None:
    records = [record_of(offset, value) for offset, value in enumerate(random_log(1))]
    tables = Tables()
    tables.batch(records)
    again = tables.batch(records)
    assert (again.winners, again.history, again.touched) == ([], [], set())


def simple(epoch: int, /, *changes: Change, **more: object) -> LogRecord:
    record = LogRecord(
        offset=epoch - 1,
        prev_state_id=(epoch - 1).to_bytes(16, "big"),
        state_id=epoch.to_bytes(16, "big"),
        epoch=epoch,
        changes=changes,
    )
    return msgspec.structs.replace(record, **more)


WHOLE = RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("n1",), ("n1",))
LOW = RangeReplicas(MIN_TOKEN, 7, ("n2",), ("n2",))
HIGH = RangeReplicas(7, MIN_TOKEN, ("n1",), ("n1",))


def test_a_placement_dropped_and_made_again_in_one_batch_keeps_both_lives() -> None:
    tables = Tables()
    tables.batch(
        [
            simple(1, Change("p", added=(WHOLE,))),
            simple(2, Change("p", dropped=True)),
            simple(3, Change("p", added=(LOW, HIGH))),
        ]
    )
    spans = [(row.from_epoch, row.to_epoch) for row in tables.history.values()]
    assert sorted(spans, key=str) == [(1, 2), (3, None), (3, None)]
    assert tables.current == {("p", MIN_TOKEN): LOW, ("p", 7): HIGH}


def test_a_row_that_came_and_went_within_one_epoch_never_was() -> None:
    tables = Tables()
    tables.batch([simple(1, Change("p", added=(WHOLE,)), Change("p", dropped=True))])
    assert (tables.history, tables.current, tables.state) == ({}, {}, {})


def test_rows_out_mark_a_vanished_key_as_gone() -> None:
    tables = Tables()
    tables.batch([simple(1, Change("p", added=(LOW, HIGH)))])
    whole = Range(MIN_TOKEN, 7), Range(7, MIN_TOKEN)
    fold = tables.batch([simple(2, Change("p", removed=whole, added=(WHOLE,)))])
    current = [row for row in rows_out("c", fold) if row["kind"] == "current"]
    assert [(row["start"], row["gone"]) for row in current] == [(MIN_TOKEN, False), (7, True)]


@pytest.mark.parametrize(
    ("record", "error", "why"),
    [
        (simple(1, offset=5), TruncatedLogError, "gone"),
        (simple(1, readable=False), CorruptRecordError, "break inside"),
        (simple(1, epoch=4), CorruptRecordError, "epoch 4 where 1 follows"),
        (simple(1, required_features=("x",)), UnknownFeatureError, "needs x"),
        (simple(1, Change("p", added=(LOW,))), CorruptRecordError, "p: "),
    ],
)
def test_a_fold_stops_where_every_reader_must_stop(
    record: LogRecord, error: type[LogError], why: str
) -> None:
    with pytest.raises(error, match=why):
        Tables().batch([record])


def test_a_loser_may_be_unreadable() -> None:
    tables = Tables()
    tables.batch([simple(1), simple(1, offset=1, readable=False), simple(2, offset=2)])
    assert tables.place.epoch == 2
