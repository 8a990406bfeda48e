"""Nodes whose tablets have no possible target: their requests end with the reason."""

import pytest

from stele.domain.commands import (
    AnyCommand,
    CreateKeyspace,
    CreateTable,
    Exclude,
    KeyspaceRfChange,
    Leave,
    MoveTablets,
    Remove,
    Replace,
    ResizeTable,
)
from stele.domain.model.operations import TabletMove
from stele.domain.names import RequestStatus, TransitionState, WaitKind
from stele.runtime.answers.plans import PlanVerdict
from tests.coordinator.operations import DOWN_S
from tests.coordinator.stories import error_of, reach, status_of
from tests.coordinator.test_dry_run import planned
from tests.coordinator.world import World, empty_cluster


def _cluster_with_a_dead_rack() -> World:
    """Return a1 and a2 in one rack, and b1 in a dead rack. Each tablet has a replica in both racks."""
    world = empty_cluster()
    world.add("a1 a2 b1")
    world.run()
    world.create_table({"dc1": 2}, 4)
    world.nodes["b1"].alive = False
    world.pass_s(DOWN_S)
    return world


def test_removal_without_targets_for_its_tablets_is_cancelled() -> None:
    world = _cluster_with_a_dead_rack()
    world.balances = True
    assert world.apply(Remove(node_id="b1"), "remove") is None
    world.until(lambda: status_of(world, "remove") is RequestStatus.CANCELLED, "it is told", 30)
    assert "no other node can take 4 tablets of 'b1'" in error_of(world, "remove")


def _cluster_with_a_rack_of_one_node() -> World:
    """Return a world in which c1 is the only node of its rack. Each tablet has a replica in each rack."""
    world = empty_cluster()
    world.add("a1 a2 a3 b1 c1 d1")
    world.run()
    keyspace = CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=4)
    world.balances = True
    assert world.apply(Leave("d1"), "leave-d1") is None
    world.run()
    assert world.apply(keyspace) is None
    assert world.apply(CreateTable("music.songs")) is None
    assert world.apply(Leave("a3"), "leave-a3") is None
    world.run()
    assert status_of(world, "leave-a3") is RequestStatus.DONE
    world.pass_s(1)
    return world


def test_cancelled_leave_names_the_conflicting_nodes_and_a_remedy() -> None:
    world = _cluster_with_a_rack_of_one_node()
    assert world.apply(Leave("c1"), "leave") is None
    world.until(lambda: status_of(world, "leave") is RequestStatus.CANCELLED, "it is told", 30)
    error = error_of(world, "leave")
    assert "no other node can take 4 tablets of 'c1', such as tablet 0 of music.songs: " in error
    assert "rack a of a" in error and "would have too many of its replicas" in error
    assert "b1 has a replica of this tablet already" in error
    assert not {"a3", "d1", "c1 has"} & {part for part in ("a3", "d1", "c1 has") if part in error}
    assert "Add a node in rack c of dc1" in error


def test_plan_waits_for_a_leave_whose_tablets_can_move() -> None:
    world = _cluster_with_a_rack_of_one_node()
    found = planned(world, Leave("a2"))
    assert found.verdict is PlanVerdict.WAITS
    assert found.wait is not None and found.wait.kind is WaitKind.ROOM


def test_plan_fails_for_a_removal_without_targets_for_its_tablets() -> None:
    world = _cluster_with_a_dead_rack()
    world.balances = True
    found = planned(world, Remove(node_id="b1"))
    assert found.verdict is PlanVerdict.FAILS
    assert found.failure is not None and "4 tablets of 'b1'" in found.failure.message
    assert "or replace the node, or lower" in found.failure.message
    assert "then ask again (the node stays excluded)" in found.failure.message


def _with_the_only_copies_on_a_dead_node() -> World:
    """Return a balanced world in which each tablet has one replica, and c1 is excluded."""
    world = empty_cluster()
    world.add("a1 b1 c1")
    world.run()
    world.create_table({"dc1": 1}, 4)
    world.crash("c1")
    world.pass_s(DOWN_S)
    assert world.apply(Exclude(("c1",), force=True)) is None
    world.pass_s(DOWN_S)
    assert world.image.membership.excluded() == {"c1"}
    world.balances = True
    return world


@pytest.mark.parametrize(
    "command",
    [KeyspaceRfChange("music", {"dc1": 2}), ResizeTable("music.songs", 2)],
    ids=["new replicas", "merge"],
)
def test_plan_fails_for_tablets_that_only_a_dead_node_has(command: AnyCommand) -> None:
    world = _with_the_only_copies_on_a_dead_node()
    found = planned(world, command)
    assert found.verdict is PlanVerdict.FAILS and found.failure is not None
    assert world.apply(command, "asked") is None
    world.until(lambda: status_of(world, "asked") is RequestStatus.CANCELLED, "it is told", 30)
    assert found.failure.message[1:-1] in error_of(world, "asked")


def test_plan_fails_for_a_removal_while_a_round_is_open() -> None:
    world = _with_the_only_copies_on_a_dead_node()
    assert world.apply(Leave("b1")) is None
    world.until(lambda: not world.fenced(), "a round")
    found = planned(world, Remove(node_id="c1"))
    assert found.verdict is PlanVerdict.FAILS and found.failure is not None
    assert "may have acknowledged writes that only dead nodes have" in found.failure.message


def test_plan_of_an_excluded_node_names_writes_that_only_it_has() -> None:
    world = _with_the_only_copies_on_a_dead_node()
    found = planned(world, Remove(node_id="c1"))
    assert found.verdict is PlanVerdict.FAILS and found.failure is not None
    assert "only dead nodes have, c1" in found.failure.message
    assert world.apply(Remove(node_id="c1"), "remove") is None
    world.until(lambda: status_of(world, "remove") is RequestStatus.CANCELLED, "it is told", 30)
    assert found.failure.message[1:-1] in error_of(world, "remove")
    replacement = Replace(
        node_id="c2",
        replaced_id="c1",
        cluster="demo",
        address="http://c2",
        dc="dc1",
        rack="c",
        host_id="host-c2",
    )
    forced = Remove(node_id="c1", force=True)
    for command, verdict in ((forced, PlanVerdict.WAITS), (replacement, PlanVerdict.STARTS)):
        found = planned(world, command)
        (concern,) = found.plan.concerns
        assert found.verdict is verdict and concern.code == "data_may_be_lost"
        assert "of music.songs may have acknowledged writes that only c1 has" in concern.message


def test_removal_without_targets_is_cancelled_while_other_tablets_move() -> None:
    """Constant moves of other tablets would make the request wait without end."""
    world = _cluster_with_a_dead_rack()
    table = world.image.schema.serving("music.songs")
    assert table is not None
    rows = world.image.ring.placements[table.placement].rows
    (tablet, *_) = (at for at, row in enumerate(rows) if "a1" in row.reads)
    world.nodes["a2"].mute = True
    move = TabletMove(table="music.songs", tablet=tablet, from_node="a1", to_node="a2")
    assert world.apply(MoveTablets((move,)), "migration") is None
    reach(world, "migration", TransitionState.STREAMING, fenced=True)
    assert world.apply(Remove(node_id="b1"), "remove") is None
    world.balances = True
    world.until(lambda: status_of(world, "remove") is RequestStatus.CANCELLED, "it is told", 30)
    assert world.transition("migration").state is TransitionState.STREAMING


def test_leave_without_targets_is_cancelled_while_another_node_is_down() -> None:
    """The down node could not take the tablets either. The tablets of a1 wait for it."""
    world = _cluster_with_a_rack_of_one_node()
    world.nodes["a2"].alive = False
    world.pass_s(DOWN_S)
    found = planned(world, Leave("c1"))
    assert found.verdict is PlanVerdict.FAILS and found.wait is None
    assert found.failure is not None and found.failure.code == "no_place_for_tablets"
    assert planned(world, Leave("a1")).verdict is PlanVerdict.WAITS
    assert world.apply(Leave("c1"), "leave") is None
    world.until(lambda: status_of(world, "leave") is RequestStatus.CANCELLED, "it is told", 30)
    why = found.failure.message
    assert f"{why[0].lower()}{why[1:-1]}" in error_of(world, "leave")
