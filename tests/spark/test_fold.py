"""The fold of rows, without Spark: it equals the image's placements at every epoch."""

import itertools

import msgspec
import pytest

from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.placement_hash import placement_hash
from stele.domain.ring.facts import PlacementDropped
from stele.domain.ring.ranges import RangeReplicas
from stele.placements.fold import ClusterFold, FoldError, Held, PastRow
from tests.spark.checks import image_hash
from tests.spark.histories import images, losers, random_log
from tests.spark.test_chain import winners

SEEDS = (1, 2, 3)


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


def held_of(fold: ClusterFold) -> dict[tuple[str, int], Held]:
    return {
        (name, start): held
        for name, rows in fold.placements.items()
        for start, held in rows.items()
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rows_are_the_images_at_every_epoch_and_in_the_history(seed: int) -> None:
    log, fold, past = random_log(seed), ClusterFold(), list[PastRow]()
    expected: list[Image] = images(log)
    for epoch in winners(log):
        before = held_of(fold)
        went, touched = fold.apply(epoch)
        past += went
        assert fold_hash(fold) == image_hash(expected[epoch.epoch])
        now = held_of(fold)
        assert {key for key in {*before, *now} if before.get(key) != now.get(key)} == touched
    assert fold.image.state_id == expected[-1].state_id
    assert [hash_at(past, fold, e) for e in range(len(expected))] == [
        image_hash(image) for image in expected
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_logs_hold_losers_and_placements_that_split_merge_and_vanish(seed: int) -> None:
    log = random_log(seed)
    placements = [{name: len(p) for name, p in i.ring.placements.items()} for i in images(log)]
    sizes = [found.get("dc1:3", 0) for found in placements]
    assert losers(log) > 5
    assert any(a < b for a, b in itertools.pairwise(sizes) if a)
    assert any(a > b for a, b in itertools.pairwise(sizes))
    assert any(set(a) - set(b) for a, b in itertools.pairwise(placements))
    versions = {row.version for p in images(log)[-1].ring.placements.values() for row in p.rows}
    assert max(versions) > 0


@pytest.mark.parametrize("begun", [1, 20, 40])
def test_a_fold_that_begins_with_the_tables_rows_goes_on_as_one_that_never_stopped(
    begun: int,
) -> None:
    epochs = winners(random_log(1))
    whole = ClusterFold()
    for epoch in epochs[:begun]:
        whole.apply(epoch)
    again = ClusterFold(begun, {name: dict(rows) for name, rows in whole.placements.items()})
    for epoch in epochs[:begun]:
        assert again.behind
        assert again.apply(epoch) == ([], set())
    assert not again.behind
    for epoch in epochs[begun:]:
        assert again.apply(epoch) == whole.apply(epoch)
    assert again.placements == whole.placements


def test_rows_of_the_tables_that_the_events_do_not_make_stop_the_cluster() -> None:
    epochs = winners(random_log(1))
    whole = ClusterFold()
    for epoch in epochs:
        whole.apply(epoch)
    again = ClusterFold(20, whole.placements)
    for epoch in epochs[:19]:
        again.apply(epoch)
    with pytest.raises(FoldError, match=r"other rows of epoch 20.*Delete"):
        again.apply(epochs[19])


def test_an_epoch_that_does_not_fit_stops_the_cluster() -> None:
    (first, *_) = winners(random_log(1))
    broken: Epoch = msgspec.structs.replace(first, facts=(PlacementDropped("no such"),))
    with pytest.raises(FoldError, match=r"epoch 1 does not fit.*Restore the topic"):
        ClusterFold().apply(broken)
