"""The coordinator manages the archive: its members, dead members, and the truncation of the log."""

import pytest

from stele.coordinator.model import Wait
from stele.domain.commands import (
    AdmitDivergence,
    AskSnapshot,
    ReconfigureCatchUp,
    SetSetting,
)
from stele.domain.model.archive import UPKEEP
from stele.domain.model.requests import Request
from stele.domain.names import ReplicaState, RequestStatus, WaitKind
from tests.coordinator.stories import status_of
from tests.coordinator.world import World, three_nodes
from tests.domain.archive.announced import replica, snapshot
from tests.domain.epochs import code_of

DEAD_S = 60


def members(world: World) -> list[str]:
    return world.image.archive.members()


def archived(names: str = "r1 r2 r3", replication: str = "3") -> World:
    """Return a truncated log: a new replica must fetch the deleted epochs."""
    world = three_nodes()
    assert world.apply(SetSetting("archive_replication", replication)) is None
    assert world.apply(SetSetting("archive_dead_after_s", str(DEAD_S))) is None
    assert world.apply(SetSetting("truncate_behind", "1")) is None
    world.add_replicas(names)
    assert world.apply(AskSnapshot()) is None
    world.until(lambda: world.image.archive.truncated, "the log to be truncated")
    return world


def reconfigurations(world: World) -> list[Request]:
    return [r for r in world.image.requests.requests.values() if r.reconfigures]


def waits(world: World, kind: WaitKind = WaitKind.ARCHIVE) -> list[Wait]:
    world.tick()
    return [wait for wait in world.brain.steps.waits if wait.kind is kind]


# Requests of users.


def test_members_change_as_requested() -> None:
    world = archived("r1 r2", "1")
    assert members(world) == ["r1"]
    world.add_replicas("r3 r4", dc="dc2")
    assert world.apply(ReconfigureCatchUp(replication="dc1=1,dc2=2"), "asked") is None
    world.until(lambda: not world.image.requests.unfinished(), "the members to be changed")
    assert status_of(world, "asked") is RequestStatus.DONE
    assert members(world) == ["r1", "r3", "r4"]


def test_retired_member_leaves_after_its_successor_has_joined() -> None:
    world = archived("r1 r2 r3 r4")
    assert members(world) == ["r1", "r2", "r3"]
    assert world.apply(ReconfigureCatchUp(retired=("r1",)), "asked") is None
    world.until(lambda: not world.image.requests.unfinished(), "r1 to be retired")
    assert members(world) == ["r2", "r3", "r4"]
    assert (
        min(len(image.archive.members()) for image in world.images if image.archive.truncated) == 3
    )
    world.pass_s(60)
    assert len(reconfigurations(world)) == 1, "it stays a candidate"


def test_member_is_retired_without_a_successor_if_fewer_are_wanted() -> None:
    world = archived()
    assert world.apply(ReconfigureCatchUp(replication="2", retired=("r1",)), "asked") is None
    world.until(lambda: not world.image.requests.unfinished(), "r1 to be retired")
    assert members(world) == ["r2", "r3"]


def test_member_without_a_live_successor_is_not_retired() -> None:
    world = archived()
    assert code_of(world.apply(ReconfigureCatchUp(retired=("r1",)), "alone")) == "too_few_replicas"
    assert code_of(world.apply(ReconfigureCatchUp(retired=("r9",)), "nobody")) == "not_a_member"
    world.add_replicas("r4")
    world.replicas["r4"].alive = False
    world.pass_s(30)
    assert world.apply(ReconfigureCatchUp(retired=("r1",)), "asked") is None
    world.pass_s(30)
    assert members(world) == ["r1", "r2", "r3"]
    assert [wait.what for wait in waits(world)] == [
        "a catch-up replica that is free and up, in place of r1"
    ]
    world.replicas["r4"].alive = True
    world.until(lambda: members(world) == ["r2", "r3", "r4"], "r1 to be retired")


def test_replica_that_never_answered_is_not_chosen() -> None:
    world = archived("r1 r2", "1")
    world.replicas["r2"].alive = False
    world.replace_brain()
    assert world.apply(ReconfigureCatchUp(replication="2"), "asked") is None
    world.run()
    assert members(world) == ["r1"]
    assert not any(image.archive.of_state(ReplicaState.JOINING) for image in world.images)
    world.replicas["r2"].alive = True
    world.until(lambda: members(world) == ["r1", "r2"], "r2 to be taken once it is up")


def test_joining_replica_that_dies_is_replaced_after_the_limit() -> None:
    world = archived("r1 r2 r3", "1")
    world.replicas["r2"].idle = True
    assert world.apply(ReconfigureCatchUp(replication="2"), "asked") is None
    world.pass_s(2)
    assert world.image.archive.of_state(ReplicaState.JOINING) == ["r2"]
    world.replicas["r2"].alive = False
    world.pass_s(20)
    (wait,) = waits(world)
    assert wait.what == "a sign of life of catch-up replica r2, which joins"
    assert wait.patience is not None and wait.patience.limit_s == DEAD_S
    assert wait.request_ids == ("asked",)
    world.until(lambda: members(world) == ["r1", "r3"], "another to be chosen", DEAD_S + 10)


# Changes that the coordinator starts.


def test_dead_member_is_replaced_automatically() -> None:
    world = archived("r1 r2 r3 r4")
    world.replicas["r2"].alive = False
    world.pass_s(DEAD_S - 5)
    assert not reconfigurations(world)
    world.until(lambda: members(world) == ["r1", "r3", "r4"], "r2 to be replaced", 30)
    world.run()
    (request,) = reconfigurations(world)
    assert (request.actor, request.status) == ("coordinator", RequestStatus.DONE)
    assert request.reason == f"r2 has been silent for more than {DEAD_S} s"
    world.replicas["r2"].alive = True
    world.pass_s(60)
    assert len(reconfigurations(world)) == 1, "it is a candidate now"


def test_missing_free_replica_is_reported_as_a_wait() -> None:
    world = archived()
    world.replicas["r2"].alive = False
    world.pass_s(DEAD_S + 20)
    (wait,) = waits(world)
    assert wait.what == "a catch-up replica that is free and up, in place of r2, which is dead"
    assert not wait.request_ids and not reconfigurations(world)
    world.add_replicas("r4")
    world.until(lambda: members(world) == ["r1", "r3", "r4"], "r4 to take its place")


def test_dead_member_is_not_replaced_if_the_setting_is_0() -> None:
    world = archived("r1 r2 r3 r4")
    assert world.apply(SetSetting("archive_dead_after_s", "0")) is None
    world.replicas["r2"].alive = False
    world.pass_s(2 * DEAD_S)
    assert members(world) == ["r1", "r2", "r3"] and not waits(world)


def test_missing_members_are_added_once_there_are_replicas() -> None:
    world = archived("r1")
    world.add_replicas("r2")
    assert world.image.archive.of_state(ReplicaState.CANDIDATE) == ["r2"]
    world.until(lambda: members(world) == ["r1", "r2"], "r2 to become a member")
    world.run()
    (request,) = reconfigurations(world)
    assert request.reason == "1 are members, 3 are asked for, and 2 can be"


def test_surplus_members_are_removed() -> None:
    world = archived()
    assert world.apply(SetSetting("archive_replication", "1")) is None
    world.until(lambda: members(world) == ["r1"], "the others to go")


def test_dcs_without_members_get_members() -> None:
    world = archived()
    world.add_replicas("s1", dc="dc2")
    assert world.apply(SetSetting("archive_replication", "dc1=2,dc2=1")) is None
    world.until(lambda: members(world) == ["r1", "r2", "s1"], "dc2 to have one")


def test_unsatisfiable_replication_changes_nothing() -> None:
    world = archived()
    assert world.apply(SetSetting("archive_replication", "dc9=1")) is None
    world.pass_s(30)
    assert members(world) == ["r1", "r2", "r3"] and not reconfigurations(world)


def test_coordinator_without_any_answer_replaces_no_member() -> None:
    world = archived("r1 r2 r3 r4")
    for each in world.replicas.values():
        each.alive = False
    world.pass_s(2 * DEAD_S)
    assert members(world) == ["r1", "r2", "r3"] and not reconfigurations(world)


def test_new_coordinator_counts_silence_from_its_start() -> None:
    world = archived("r1 r2 r3 r4")
    world.replicas["r2"].alive = False
    world.pass_s(DEAD_S - 5)
    world.replace_brain()
    world.pass_s(DEAD_S - 5)
    assert not reconfigurations(world)
    world.until(lambda: members(world) == ["r1", "r3", "r4"], "r2 to be replaced", 30)


def test_diverged_member_is_chosen_last() -> None:
    world = archived("r1 r2 r3 r4")
    world.replicas["r3"].content = "wrong"
    assert world.apply(AskSnapshot()) is None
    world.pass_s(5)
    assert world.apply(ReconfigureCatchUp(), "asked") is None
    world.until(lambda: members(world) == ["r1", "r2", "r4"], "r3 to go")


# Truncation.


@pytest.mark.parametrize("behind", [1, 2])
def test_log_is_truncated_behind_the_configured_number_of_snapshots(behind: int) -> None:
    world = three_nodes()
    world.add_replicas("r1 r2 r3")
    assert world.apply(SetSetting("truncate_behind", str(behind))) is None
    asked = list[int]()
    for _ in range(3):
        assert world.apply(AskSnapshot()) is None
        asked.append(world.image.epoch)
        world.pass_s(5)
    assert world.image.archive.truncated_epoch == asked[-behind]


def test_log_is_not_truncated_automatically_by_default() -> None:
    world = three_nodes()
    world.add_replicas("r1 r2 r3")
    for _ in range(4):
        assert world.apply(AskSnapshot()) is None
        world.pass_s(5)
    assert world.image.archive.truncated is None


def test_archive_wait_does_not_block_other_requests() -> None:
    """A join reports its own wait."""
    world = archived()
    world.replicas["r2"].alive = False
    world.pass_s(DEAD_S + 20)
    world.add("a2")
    world.nodes["a2"].mute = True
    world.pass_s(5)
    assert any(w.kind is WaitKind.ARCHIVE for w in world.brain.steps.waits)
    own = [w for w in world.brain.steps.waits if "join-a2" in w.request_ids]
    assert own and own[0].kind is WaitKind.STREAM


# Diverged members.


def diverges(world: World, name: str, folder: str = "") -> None:
    """Let the next snapshot of a replica differ from the others, and let the replica admit it."""
    assert world.apply(AskSnapshot()) is None
    epoch = world.image.archive.asked_epoch
    others = [each for each in world.replicas.values() if each.replica_id != name]
    world.replicas[name].idle = True
    for each in others:
        if not each.idle:
            each.announce(world, epoch)
    assert world.apply(snapshot(name, epoch, content="other", folder=folder)) is None
    told = AdmitDivergence(replica_id=name, epoch=epoch, folder_id=folder)
    assert world.apply(told) is None


def test_member_that_diverges_twice_is_replaced() -> None:
    world = archived("r1 r2 r3 r4")
    world.history.enable(UPKEEP)
    world.replicas["r4"].alive = True
    diverges(world, "r2")
    world.pass_s(DEAD_S + 10)
    assert members(world) == ["r1", "r2", "r3"], "once may be a disk"
    assert not reconfigurations(world)
    assert world.apply(replica("r2", folder="second")) is None
    diverges(world, "r2", "second")
    world.until(lambda: members(world) == ["r1", "r3", "r4"], "r2 to be replaced", 30)
    (request,) = reconfigurations(world)
    assert request.reason == "r2 has diverged again"


def test_wait_names_the_diverged_member_without_a_free_replica() -> None:
    world = archived("r1 r2 r3")
    world.history.enable(UPKEEP)
    diverges(world, "r2")
    assert world.apply(replica("r2", folder="second")) is None
    diverges(world, "r2", "second")
    world.pass_s(5)
    assert members(world) == ["r1", "r2", "r3"]
    (wait,) = waits(world)
    assert wait.what.endswith("in place of r2, which has diverged again")
