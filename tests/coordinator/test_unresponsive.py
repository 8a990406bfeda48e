"""An unresponsive node ends no operation of an operator unless a setting says so."""

import pytest

from stele.domain.commands import (
    AnyCommand,
    Cancel,
    CreateKeyspace,
    CreateTable,
    Exclude,
    KeyspaceRfChange,
    Leave,
    NewCdcGeneration,
    Rebuild,
    SnapshotTable,
)
from stele.domain.names import NodeState, RequestStatus, TransitionState
from stele.domain.tablets.maps import held_by
from tests.coordinator.operations import DOWN_S, stand_still
from tests.coordinator.stories import error_of, joining, status_of
from tests.coordinator.test_why import told
from tests.coordinator.world import World, empty_cluster, three_nodes

LONG_S = 300.0
"""Longer than every time limit for a node together."""
STATE = TransitionState


def _receiver_dies(command: AnyCommand) -> tuple[World, str]:
    """Start an operation on four nodes. The first receiver dies before it has any data."""
    world = three_nodes()
    world.add("c2")
    world.run()
    for node in world.nodes.values():
        node.mute = True
        node.orders.clear()
    assert world.apply(command, "request") is None
    world.until(lambda: any(map(world.orders, world.nodes)), "the order to stream")
    receiver = next(filter(world.orders, world.nodes))
    world.pass_s(2)
    world.crash(receiver)
    return world, receiver


def test_join_waits_for_its_node_by_default_and_finishes_after_its_return() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=True)
    world.until(lambda: world.orders("a2"), "the order")
    world.crash("a2")
    world.pass_s(LONG_S)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING
    line, *_, advice = told(world, "join-a2")
    assert "the cause is a2" in line and line.endswith("no setting ends this wait")
    assert advice == "do: start a2: then it continues, or undo it: `stele cancel join-a2`"
    world.nodes["a2"].alive, world.nodes["a2"].mute = True, False
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE


@pytest.mark.parametrize("command", [Leave("c2"), Rebuild(node_id="a1")], ids=["leave", "rebuild"])
def test_operation_waits_for_a_silent_receiver_until_a_cancel(
    command: AnyCommand,
) -> None:
    world, receiver = _receiver_dies(command)
    world.pass_s(LONG_S)
    assert status_of(world, "request") is RequestStatus.RUNNING
    advice = told(world, "request")[-1]
    assert f"start {receiver}" in advice and "`stele cancel request`" in advice
    assert "exclude" not in advice
    assert world.apply(Cancel("request")) is None
    world.until(lambda: status_of(world, "request") is RequestStatus.CANCELLED, "the end", 60)


def _source_dies(rf: int) -> World:
    """Return a world in which a2 joins and each attempt to stream fails. Its source b1 dies meanwhile."""
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=True, rf=rf)
    world.until(lambda: world.orders("a2"), "the order")
    world.pass_s(2)
    world.crash("b1")
    world.nodes["a2"].mute, world.nodes["a2"].fails = False, 9999
    return world


@pytest.mark.parametrize("restart_s", [3.0, LONG_S])
def test_stream_survives_the_restart_of_a_needed_source(restart_s: float) -> None:
    world = _source_dies(rf=1)
    world.pass_s(restart_s)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING
    if restart_s == LONG_S:
        line, *_ = told(world, "join-a2")
        assert "the cause is b1: is down, and gives a2 no data" in line
        assert line.endswith("no setting ends this wait")
    world.nodes["b1"].alive, world.nodes["a2"].fails = True, 1
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE


@pytest.mark.parametrize("rf", [1, 3])
def test_stream_fails_if_enough_sources_are_up(rf: int) -> None:
    world = _source_dies(rf)
    if rf == 1:
        world.pass_s(LONG_S)
        world.nodes["b1"].alive = True
    world.until(lambda: status_of(world, "join-a2") is RequestStatus.FAILED, "the end", 60)
    assert "failed to stream 3 times" in error_of(world, "join-a2")


@pytest.mark.parametrize("silent", ["before", "meanwhile"])
@pytest.mark.parametrize(
    "command",
    [
        KeyspaceRfChange("library", {"dc1": 3}),
        SnapshotTable(name="music.songs", snapshot="kept"),
        NewCdcGeneration(force=True),
    ],
    ids=["replication", "snapshot", "cdc"],
)
def test_request_waits_for_a_silent_member_and_names_it(command: AnyCommand, silent: str) -> None:
    world = three_nodes(rf=2)
    assert world.apply(CreateKeyspace("music", {"dc1": 3}, tablets=True)) is None
    assert world.apply(CreateTable("music.songs")) is None
    stand_still(world, True)
    if silent == "before":
        world.crash("c1")
        world.pass_s(DOWN_S)
    assert world.apply(command, "request") is None
    if silent == "meanwhile":
        world.crash("c1")
    world.pass_s(LONG_S)
    assert status_of(world, "request") in (RequestStatus.PENDING, RequestStatus.RUNNING)
    line, *others, advice = told(world, "request")
    assert any("c1: " in text for text in (line, *others)), (line, others)
    assert line.endswith("no setting ends this wait")
    assert "start c1" in advice and "`stele cancel request`" in advice
    world.nodes["c1"].alive = True
    stand_still(world, False)
    world.run()
    assert status_of(world, "request") is RequestStatus.DONE


# Bystanders.


def _draining() -> World:
    """Return a world in which c1 has drained most of its tablets. e1, in another dc without data, dies."""
    world = empty_cluster()
    world.add("a1 b1 c1 d1", rack="r")
    world.add("e1", dc="dc2", rack="far")
    world.run()
    world.create_table({"dc1": 2}, 16)
    world.balances = True
    world.pass_s(10)
    whole = held_by(world.image)["c1"]
    assert world.apply(Leave("c1"), "leave") is None
    world.until(lambda: held_by(world.image)["c1"] <= whole // 2, "half to have moved")
    world.crash("e1")
    return world


def test_drain_and_leave_do_not_need_unrelated_nodes() -> None:
    world = _draining()
    world.until(lambda: status_of(world, "leave") is not RequestStatus.PENDING, "the leave")
    world.until(lambda: status_of(world, "leave") is RequestStatus.DONE, "the end")
    assert not world.nodes["e1"].alive
    assert world.state("c1") is NodeState.LEFT


def test_drain_waits_while_the_leaving_node_restarts() -> None:
    world = _draining()
    world.nodes["e1"].alive = True
    world.crash("c1")
    world.pass_s(LONG_S)
    assert status_of(world, "leave") is RequestStatus.PENDING
    world.nodes["c1"].alive = True
    world.run()
    assert status_of(world, "leave") is RequestStatus.DONE


def test_pending_leave_fails_once_its_node_is_excluded() -> None:
    world = three_nodes()
    world.add("c2")
    world.run()
    world.crash("c2")
    world.pass_s(6)
    assert world.apply(Leave("c2"), "leave") is None
    world.pass_s(LONG_S)
    assert status_of(world, "leave") is RequestStatus.PENDING
    assert world.apply(Exclude(("c2",))) is None
    world.until(lambda: status_of(world, "leave") is RequestStatus.FAILED, "the end", 60)


def test_join_that_waits_for_locks_survives_the_death_of_a_member() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=True)
    world.add("b2")
    world.pass_s(2)
    world.crash("c1")
    world.pass_s(LONG_S)
    assert status_of(world, "join-b2") is RequestStatus.PENDING
    world.nodes["c1"].alive = True
    world.nodes["a2"].mute = False
    world.run()
    assert status_of(world, "join-b2") is RequestStatus.DONE


@pytest.mark.parametrize("rf", [1, 2, 3])
def test_stream_survives_a_new_coordinator_without_a_quorum_of_acks(rf: int) -> None:
    """It requires the acks of a barrier again that its predecessor had passed."""
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=True, rf=rf)
    world.pass_s(10)
    for name in ("b1", "c1"):
        world.crash(name)
    world.replace_brain()
    world.pass_s(LONG_S)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING
    for name in ("b1", "c1"):
        world.nodes[name].alive = True
    world.nodes["a2"].mute = False
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE


@pytest.mark.parametrize("state", [STATE.JOIN_GROUP0, STATE.WRITE_BOTH_READ_OLD])
def test_barrier_without_a_quorum_waits_until_a_cancel(state: TransitionState) -> None:
    world = joining(state, fenced=False, rf=1)
    world.crash("b1")
    world.pass_s(LONG_S)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING
    assert world.apply(Cancel("join-a2")) is None
    world.until(lambda: status_of(world, "join-a2") is RequestStatus.CANCELLED, "the end", 60)
