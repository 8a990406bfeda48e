"""Move: a node's tokens change while it serves."""

import pytest

from stele.domain.commands import AnyCommand, CreateKeyspace, Join, Leave, MoveNode
from stele.domain.names import NodeState, RequestStatus, TransitionState
from stele.domain.rules.ring import ring_now
from stele_simulator.ranges_in_use import sides
from tests.coordinator.stories import reach, spread, status_of
from tests.coordinator.world import World, empty_cluster, three_nodes
from tests.domain.epochs import code_of

STATE = TransitionState


def move(world: World, node_id: str, *tokens: int) -> str:
    request_id = f"move-{node_id}"
    assert world.apply(MoveNode(node_id=node_id, tokens=tokens), request_id) is None
    return request_id


def tokens_of(world: World, node_id: str) -> tuple[int, ...]:
    return world.image.membership.nodes[node_id].tokens


def rows(world: World, keyspace: str) -> list[object]:
    placement = world.image.placement_of(keyspace)
    assert placement is not None
    return [(row.start, row.end, sides(row)) for row in placement.rows]


def serve_ring(world: World, keyspace: str) -> None:
    keyspaces = world.image.schema
    replication = keyspaces.by_id[keyspaces.ids[keyspace]].replication
    wanted = ring_now(world.image).placement(replication)
    assert rows(world, keyspace) == [(r.start, r.end, sides(r)) for r in wanted.rows]


def test_move_goes_through_its_states_while_the_node_serves() -> None:
    world = spread()
    request_id = move(world, "a3", 550)
    seen: list[tuple[str, NodeState, tuple[int, ...]]] = []
    while request_id in world.image.requests.requests and status_of(world, request_id) in (
        RequestStatus.PENDING,
        RequestStatus.RUNNING,
    ):
        transition = world.image.topology.of_request(request_id)
        state = "" if transition is None else str(transition.state)
        now = (state, world.state("a3"), tokens_of(world, "a3"))
        if seen[-1:] != [now]:
            seen.append(now)
        world.tick()
    assert seen == [
        ("", NodeState.NORMAL, (300,)),
        ("write_both_read_old", NodeState.MOVING, (300,)),
        ("write_both_read_new", NodeState.MOVING, (300,)),
        ("finishing", NodeState.NORMAL, (550,)),
    ]
    world.run()
    serve_ring(world, "narrow")


def test_only_the_moving_node_and_its_successor_stream() -> None:
    world = spread()
    for node in world.nodes.values():
        node.orders.clear()
    move(world, "a3", 550)
    world.run()
    assert {n for n in world.nodes if world.orders(n)} == {"a3", "a4"}
    plan = next(
        transition.plans["dc1:1"]
        for image in world.images
        for transition in image.topology.open()
        if transition.transition_id == "move-a3"
    )
    assert [(row.start, row.end, row.old, row.new) for row in plan.rows] == [
        (200, 300, ("a3",), ("a4",)),
        (500, 550, ("a6",), ("a3",)),
    ]
    assert [(lock.start, lock.end) for lock in plan.locks] == [(200, 400), (500, 600)]
    cleaned = {
        node.node_id
        for image in world.images
        for node in image.membership.nodes.values()
        if node.cleanup_since and "move-a3" in image.requests.requests
    }
    assert cleaned == {"a3", "a6"}, "those who lost ranges"


def test_move_without_tokens_chooses_them_deterministically() -> None:
    def moved() -> tuple[int, ...]:
        world = spread()
        move(world, "a5")
        world.run()
        serve_ring(world, "narrow")
        return tokens_of(world, "a5")

    (token,) = moved()
    assert token != 500
    assert moved() == (token,)


def test_move_may_keep_some_tokens_and_change_their_number() -> None:
    world = three_nodes()
    one, two = tokens_of(world, "a1")
    assert status_of(world, finished(world, move(world, "a1", two, 17, 18))) is RequestStatus.DONE
    node = world.image.membership.nodes["a1"]
    assert (node.tokens, node.num_tokens) == (tuple(sorted((two, 17, 18))), 3)
    assert one not in world.image.membership.ring_tokens()
    serve_ring(world, "library")


def finished(world: World, request_id: str) -> str:
    world.run()
    return request_id


def test_parallel_moves_give_the_ring_of_sequential_moves() -> None:
    world = spread()
    for name, token in (("a2", 450), ("a6", 850)):
        move(world, name, token)
    world.until(lambda: len(world.image.topology.transitions) == 2, "both to be open")
    world.run()
    serve_ring(world, "narrow")
    assert tokens_of(world, "a2") + tokens_of(world, "a6") == (450, 850)


def test_join_cannot_take_old_or_new_tokens_of_an_open_move() -> None:
    world = spread()
    world.nodes["a4"].mute = True
    request_id = move(world, "a3", 550)
    reach(world, request_id, STATE.WRITE_BOTH_READ_OLD)
    for token in (300, 550):
        assert code_of(world.apply(_join(token))) == "bad_tokens"
    world.nodes["a4"].mute = False
    world.run()
    assert world.apply(_join(300), "join-a10") is None
    world.run()
    serve_ring(world, "narrow")


def _join(token: int) -> Join:
    return Join(
        node_id="a10",
        cluster="demo",
        address="http://a10",
        dc="dc1",
        rack="r",
        initial_tokens=(token,),
        host_id="host-a10",
    )


def test_keyspace_created_during_a_move_enters_its_state() -> None:
    world = spread()
    world.nodes["a4"].mute = True
    request_id = move(world, "a3", 550)
    reach(world, request_id, STATE.WRITE_BOTH_READ_OLD)
    assert world.apply(CreateKeyspace("later", {"dc1": 3})) is None
    world.nodes["a4"].mute = False
    world.run()
    serve_ring(world, "later")


def test_moving_node_counts_as_a_member_for_replication() -> None:
    world = three_nodes(rf=2)
    world.nodes["b1"].mute = world.nodes["c1"].mute = True
    request_id = move(world, "a1", 5, 6)
    reach(world, request_id, STATE.WRITE_BOTH_READ_OLD)
    assert world.apply(CreateKeyspace("wide", {"dc1": 3})) is None
    assert code_of(world.apply(Leave("a1"))) == "request_in_progress"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (MoveNode(node_id="a9"), "unknown_node"),
        (MoveNode(node_id="a1", tokens=(1, 1)), "bad_tokens"),
        (MoveNode(node_id="a1", tokens=(-(2**63),)), "bad_tokens"),
        (MoveNode(node_id="a1", tokens=(2**63,)), "bad_tokens"),
        (MoveNode(node_id="a1", tokens=tuple(range(1025))), "bad_num_tokens"),
    ],
)
def test_invalid_move_is_refused(command: AnyCommand, code: str) -> None:
    assert code_of(three_nodes().apply(command)) == code


def test_tokens_of_other_nodes_and_unchanged_tokens_are_refused() -> None:
    world = three_nodes()
    others = world.apply(MoveNode(node_id="a1", tokens=tokens_of(world, "b1")))
    assert others is not None and others.code == "bad_tokens"
    same = world.apply(MoveNode(node_id="a1", tokens=tokens_of(world, "a1")[::-1]))
    assert same is not None and same.code == "same_tokens"
    move(world, "a1", 77)
    assert code_of(world.apply(MoveNode(node_id="b1", tokens=(77,)))) == "bad_tokens"
    assert code_of(world.apply(MoveNode(node_id="a1", tokens=(78,)))) == "request_in_progress"
    world.run()
    assert world.apply(MoveNode(node_id="c1"), "chosen") is None
    world.run()
    again = world.apply(MoveNode(node_id="c1"))
    assert again is not None and again.code == "same_tokens", "nothing has changed since"
    world.run()


def test_single_node_can_move() -> None:
    world = empty_cluster()
    world.add("a1")
    world.run()
    assert world.apply(CreateKeyspace("library", {"dc1": 1})) is None
    move(world, "a1", 10)
    world.run()
    assert tokens_of(world, "a1") == (10,)
    serve_ring(world, "library")


def test_left_or_leaving_node_cannot_move() -> None:
    world = three_nodes()
    assert world.apply(Leave("a1"), "leave") is None
    assert code_of(world.apply(MoveNode(node_id="a1"))) == "request_in_progress"
    world.run()
    assert code_of(world.apply(MoveNode(node_id="a1"))) == "node_left"
