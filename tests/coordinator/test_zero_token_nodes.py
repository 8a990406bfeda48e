"""Zero-token nodes: they coordinate requests and hold no data; a dc of them is an arbiter datacentre."""

import pytest

from stele.coordinator.steps import Limits
from stele.domain.commands import (
    Cancel,
    CreateKeyspace,
    Exclude,
    Join,
    Leave,
    MoveNode,
    Rebuild,
    Remove,
)
from stele.domain.names import NodeState, RequestStatus, TransitionState
from tests.coordinator.stories import reach, status_of
from tests.coordinator.test_move import rows
from tests.coordinator.waits import blockers
from tests.coordinator.world import World, empty_cluster, three_nodes
from tests.domain.epochs import code_of

STATE = TransitionState
DOWN_S = Limits().down_after_s + 1


def with_zero_token(dc: str = "dc1", rf: int = 2) -> World:
    """Return a1, b1, c1 with tokens, and z1 without."""
    world = three_nodes(rf)
    world.add("z1", dc, num_tokens=0)
    world.run()
    return world


def test_zero_token_node_joins_without_changing_replicas() -> None:
    world = three_nodes(rf=2)
    before = rows(world, "library")
    world.add("z1", num_tokens=0)
    world.run()
    node = world.image.membership.nodes["z1"]
    assert (node.state, node.tokens, node.num_tokens) == (NodeState.NORMAL, (), 0)
    assert rows(world, "library") == before
    assert not any(node.cleanup_since for node in world.image.membership.nodes.values())


def test_zero_token_node_cannot_be_the_first_node() -> None:
    world = empty_cluster()
    asked = Join(
        node_id="z1",
        cluster="demo",
        address="http://z",
        dc="d",
        rack="r",
        num_tokens=0,
        host_id="z",
    )
    assert code_of(world.apply(asked)) == "no_tokens_yet"


def test_zero_token_node_joins_together_with_other_nodes() -> None:
    world = three_nodes(rf=2)
    world.add("z1", num_tokens=0)
    world.add("a2")
    world.until(lambda: world.image.topology.transitions, "the group to open")
    (group,) = world.image.topology.open()
    assert {*group.nodes()} == {"z1", "a2"}
    world.run()
    assert len(world.image.membership.nodes["a2"].tokens) == 2


def test_barrier_waits_for_a_zero_token_node() -> None:
    world = with_zero_token()
    assert world.apply(Leave("a1"), "leave") is None
    reach(world, "leave", STATE.WRITE_BOTH_READ_OLD, fenced=False)
    world.nodes["z1"].applies = False
    steps = world.pass_s(2)
    assert [blocker.node_id for blocker in blockers(steps)] == ["z1"]
    took_s = world.until(lambda: status_of(world, "leave") is RequestStatus.DONE, "a quorum")
    assert took_s >= Limits().barrier_patience_s - 2, "then it is fenced out"


def test_zero_token_node_does_not_count_for_replication() -> None:
    world = with_zero_token()
    assert code_of(world.apply(CreateKeyspace("wide", {"dc1": 4}))) == "too_few_nodes"
    wide = three_nodes(rf=3)
    wide.add("z1", num_tokens=0)
    wide.run()
    assert code_of(wide.apply(Leave("a1"))) == "too_few_nodes"
    assert wide.apply(Leave("z1"), "leave") is None
    wide.run()
    assert wide.state("z1") is NodeState.LEFT


def test_last_node_with_tokens_cannot_leave() -> None:
    world = empty_cluster()
    world.add("a1")
    world.run()
    world.add("z1", num_tokens=0)
    world.run()
    assert code_of(world.apply(Leave("a1"))) == "last_node"
    assert code_of(world.apply(Exclude(("a1",)))) == "last_node"


def test_arbiter_dc_takes_no_replicas() -> None:
    world = with_zero_token("arbiter")
    refused = world.apply(CreateKeyspace("both", {"dc1": 2, "arbiter": 1}))
    assert refused is not None and refused.code == "too_few_nodes"
    assert "only zero-token nodes" in refused.hint
    assert world.apply(CreateKeyspace("both", {"dc1": 2, "arbiter": 0})) is None
    keyspace = world.image.schema.named("both")
    assert keyspace is not None
    assert (keyspace.replication, keyspace.placement) == ({"dc1": 2}, "dc1:2")
    assert code_of(world.apply(CreateKeyspace("less", {"dc1": -1}))) == "bad_replication"


def test_dead_zero_token_node_is_removed_without_streams() -> None:
    world = with_zero_token("arbiter")
    before = rows(world, "library")
    world.nodes["z1"].alive = False
    world.pass_s(DOWN_S)
    for node in world.nodes.values():
        node.orders.clear()
    assert world.apply(Remove(node_id="z1"), "remove") is None
    world.run()
    assert world.state("z1") is NodeState.LEFT
    assert rows(world, "library") == before
    assert not any(world.orders(name) for name in world.nodes)


def test_joint_removal_of_zero_token_nodes_continues_after_a_cancel() -> None:
    """A node without blame waits again, as a member."""
    world = three_nodes(rf=2)
    world.add("z1 z2", num_tokens=0)
    world.add("a2 b2")
    world.run()
    for name in ("z1", "z2", "a2"):
        world.nodes[name].alive = False
    for name in ("a1", "b1", "c1", "b2"):
        world.nodes[name].mute = True
    world.pass_s(DOWN_S)
    for name in ("z1", "z2", "a2"):
        assert world.apply(Remove(node_id=name), f"remove-{name}") is None
    reach(world, "remove-a2", STATE.WRITE_BOTH_READ_OLD)
    (group,) = world.image.topology.open()
    assert {*group.nodes()} == {"z1", "z2", "a2"}
    assert world.apply(Cancel("remove-a2")) is None
    world.until(lambda: status_of(world, "remove-a2") is RequestStatus.CANCELLED, "the way back")
    assert world.state("z1") in (NodeState.NORMAL, NodeState.REMOVING)
    for node in world.nodes.values():
        node.mute = False
    world.run()
    assert (world.state("z1"), world.state("z2")) == (NodeState.LEFT, NodeState.LEFT)


@pytest.mark.parametrize("zero_token", [True, False])
def test_zero_token_node_is_replaced_only_by_a_zero_token_node(*, zero_token: bool) -> None:
    world = with_zero_token()
    world.nodes["z1"].alive = False
    world.pass_s(DOWN_S)
    refused = world.replace("z9", "z1", zero_token=zero_token)
    assert ("" if refused is None else refused.code) == ("" if zero_token else "other_tokens")
    if zero_token:
        world.run()
        assert (world.state("z1"), world.state("z9")) == (NodeState.LEFT, NodeState.NORMAL)
        assert world.image.membership.nodes["z9"].tokens == ()
        assert code_of(world.replace("z10", "a1", zero_token=True)) == "other_tokens"


def test_zero_token_node_cannot_move_and_has_nothing_to_rebuild() -> None:
    world = with_zero_token()
    assert code_of(world.apply(MoveNode(node_id="z1", tokens=(1,)))) == "no_tokens"
    assert code_of(world.apply(Rebuild(node_id="z1", source_dc="x" * 1000))) == "bad_name"
    assert world.apply(Rebuild(node_id="z1"), "rebuild") is None
    request = world.image.request("rebuild")
    assert request is not None and request.status is RequestStatus.DONE
    assert "nothing to rebuild" in request.error
    assert world.apply(Leave("z1")) is None, "its request is over"
    assert code_of(world.apply(Rebuild(node_id="a1", source_dc="nowhere"))) == "unknown_dc"
