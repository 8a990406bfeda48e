"""Announcements of replicas: identity, content, and expiry."""

import msgspec
import pytest

from stele.domain.commands import (
    AskSnapshot,
    Cancel,
    ForgetReplica,
    ReconfigureCatchUp,
    SetSetting,
    WithdrawSnapshot,
)
from stele.domain.model.archive import (
    MAX_REPLICAS,
    SNAPSHOTS_KEPT,
    LogTruncated,
    ReplicaForgotten,
    SnapshotAsked,
    diverged,
)
from stele.domain.names import ReplicaState
from stele.domain.view import view
from tests.domain.archive.announced import replica, snapshot, truncate
from tests.domain.archive.logs import (
    agree,
    archive,
    founded,
    pass_epochs,
    refusal,
    took,
    with_members,
)
from tests.domain.epochs import History


def epochs_of(history: History, name: str) -> list[int]:
    return [each.epoch for each in archive(history).announced(name)]


# Replicas.


def test_repeated_replica_announcement_changes_nothing() -> None:
    history = founded()
    took(history, replica("c-1"))
    before = archive(history)
    took(history, replica("c-1"))
    assert archive(history) is before
    assert history.epochs[-1].facts == ()


def test_replica_that_moves_to_another_dc_stays_a_member() -> None:
    history = with_members("c-1")
    took(history, replica("c-1", dc="dc2", rack="r9"))
    row = archive(history).replicas["c-1"]
    assert (row.dc, row.rack, row.state) == ("dc2", "r9", ReplicaState.MEMBER)
    assert row.since_epoch < history.image.epoch


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"replica_id": "no name"}, "bad_name"),
        ({"dc": ""}, "bad_name"),
        ({"rack": "a/b"}, "bad_name"),
        ({"folder_id": "x" * 65}, "bad_name"),
        ({"address": "c-1:8086"}, "bad_address"),
        ({"address": "http://"}, "bad_address"),
        ({"address": "http://a b"}, "bad_address"),
        ({"address": "http://a\n"}, "bad_address"),
        ({"address": "http://" + 300 * "x"}, "bad_address"),
    ],
)
def test_invalid_replica_announcement_is_refused(change: dict[str, str], code: str) -> None:

    said = msgspec.structs.replace(replica("c-1"), **change)
    assert refusal(founded(), said).code == code


def test_number_of_replicas_is_limited() -> None:
    history = founded()
    took(history, *(replica(f"c-{index}") for index in range(MAX_REPLICAS)))
    refused = refusal(history, replica("one-more"))
    assert refused.code == "too_many_replicas" and "forget" in refused.hint
    took(history, replica("c-1", rack="r2"))


def test_first_replicas_become_members_up_to_the_replication_setting() -> None:
    history = founded(archive_replication="2")
    took(history, *(replica(name) for name in ("c-1", "c-2", "c-3")))
    assert archive(history).members() == ["c-1", "c-2"]
    assert archive(history).of_state(ReplicaState.CANDIDATE) == ["c-3"]


def test_first_replicas_of_each_dc_become_members() -> None:
    history = founded(archive_replication="dc1=1,dc2=2")
    dcs = ("dc1", "dc1", "dc2", "dc3", "dc2", "dc2")
    took(history, *(replica(f"c-{index}", dc) for index, dc in enumerate(dcs)))
    assert archive(history).members() == ["c-0", "c-2", "c-4"]


def test_new_replica_stays_a_candidate_after_a_truncation() -> None:
    """A new member would lack the deleted epochs."""
    history = with_members("c-1", archive_replication="3")
    took(history, truncate(agree(history, "c-1")), replica("c-2"))
    assert archive(history).members() == ["c-1"]


def test_new_replica_stays_a_candidate_during_a_reconfiguration() -> None:
    history = with_members("c-1", archive_replication="3")
    assert history.apply(ReconfigureCatchUp(), "turn") is None
    took(history, replica("c-2"))
    assert archive(history).members() == ["c-1"]
    took(history, Cancel("turn"), replica("c-2"))
    assert archive(history).members() == ["c-1", "c-2"]


def test_forgotten_candidate_loses_its_announcements() -> None:
    history = with_members("c-1")
    took(history, replica("c-2"))
    agree(history, "c-2")
    took(history, ForgetReplica(replica_id="c-2"))
    assert not archive(history).announced("c-2") and "c-2" not in archive(history).replicas
    assert refusal(history, ForgetReplica(replica_id="c-2")).code == "unknown_replica"


def test_last_member_is_forgotten_only_with_force_and_marked_unsafe() -> None:
    history = with_members("c-1")
    refused = refusal(history, ForgetReplica(replica_id="c-1"))
    assert refused.code == "member_needed" and "the only one" in refused.message
    took(history, ForgetReplica(replica_id="c-1", force=True))
    assert history.epochs[-1].facts == (ReplicaForgotten("c-1", unsafe=True),)


def test_next_replica_becomes_a_member_after_the_last_one_is_forgotten() -> None:
    history = with_members("c-1")
    took(history, truncate(agree(history, "c-1")))
    took(history, ForgetReplica(replica_id="c-1", force=True), replica("c-2"))
    assert archive(history).members() == ["c-2"]


def test_member_is_forgotten_if_a_majority_still_has_the_archive() -> None:
    history = with_members("c-1", "c-2", "c-3")
    took(history, truncate(agree(history, "c-1", "c-2", "c-3")))
    took(history, ForgetReplica(replica_id="c-3"))
    assert history.epochs[-1].facts == (ReplicaForgotten("c-3"),)


def test_member_needed_for_a_majority_is_not_forgotten() -> None:
    history = with_members("c-1", "c-2", "c-3")
    epoch = agree(history, "c-1", "c-2")
    took(history, truncate(epoch))
    refused = refusal(history, ForgetReplica(replica_id="c-2"))
    assert refused.code == "member_needed"
    assert f"epochs 1 to {epoch}" in refused.message and "c-1 has" in refused.message
    took(history, ForgetReplica(replica_id="c-3"))


# Snapshots of replicas.


def test_repeated_snapshot_announcement_changes_nothing() -> None:
    history = with_members("c-1")
    epoch = agree(history, "c-1")
    before = archive(history)
    history.at_ms += 1000
    took(history, snapshot("c-1", epoch))
    assert archive(history) is before


def test_newer_announcement_of_an_epoch_replaces_the_older() -> None:
    history = with_members("c-1")
    epoch = agree(history, "c-1")
    took(history, snapshot("c-1", epoch, content="mended"))
    (found,) = archive(history).announced("c-1")
    assert found.hash == snapshot("c-1", epoch, content="mended").hash


def test_only_the_newest_announcements_are_kept() -> None:
    history = with_members("c-1")
    newest = pass_epochs(history, SNAPSHOTS_KEPT + 5)
    took(history, *(snapshot("c-1", e) for e in range(5, newest)))
    assert epochs_of(history, "c-1") == [*range(newest - SNAPSHOTS_KEPT, newest)]
    took(history, snapshot("c-1", 5))
    assert 5 not in epochs_of(history, "c-1")


def test_announcements_before_a_truncation_are_dropped() -> None:
    history = with_members("c-1")
    old, epoch = agree(history, "c-1"), agree(history, "c-1")
    took(history, truncate(epoch))
    newest = agree(history, "c-1")
    assert epochs_of(history, "c-1") == [epoch, newest]
    took(history, snapshot("c-1", old))
    assert epochs_of(history, "c-1") == [epoch, newest]


def test_announcements_without_their_first_segments_are_dropped() -> None:
    """The replica lost the segments before epoch 9, so its older snapshot no longer reaches back to epoch 1."""
    history = with_members("c-1")
    pass_epochs(history, 20)
    took(history, snapshot("c-1", 8), snapshot("c-1", 12, first_epoch=9))
    assert epochs_of(history, "c-1") == [12]
    took(history, snapshot("c-1", 12), snapshot("c-1", 8))
    assert epochs_of(history, "c-1") == [8, 12]


def test_withdrawn_snapshot_counts_for_no_majority() -> None:
    history = with_members("c-1")
    epoch = agree(history, "c-1")
    took(history, WithdrawSnapshot("c-1", epoch), WithdrawSnapshot("c-1", epoch))
    assert not archive(history).announced("c-1")
    assert refusal(history, truncate(epoch)).code == "no_majority"
    assert refusal(history, WithdrawSnapshot("c-9", epoch)).code == "unknown_replica"


def test_new_folder_of_a_replica_drops_its_announcements() -> None:
    """The replica's disk was emptied: its snapshots count for no majority, not even for a majority of one."""
    history = founded()
    took(history, replica("c-1", folder="one"))
    epoch = pass_epochs(history)
    took(history, snapshot("c-1", epoch, folder="one"), replica("c-1", folder="two"))
    assert not archive(history).announced("c-1")
    assert archive(history).members() == ["c-1"]
    assert refusal(history, truncate(epoch)).code == "no_majority"


def test_announcement_from_the_previous_folder_is_refused() -> None:
    history = founded()
    took(history, replica("c-1", folder="one"), replica("c-1", folder="two"))
    refused = refusal(history, snapshot("c-1", pass_epochs(history), folder="one"))
    assert refused.code == "another_folder" and "two" in refused.message


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"replica_id": "c-9"}, "unknown_replica"),
        ({"epoch": 1000}, "no_such_epoch"),
        ({"epoch": 0}, "no_such_epoch"),
        ({"epoch": -5}, "no_such_epoch"),
        ({"epoch": 2**200}, "no_such_epoch"),
        ({"log_id": "f" * 32}, "foreign_log"),
        ({"log_id": "short"}, "foreign_log"),
        ({"state_id": "F" * 32}, "bad_snapshot"),
        ({"hash": "0" * 63}, "bad_snapshot"),
        ({"first_epoch": 0}, "bad_snapshot"),
        ({"first_epoch": 4}, "bad_snapshot"),
        ({"size_bytes": -1}, "bad_snapshot"),
        ({"anchor_offset": -1}, "bad_snapshot"),
        ({"anchor_offset": 2**63}, "bad_snapshot"),
    ],
)
def test_invalid_snapshot_announcement_is_refused(change: dict[str, object], code: str) -> None:

    history = with_members("c-1")
    said = msgspec.structs.replace(snapshot("c-1", 3), **change)
    assert refusal(history, said).code == code


def test_snapshot_request_asks_for_its_own_epoch() -> None:
    history = with_members("c-1")
    took(history, AskSnapshot())
    assert history.epochs[-1].facts == (SnapshotAsked(history.image.epoch),)
    assert archive(history).asked_epoch == history.image.epoch
    assert refusal(founded(), AskSnapshot()).code == "no_replicas"


# A diverged replica.


def test_replica_with_another_snapshot_than_the_majority_is_diverged() -> None:
    history = with_members("c-1", "c-2", "c-3")
    epoch = agree(history, "c-1", "c-2")
    assert diverged(archive(history)) == {}
    took(history, snapshot("c-3", epoch, content="wrong"))
    assert diverged(archive(history)) == {"c-3": (epoch,)}
    shown = {each["replica_id"]: each for each in view(history.image)["catch_up_replicas"]}
    assert (shown["c-1"]["diverged"], shown["c-3"]["diverged"]) == ((), (epoch,))


def test_candidate_can_diverge_from_the_members() -> None:
    history = with_members("c-1", "c-2", "c-3")
    took(history, replica("c-4"))
    epoch = agree(history, "c-1", "c-2")
    took(history, snapshot("c-4", epoch, content="wrong"))
    assert diverged(archive(history)) == {"c-4": (epoch,)}


def test_two_members_that_disagree_have_no_majority() -> None:
    history = with_members("c-1", "c-2")
    epoch = agree(history, "c-1")
    took(history, snapshot("c-2", epoch, content="wrong"))
    assert diverged(archive(history)) == {}
    assert refusal(history, truncate(epoch)).code == "no_majority"


def test_diverged_members_count_for_no_majority() -> None:
    history = with_members("c-1", "c-2", "c-3", "c-4", "c-5")
    epoch = agree(history, "c-1", "c-2")
    took(history, *(snapshot(name, epoch, content="wrong") for name in ("c-3", "c-4")))
    assert refusal(history, truncate(epoch)).code == "no_majority"
    took(history, snapshot("c-5", epoch), truncate(epoch))
    (fact,) = history.epochs[-1].facts
    assert isinstance(fact, LogTruncated) and fact.members == ("c-1", "c-2", "c-5")


def test_invalid_archive_replication_is_refused() -> None:
    history = founded()
    for value in ("0", "a", "dc1", "dc1=0", "=1", "dc1=1,dc1=2", "33", "dc1=1,3", ","):
        refused = refusal(history, SetSetting("archive_replication", value))
        assert refused.code == "bad_setting" and "dc1=2,dc2=1" in refused.hint, value
    for value in ("1", "32", "dc1=2,dc2=1", " dc1 = 2 , dc2=1", ""):
        took(history, SetSetting("archive_replication", value))
