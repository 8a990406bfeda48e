"""The fold of rows, without Spark: it equals the image's placements at every epoch."""

import itertools

import pytest

from stele.domain.facts import PlacementChanged, PlacementDropped
from stele.domain.image import Image
from stele.domain.placement_hash import placement_hash
from stele.domain.ring.ranges import PlacementError, Range, RangeReplicas
from stele.domain.ring.tokens import MIN_TOKEN
from stele.placements.chain import FRESH, Chain
from stele.placements.fold import ClusterFold, EpochChanges, Held, PastRow
from tests.spark.checks import image_hash
from tests.spark.histories import images, losers, random_log

SEEDS = (1, 2, 3)


def epochs_of(log: tuple[bytes, ...]) -> list[EpochChanges]:
    chain = Chain(FRESH)
    winners = [e for o, v in enumerate(log) if (e := chain.offer(o, v)) is not None]
    return [
        EpochChanges(
            winner.epoch,
            winner.state_id,
            tuple(f for f in winner.facts if isinstance(f, PlacementChanged | PlacementDropped)),
        )
        for winner in winners
    ]


def fold_hash(fold: ClusterFold) -> str:
    return placement_hash(
        {
            name: [rows[start].row for start in sorted(rows)]
            for name, rows in fold.placements.items()
        }
    )


def hash_at(past: list[PastRow], fold: ClusterFold, epoch: int) -> str:
    found: dict[str, list[RangeReplicas]] = {}
    for row in past:
        if row.from_epoch <= epoch < row.to_epoch:
            found.setdefault(row.placement, []).append(row.row)
    for name, rows in fold.placements.items():
        for held in rows.values():
            if held.from_epoch <= epoch:
                found.setdefault(name, []).append(held.row)
    return placement_hash(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rows_are_the_images_at_every_epoch_and_in_the_history(seed: int) -> None:
    log, fold, past = random_log(seed), ClusterFold({}), list[PastRow]()
    expected: list[Image] = images(log)
    for epoch in epochs_of(log):
        before = {key: fold.get(key) for key in _keys(fold)}
        went, touched = fold.apply(epoch)
        past += went
        assert fold_hash(fold) == image_hash(expected[epoch.epoch])
        changed = {k for k in {*before, *_keys(fold)} if before.get(k) != fold.get(k)}
        assert changed <= touched
    assert fold.last.epoch == expected[-1].epoch
    assert [hash_at(past, fold, e) for e in range(len(expected))] == [
        image_hash(image) for image in expected
    ]


def _keys(fold: ClusterFold) -> set[tuple[str, int]]:
    return {(name, start) for name, rows in fold.placements.items() for start in rows}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_logs_hold_losers_and_placements_that_split_merge_and_vanish(seed: int) -> None:
    log = random_log(seed)
    placements = [{name: len(p.rows) for name, p in i.ring.placements.items()} for i in images(log)]
    sizes = [found.get("dc1:3", 0) for found in placements]
    assert losers(log) > 5
    assert any(a < b for a, b in itertools.pairwise(sizes) if a)
    assert any(a > b for a, b in itertools.pairwise(sizes))
    assert any(set(a) - set(b) for a, b in itertools.pairwise(placements))


WHOLE = RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("n1",), ("n1",))
LOW = RangeReplicas(MIN_TOKEN, 7, ("n2",), ("n2",))
HIGH = RangeReplicas(7, MIN_TOKEN, ("n1",), ("n1",))


def simple(epoch: int, *facts: PlacementChanged | PlacementDropped) -> EpochChanges:
    return EpochChanges(epoch, epoch.to_bytes(16, "big"), facts)


def test_a_placement_dropped_and_made_again_keeps_both_lives() -> None:
    fold = ClusterFold({})
    fold.apply(simple(1, PlacementChanged("p", (), (WHOLE,))))
    went, touched = fold.apply(simple(2, PlacementDropped("p")))
    assert went == [PastRow("p", WHOLE, 1, 2)]
    assert touched == {("p", MIN_TOKEN)}
    assert fold.get(("p", MIN_TOKEN)) is None
    fold.apply(simple(3, PlacementChanged("p", (), (LOW, HIGH))))
    assert fold.placements == {"p": {MIN_TOKEN: Held(LOW, 3), 7: Held(HIGH, 3)}}


def test_a_row_that_came_and_went_within_one_epoch_never_was() -> None:
    fold = ClusterFold({})
    went, _ = fold.apply(simple(1, PlacementChanged("p", (), (WHOLE,)), PlacementDropped("p")))
    assert (went, fold.placements) == ([], {})


@pytest.mark.parametrize(
    ("removed", "added", "why"),
    [
        ((Range(MIN_TOKEN, 9),), (WHOLE,), "is no row"),
        ((Range(MIN_TOKEN, 7),), (WHOLE,), "does not cover"),
        ((Range(MIN_TOKEN, 7), Range(MIN_TOKEN, 7)), (LOW,), "overlap"),
        ((Range(MIN_TOKEN, 7),), (LOW, LOW), "overlap"),
    ],
)
def test_a_change_that_does_not_fit_is_refused_before_anything_changes(
    removed: tuple[Range, ...], added: tuple[RangeReplicas, ...], why: str
) -> None:
    fold = ClusterFold({})
    fold.apply(simple(1, PlacementChanged("p", (), (LOW, HIGH))))
    with pytest.raises(PlacementError, match=why):
        fold.apply(simple(2, PlacementChanged("p", removed, added)))
    assert fold.placements == {"p": {MIN_TOKEN: Held(LOW, 1), 7: Held(HIGH, 1)}}


def test_a_new_placement_must_cover_the_ring() -> None:
    with pytest.raises(PlacementError, match="cover"):
        ClusterFold({}).apply(simple(1, PlacementChanged("p", (), (LOW,))))
