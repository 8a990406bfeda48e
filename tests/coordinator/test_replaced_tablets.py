"""Tablets of a replaced node are rebuilt one by one, after the new node is normal.

Source: ScyllaDB, topology-over-raft.md, "Node replace with tablets".
"""

from __future__ import annotations

from collections.abc import Callable

from stele.domain.balancer.proposals import proposal
from stele.domain.commands import Cancel, Exclude, Remove, ResizeTable, SwitchBalancingOff
from stele.domain.model.requests import Request
from stele.domain.names import NodeState, RequestStatus, TransitionState
from stele.domain.tablets.maps import held_by
from stele.words.names import departure
from tests.coordinator.operations import DOWN_S
from tests.coordinator.stories import error_of, status_of
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import World
from tests.domain.epochs import code_of

STATE = TransitionState


def replacing(nodes: str = "a1 b1 c1", count: int = 16, rf: int = 2, dead: str = "c1") -> World:
    """Return a cluster with a balancer, in which c9 was requested to replace a dead node."""
    world = with_table(nodes, count, rf)
    world.balances = True
    world.crash(dead)
    world.pass_s(DOWN_S)
    assert world.replace("c9", dead, force=rf == 1) is None
    return world


def is_done(world: World, request_id: str) -> Callable[[], bool]:
    return lambda: status_of(world, request_id) is RequestStatus.DONE


def removal_of(world: World, node_id: str) -> Request:
    requests = world.image.requests.requests.values()
    (found,) = (r for r in requests if r.removes_node and r.node_id == node_id)
    return found


def test_replacement_moves_and_locks_no_tablets() -> None:
    world = replacing()
    before = tablets(world)
    world.nodes["c9"].mute = True  # the streams of the ring's ranges never end
    world.until(
        lambda: any(t.state is STATE.WRITE_BOTH_READ_OLD for t in world.image.topology.open()),
        "the replacement to stream",
    )
    world.pass_s(30)
    assert tablets(world) == before, "the balancer leaves them to the new node"
    assert world.apply(ResizeTable(TABLE, 32), "split") is None
    world.until(is_done(world, "split"), "a split beside it")
    world.nodes["c9"].mute = False
    world.until(is_done(world, "replace-c9"), "the replacement")


def test_tablets_are_rebuilt_within_limits_after_the_new_node_is_normal() -> None:
    world = replacing()
    count = held_by(world.image)["c1"]
    assert count > 4
    world.until(is_done(world, "replace-c9"), "the replacement")
    assert world.state("c9") is NodeState.NORMAL
    dead = world.image.membership.nodes["c1"]
    assert dead.state is NodeState.NORMAL and dead.excluded and not dead.tokens
    removal = removal_of(world, "c1")
    assert removal.status is RequestStatus.PENDING and removal.reason == "replaced by c9"
    assert error_of(world, "replace-c9") == (
        f"{count} tablets of c1 had yet to be rebuilt when it ended:"
        f" `stele why {removal.request_id}`"
    )
    most = 0

    def is_removed() -> bool:
        nonlocal most
        streams = [t for t in world.image.topology.open() if t.state is STATE.STREAMING]
        most = max(most, len(streams))
        return removal_of(world, "c1").status is RequestStatus.DONE

    world.until(is_removed, "the removal of the replaced node", 900)
    assert 1 <= most <= 2, "tablet_stream_writes is 2 for each shard"
    assert held_by(world.image)["c9"] == count, "the new node was empty, so it got all of them"
    gone = world.image.membership.nodes["c1"]
    assert gone.state is NodeState.LEFT
    assert departure(gone, world.image.request(gone.request_id)) == "replaced by c9"


def test_tablets_of_a_replaced_node_are_rebuilt_with_balancing_off() -> None:
    world = replacing(count=4)
    assert world.apply(SwitchBalancingOff()) is None
    world.until(lambda: world.state("c1") is NodeState.LEFT, "the removal", 900)
    assert "c1" not in held_by(world.image)


def test_forced_replacement_gives_up_tablets_with_a_dead_only_replica() -> None:
    world = replacing(count=4, rf=1)
    assert held_by(world.image)["c1"]
    world.until(lambda: world.state("c1") is NodeState.LEFT, "the removal", 900)
    assert all(len(row.reads) == 1 and "c1" not in row.reads for row in tablets(world))


def test_removal_of_a_replaced_node_can_be_repeated_after_a_cancel() -> None:
    world = replacing()
    world.balances = False
    world.until(is_done(world, "replace-c9"), "the replacement")
    assert code_of(world.apply(Remove(node_id="c1"))) == "request_in_progress"
    assert world.apply(Cancel(removal_of(world, "c1").request_id)) is None
    world.run()
    assert world.apply(Remove(node_id="c1"), "again") is None
    world.balances = True
    world.until(is_done(world, "again"), "the removal", 900)


def test_new_node_that_dies_before_the_rebuild_can_be_replaced() -> None:
    world = replacing("a1 b1 c1", 8, rf=3)
    world.until(is_done(world, "replace-c9"), "the replacement")
    world.crash("c9")
    world.pass_s(DOWN_S)
    assert world.replace("c10", "c9") is None
    world.until(is_done(world, "replace-c10"), "the second replacement", 900)
    world.until(lambda: world.state("c1") is NodeState.LEFT, "the removal", 900)
    world.until(lambda: world.state("c9") is NodeState.LEFT, "the removal", 900)
    assert all({*row.reads} == {"a1", "b1", "c10"} for row in tablets(world))


def test_removal_of_a_replaced_node_waits_for_room_for_its_tablets() -> None:
    world = replacing("a1 b1 c1", 4, rf=3)
    world.until(is_done(world, "replace-c9"), "the replacement")
    removal = removal_of(world, "c1").request_id
    world.crash("c9")
    world.pass_s(DOWN_S)
    assert world.apply(Exclude(("c9",))) is None
    world.pass_s(DOWN_S)
    assert status_of(world, removal) is RequestStatus.PENDING
    (found,) = proposal(world.image).stuck
    assert found.request_id == removal and "no other node can take" in found.why
    assert found.why.endswith(
        "Add a node in rack r of dc1, or lower the replication factor; it waits until then"
    )
    world.add("c2", rack="r")
    world.until(is_done(world, removal), "the removal", 900)
    assert world.state("c1") is NodeState.LEFT


def test_replaced_node_without_tablets_leaves_at_once() -> None:
    world = with_table("a1 b1 c1 d1", 1)
    spare = min({"a1", "b1", "c1", "d1"} - {*tablets(world)[0].writes})
    world.crash(spare)
    world.pass_s(DOWN_S)
    assert world.replace("c9", spare) is None
    world.run()
    assert world.state(spare) is NodeState.LEFT
    assert not any(request.removes_node for request in world.image.requests.requests.values())
