"""Rules for due snapshots, kept snapshots and missing epochs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.catch_up.filling import gaps
from stele.catch_up.identity import check_cluster
from stele.catch_up.keeper import MB, OLDER, Since, forgotten, is_due
from stele.domain.commands import AnnounceReplica, AskSnapshot, SetSetting
from stele.log.archive.container import EpochSpan
from stele.runtime.settings import ConfigurationError
from tests.domain.history import three_nodes


def test_snapshot_is_due_by_epochs_or_by_bytes() -> None:
    log, _ = three_nodes()
    assert log.apply(SetSetting("snapshot_epochs", "100")) is None
    assert log.apply(SetSetting("snapshot_mb", "1")) is None
    image, epoch = log.image, log.epochs[-1]
    assert not is_due(Since(99, MB - 1, is_news=True), image, epoch)
    assert is_due(Since(100, 0, is_news=True), image, epoch)
    assert is_due(Since(1, MB, is_news=True), image, epoch)
    assert Since().after(b"four", epoch).after(b"x", epoch) == Since(2, 5, is_news=True)


def test_announcements_of_replicas_do_not_make_a_snapshot_due() -> None:
    """Otherwise an idle log with snapshots after a few epochs would grow forever."""
    log, _ = three_nodes()
    assert log.apply(SetSetting("snapshot_epochs", "2")) is None
    place = {"dc": "dc1", "rack": "r1", "address": "http://here:1"}
    since = Since()
    for name in ("cu-1", "cu-2", "cu-3"):
        assert log.apply(AnnounceReplica(replica_id=name, **place)) is None
        since = since.after(b"value", log.epochs[-1])
        assert not is_due(since, log.image, log.epochs[-1])
    assert log.apply(SetSetting("bench", "1")) is None
    assert is_due(since.after(b"value", log.epochs[-1]), log.image, log.epochs[-1])


def test_requested_snapshot_is_due_at_its_epoch() -> None:
    log, _ = three_nodes()
    place = {"dc": "dc1", "rack": "r1", "address": "http://here:1"}
    assert log.apply(AnnounceReplica(replica_id="cu-1", **place)) is None
    assert log.apply(AskSnapshot()) is None
    assert is_due(Since(1, 1), log.image, log.epochs[-1])


def test_snapshot_is_due_at_a_recovery() -> None:
    """The writer of the recovery takes a snapshot there. All replicas must take later ones together."""
    log, _ = three_nodes()
    log.recover(b"\xc0" * 16, 0)
    assert is_due(Since(1, 1), log.image, log.epochs[-1])


@given(st.sets(st.integers(1, 10_000), max_size=200), st.integers(1, 6))
def test_newest_and_a_few_older_snapshots_are_kept(epochs: set[int], newest: int) -> None:
    gone = forgotten([*epochs], newest)
    kept = epochs - {*gone}
    assert {*sorted(epochs)[-newest:]} <= kept
    assert len(kept) <= newest + OLDER
    assert not epochs or len(epochs) <= newest or min(epochs) in kept, "the oldest one stays"


def test_gaps_are_requested_from_newest_to_oldest() -> None:
    assert [*gaps([EpochSpan(1, 50)], 50)] == []
    assert [*gaps([], 0)] == []
    assert next(gaps([], 7)) == EpochSpan(1, 7)
    assert next(gaps([EpochSpan(1, 50)], 200)) == EpochSpan(51, 200)
    assert next(gaps([EpochSpan(1, 50), EpochSpan(150, 230)], 200)) == EpochSpan(51, 149)
    assert next(gaps([EpochSpan(20, 50), EpochSpan(51, 230)], 200)) == EpochSpan(1, 19)
    assert [*gaps([EpochSpan(1, 230)], 200)] == []
    two = [EpochSpan(5, 9), EpochSpan(20, 29), EpochSpan(40, 60)]
    assert [*gaps(two, 60)] == [EpochSpan(30, 39), EpochSpan(10, 19), EpochSpan(1, 4)]
    assert [*gaps(two, 60, begins=15)] == [EpochSpan(30, 39), EpochSpan(15, 19)]
    assert [*gaps(two, 60, begins=7)] == [EpochSpan(30, 39), EpochSpan(10, 19)]


def test_archive_of_another_cluster_is_refused() -> None:
    """A restored backup has no identity yet. Its content names the cluster."""
    for archived in ("", "demo"):
        check_cluster(archived, "demo")
    with pytest.raises(ConfigurationError, match="of cluster 'staging', and not of 'demo'"):
        check_cluster("staging", "demo")
