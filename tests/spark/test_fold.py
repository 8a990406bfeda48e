"""The fold of rows, without Spark: it equals the image's placements at every epoch."""

import itertools

import msgspec
import pytest

from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.ring import NodeNumbered, PlacementChanged, PlacementDropped
from stele.domain.ring.ranges import RangeReplicas, placement_hash
from stele.domain.staging import Part, PartsCommitted
from stele.log.codec import decode_epoch, encode_epoch
from stele.placements.events import new_rows
from stele.placements.fold import ClusterFold, CurrentRow, FoldError, PastRow
from tests.domain.overrides.overriding import at, is_at_rest, revert, run_of
from tests.spark.checks import image_hash
from tests.spark.histories import images, losers, random_log
from tests.spark.test_chain import arrow, rows_of, winners

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


def held_of(fold: ClusterFold) -> dict[tuple[str, int], CurrentRow]:
    return {
        (name, start): held
        for name, rows in fold.placements.items()
        for start, held in rows.items()
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_equal_the_image_at_every_epoch_and_in_the_history(seed: int) -> None:
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
def test_random_logs_contain_losers_and_changing_placements(seed: int) -> None:
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
def test_fold_restarted_from_table_rows_continues_without_a_difference(
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


def test_table_rows_that_differ_from_the_events_stop_the_cluster() -> None:
    epochs = winners(random_log(1))
    whole = ClusterFold()
    for epoch in epochs:
        whole.apply(epoch)
    again = ClusterFold(20, whole.placements)
    for epoch in epochs[:19]:
        again.apply(epoch)
    with pytest.raises(FoldError, match=r"other rows of epoch 20.*Remove the folders"):
        again.apply(epochs[19])


def test_parts_produce_rows_at_their_commit() -> None:
    epochs = winners(random_log(1))
    at = next(
        i for i, e in enumerate(epochs) if any(isinstance(f, PlacementChanged) for f in e.facts)
    )
    large = epochs[at]
    staged = tuple(f for f in large.facts if isinstance(f, NodeNumbered | PlacementChanged))
    rest = tuple(f for f in large.facts if f not in staged)
    part = msgspec.structs.replace(
        large, state_id=b"\x7f" * 16, facts=(Part("id", 0, staged),), request_id=""
    )
    commit = msgspec.structs.replace(
        large,
        prev_state_id=part.state_id,
        epoch=large.epoch + 1,
        facts=(PartsCommitted("id", 1), *rest),
    )
    log = tuple(encode_epoch(epoch) for epoch in (*epochs[:at], part, commit))
    whole, fold = ClusterFold(), ClusterFold()
    for epoch in epochs[: at + 1]:
        whole.apply(epoch)
    *before, in_part, last = new_rows(rows_of({}, arrow(log)))["c"].epochs
    for epoch in before:
        fold.apply(epoch)
    assert fold.apply(in_part) == ([], set())
    assert fold.placements == {}
    fold.apply(last)
    assert fold_hash(fold) == fold_hash(whole)
    assert {held.from_epoch for held in held_of(fold).values()} == {commit.epoch}


def test_epoch_that_does_not_fit_the_state_stops_the_cluster() -> None:
    (first, *_) = winners(random_log(1))
    broken: Epoch = msgspec.structs.replace(first, facts=(PlacementDropped("no such"),))
    with pytest.raises(FoldError, match=r"epoch 1 does not fit.*Restore the topic"):
        ClusterFold().apply(broken)


@pytest.mark.parametrize(("held_at", "snapshot_at"), [(0, 25), (25, 40), (25, 25), (40, 25)])
def test_rows_after_a_snapshot_equal_its_image_and_others_end_there(
    held_at: int, snapshot_at: int
) -> None:
    log, whole = random_log(1), ClusterFold()
    expected, epochs = images(log), winners(log)
    for epoch in epochs[:held_at]:
        whole.apply(epoch)
    held = {name: dict(rows) for name, rows in whole.placements.items()}
    before = held_of(whole)
    fold = ClusterFold(held_at, held)
    past, touched = fold.begin(expected[snapshot_at])
    assert {row.to_epoch for row in past} <= {snapshot_at}
    if snapshot_at > held_at:
        after = held_of(fold)
        assert fold_hash(fold) == image_hash(expected[snapshot_at])
        assert touched == {k for k in {*before, *after} if before.get(k) != after.get(k)}
        assert all(after[key].from_epoch == snapshot_at for key in touched & set(after))
        assert hash_at(past, fold, held_at) == image_hash(expected[held_at])
    for epoch in epochs[snapshot_at:]:
        past += fold.apply(epoch)[0]
        if epoch.epoch > held_at:
            assert fold_hash(fold) == image_hash(expected[epoch.epoch])
    for epoch_at in range(max(held_at, snapshot_at), len(expected)):
        assert hash_at(past, fold, epoch_at) == image_hash(expected[epoch_at])


def test_snapshot_that_differs_from_the_tables_stops_the_cluster() -> None:
    log, fold = random_log(1), ClusterFold(25, {})
    with pytest.raises(FoldError, match="other rows of epoch 25"):
        fold.begin(images(log)[25])


def test_override_changes_rows_like_any_epoch() -> None:
    """Placements that the override adds, removes or changes are in the history with its epoch."""
    images_ = run_of(SEEDS[0])
    target = next(image for image in images_[len(images_) // 3 :] if is_at_rest(image))
    history = at(images_, len(images_) - 1)
    assert revert(history, target) is None
    before, after = history.images[-2], history.image
    assert {*before.ring.placements} != {*after.ring.placements}
    held = {
        name: {row.start: CurrentRow(row, before.epoch) for row in placement.rows}
        for name, placement in before.ring.placements.items()
    }
    fold = ClusterFold(before.epoch, held)
    fold.image = before
    went, touched = fold.apply(decode_epoch(encode_epoch(history.epochs[-1])))
    assert went and touched
    assert fold_hash(fold) == image_hash(after)
    assert hash_at(went, fold, before.epoch) == image_hash(before)
