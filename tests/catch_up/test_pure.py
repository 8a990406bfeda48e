"""When snapshots are due, which of them stay, and what is missing."""

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


def test_a_snapshot_is_due_by_epochs_by_bytes_or_when_it_is_asked_for() -> None:
    log, _ = three_nodes()
    assert log.apply(SetSetting("snapshot_epochs", "100")) is None
    assert log.apply(SetSetting("snapshot_mb", "1")) is None
    image, epoch = log.image, log.epochs[-1]
    assert not is_due(Since(99, MB - 1, is_news=True), image, epoch)
    assert is_due(Since(100, 0, is_news=True), image, epoch)
    assert is_due(Since(1, MB, is_news=True), image, epoch)
    assert Since().after(b"four", epoch).after(b"x", epoch) == Since(2, 5, is_news=True)


def test_what_replicas_say_of_a_snapshot_makes_no_other_one_due() -> None:
    """Else a log with snapshots after a few epochs grows for ever although nothing happens in it."""
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


def test_a_snapshot_that_is_asked_for_is_of_that_epoch() -> None:
    log, _ = three_nodes()
    place = {"dc": "dc1", "rack": "r1", "address": "http://here:1"}
    assert log.apply(AnnounceReplica(replica_id="cu-1", **place)) is None
    assert log.apply(AskSnapshot()) is None
    assert is_due(Since(1, 1), log.image, log.epochs[-1])


def test_all_replicas_count_anew_from_a_recovery() -> None:
    """The writer of the recovery has taken a snapshot there, and later readers must take the next ones at the
    same epochs.
    """
    log, _ = three_nodes()
    log.recover(b"\xc0" * 16, 0)
    assert is_due(Since(1, 1), log.image, log.epochs[-1])


@given(st.sets(st.integers(1, 10_000), max_size=200), st.integers(1, 6))
def test_the_newest_snapshots_stay_and_of_the_others_no_more_than_so_many(
    epochs: set[int], newest: int
) -> None:
    gone = forgotten([*epochs], newest)
    kept = epochs - {*gone}
    assert {*sorted(epochs)[-newest:]} <= kept
    assert len(kept) <= newest + OLDER
    assert not epochs or len(epochs) <= newest or min(epochs) in kept, "the oldest one stays"


def test_what_is_missing_is_asked_for_from_the_newest_back() -> None:
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


def test_an_archive_is_never_another_clusters() -> None:
    """A backup that was restored has no identity yet: what is in it tells."""
    for archived in ("", "demo"):
        check_cluster(archived, "demo")
    with pytest.raises(ConfigurationError, match="of cluster 'staging', and not of 'demo'"):
        check_cluster("staging", "demo")
