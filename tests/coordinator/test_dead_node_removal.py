"""Dead nodes are removed, replaced or excluded, at every replication factor."""

from typing import Any

import pytest

from stele.coordinator.steps import Limits, Observed, next_steps
from stele.domain.commands import (
    Cancel,
    CreateKeyspace,
    Exclude,
    Leave,
    MoveTablets,
    Remove,
    command_name,
)
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove
from stele.domain.names import NodeState, RequestStatus, TransitionState, WaitKind
from stele.domain.rules.ring import ring_now
from stele_simulator.ranges_in_use import sides
from tests.coordinator.operations import DOWN_S, with_dead
from tests.coordinator.stories import error_of, reach, status_of, undoing
from tests.coordinator.world import World, three_nodes
from tests.domain.epochs import code_of

STATE = TransitionState
BEFORE = (STATE.JOIN_GROUP0, STATE.WRITE_BOTH_READ_OLD)


def remove(world: World, node_id: str, **more: Any) -> str:
    """Submit the request. Return its id."""
    request_id = f"remove-{node_id}"
    assert world.apply(Remove(node_id=node_id, **more), request_id) is None
    return request_id


def ended(world: World, request_id: str) -> RequestStatus:
    world.until(lambda: world.image.request(request_id) and not open_(world, request_id), "the end")
    return status_of(world, request_id)


def open_(world: World, request_id: str) -> bool:
    return status_of(world, request_id) in (RequestStatus.PENDING, RequestStatus.RUNNING)


def placements(image: Image) -> dict[str, list[object]]:
    """Return ranges with their readers and writers."""
    return {
        name: [(row.start, row.end, sides(row)) for row in image.ring.placements[name].rows]
        for name in image.schema.replications()
    }


def serve_ring(world: World) -> None:
    """Check that the placements equal those of the ring at rest."""
    image = world.image
    for name, replication in image.schema.replications().items():
        wanted = ring_now(image).placement(replication)
        assert placements(image)[name] == [(r.start, r.end, sides(r)) for r in wanted.rows]


@pytest.mark.parametrize("rf", [2, 3])
def test_dead_node_is_removed(rf: int) -> None:
    world = with_dead(rf, "b1")
    assert ended(world, remove(world, "b1")) is RequestStatus.DONE
    node = world.image.node("b1")
    assert node is not None
    assert (node.state, node.tokens, node.excluded) == (NodeState.LEFT, (), False)
    assert not [order for order in world.orders("b1") if order.request_id == "remove-b1"]
    serve_ring(world)
    world.run()


def test_request_without_force_is_told_which_dead_nodes_to_remove_first() -> None:
    """A join and a leave have no force that gives up writes, and remove no dead node."""
    world = with_dead(1, "b1", nodes="")
    assert world.apply(Exclude(("b1",), force=True), "exclude") is None
    assert ended(world, "exclude") is RequestStatus.DONE
    world.add("a2")
    assert ended(world, "join-a2") is RequestStatus.FAILED
    advice = "First remove or replace them with force, as in `stele remove b1 --force`: "
    assert advice in error_of(world, "join-a2")
    assert world.apply(Leave("a1"), "leave") is None
    assert ended(world, "leave") is RequestStatus.FAILED
    assert "Ask to remove b1 first, as in `stele remove b1`; or" in error_of(world, "leave")


@pytest.mark.parametrize("rf", [2, 3])
def test_dead_node_is_replaced_with_its_address_and_tokens(rf: int) -> None:
    world = with_dead(rf, "b1")
    before = world.image.node("b1")
    assert before is not None
    assert world.replace("b9", "b1") is None
    assert ended(world, "replace-b9") is RequestStatus.DONE
    dead, new = world.image.node("b1"), world.image.node("b9")
    assert dead is not None and new is not None
    assert (dead.state, dead.tokens, dead.excluded) == (NodeState.LEFT, (), False)
    assert (new.state, new.tokens, new.address) == (NodeState.NORMAL, before.tokens, before.address)
    serve_ring(world)
    world.run()


@pytest.mark.parametrize("operation", ["remove", "replace", "exclude"])
def test_live_node_is_not_declared_dead(operation: str) -> None:
    world = with_dead(3)
    request_id = ask(world, operation, "b1")
    world.pass_s(DOWN_S)
    assert status_of(world, request_id) is RequestStatus.PENDING
    assert ended(world, request_id) is RequestStatus.FAILED
    assert error_of(world, request_id).startswith("b1 is up: it was heard ")
    assert not world.image.membership.excluded()


def ask(world: World, operation: str, node_id: str) -> str:
    if operation == "remove":
        return remove(world, node_id)
    if operation == "replace":
        assert world.replace("b9", node_id) is None
        return "replace-b9"
    assert world.apply(Exclude((node_id,)), "exclude") is None
    return "exclude"


@pytest.mark.parametrize("operation", ["remove", "replace", "exclude"])
def test_new_coordinator_waits_for_heartbeats_before_an_exclusion(operation: str) -> None:
    """The coordinator has received nothing yet, so all nodes seem dead."""
    world = with_dead(3)
    world.replace_brain()
    request_id = ask(world, operation, "b1")
    world.pass_s(1)
    assert status_of(world, request_id) is RequestStatus.PENDING
    assert ended(world, request_id) is RequestStatus.FAILED


@pytest.mark.parametrize("operation", ["remove", "replace", "exclude"])
def test_coordinator_waits_for_heartbeats_again_after_a_partition(operation: str) -> None:
    """The first heartbeat of one node proves nothing about the others."""
    world = with_dead(3)
    request_id = ask(world, operation, "b1")
    for node in world.nodes.values():
        node.alive = False
    world.pass_s(4 * DOWN_S)
    for name, node in world.nodes.items():
        node.alive = name != "b1"
    world.pass_s(1)
    world.nodes["b1"].alive = True
    assert not world.image.membership.excluded()
    assert ended(world, request_id) is RequestStatus.FAILED
    assert error_of(world, request_id).startswith("b1 is up: ")


@pytest.mark.parametrize("operation", ["remove", "replace"])
def test_only_copy_on_a_dead_node_is_given_up_only_with_force(operation: str) -> None:
    world = with_dead(1, "b1")
    request_id = ask(world, operation, "b1")
    assert ended(world, request_id) is RequestStatus.FAILED
    assert "may have acknowledged writes that only b1 has" in error_of(world, request_id)
    assert not world.image.membership.excluded()
    world.run()
    if operation == "remove":
        request_id = "forced"
        assert world.apply(Remove(node_id="b1", force=True), request_id) is None
    else:
        assert world.replace("b10", "b1", force=True) is None
        request_id = "replace-b10"
    assert ended(world, request_id) is RequestStatus.DONE
    request = world.image.request(request_id)
    assert request is not None and request.force
    serve_ring(world)
    world.run()


@pytest.mark.parametrize("operation", ["remove", "replace"])
def test_operation_that_may_lose_acknowledged_writes_fails(operation: str) -> None:
    """Only a1 is left for one of their ranges, and a write may have been acknowledged by b1 and c1."""
    world = with_dead(3, "b1", "c1", nodes="")
    assert world.apply(Exclude(("c1",)), "exclude") is None
    assert ended(world, "exclude") is RequestStatus.DONE
    if operation == "remove":
        assert code_of(world.apply(Remove(node_id="b1"))) == "too_few_nodes"
        return
    request_id = ask(world, operation, "b1")
    assert ended(world, request_id) is RequestStatus.FAILED
    assert "only b1 and c1 have" in error_of(world, request_id)


def test_excluded_bystander_does_not_delay_a_join() -> None:
    world = with_dead(3, "b1")
    world.add("a2")
    world.until(lambda: status_of(world, "join-a2") is RequestStatus.DONE, "the join")
    assert world.apply(Exclude(("b1",)), "exclude") is None
    assert ended(world, "exclude") is RequestStatus.DONE
    world.add("a3")
    took_s = world.until(lambda: status_of(world, "join-a3") is RequestStatus.DONE, "the join")
    assert took_s < Limits().barrier_patience_s, "it does not wait for excluded nodes"
    assert world.state("b1") is NodeState.NORMAL
    serve_ring(world)


@pytest.mark.parametrize("operation", ["remove", "replace"])
def test_request_must_name_other_dead_nodes(operation: str) -> None:
    world = with_dead(3, "a1", "b1", nodes="a2 b2 c2 a3 b3 c3")
    request_id = ask(world, operation, "b1")
    world.pass_s(5 * Limits().dead_node_patience_s)
    (wait,) = [w for w in world.brain.steps.waits if request_id in w.request_ids]
    assert (wait.kind, [b.node_id for b in wait.blockers]) == (WaitKind.MEMBERS, ["a1"])
    assert not world.image.membership.excluded(), "nothing came of it"
    assert world.apply(Cancel(request_id)) is None
    assert world.apply(Remove(node_id="b1", ignore_nodes=("a1",), force=True), "again") is None
    assert ended(world, "again") is RequestStatus.DONE
    assert world.image.membership.excluded() == {"a1"}
    assert ended(world, remove(world, "a1", force=True)) is RequestStatus.DONE
    assert not world.image.membership.excluded()


def test_replacement_that_never_starts_excludes_no_node() -> None:
    world = with_dead(3, "b1")
    assert world.replace("b9", "b1") is None
    world.nodes["b9"].alive = False
    world.pass_s(5 * Limits().dead_node_patience_s)
    assert status_of(world, "replace-b9") is RequestStatus.PENDING
    assert world.apply(Cancel("replace-b9")) is None
    assert not world.image.membership.excluded()
    world.nodes["b1"].alive = True
    world.run()


def test_two_removals_that_ignore_each_others_dead_nodes_do_not_deadlock() -> None:
    world = with_dead(3, "a1", "b1", nodes="a2 b2 c2 a3 b3 c3")
    request_id = remove(world, "b1", force=True)
    assert world.replace("a9", "a1", force=True) is None
    assert ended(world, request_id) is RequestStatus.DONE
    assert ended(world, "replace-a9") is RequestStatus.DONE
    serve_ring(world)


@pytest.mark.parametrize("state", BEFORE)
def test_replacement_can_be_repeated_after_the_new_node_died(
    state: TransitionState,
) -> None:
    world = undoing(with_dead(3, "b1"))
    before = placements(world.image)
    assert world.replace("b9", "b1") is None
    world.nodes["b9"].mute = True
    reach(world, "replace-b9", state, fenced=False)
    world.nodes["b9"].alive = False
    assert ended(world, "replace-b9") is RequestStatus.FAILED
    assert world.state("b9") is NodeState.LEFT
    node = world.image.node("b1")
    assert node is not None
    assert (node.state, node.excluded) == (NodeState.NORMAL, True)
    assert placements(world.image) == before
    assert world.replace("b10", "b1") is None
    assert ended(world, "replace-b10") is RequestStatus.DONE
    serve_ring(world)


def test_cancelled_removal_restores_placements_and_keeps_the_exclusion() -> None:
    world = with_dead(3, "b1")
    before = placements(world.image)
    for name in ("a1", "b2", "c1", "c2"):
        world.nodes[name].mute = True
    request_id = remove(world, "b1")
    reach(world, request_id, STATE.WRITE_BOTH_READ_OLD)
    assert world.state("b1") is NodeState.REMOVING
    assert placements(world.image) != before
    assert world.apply(Cancel(request_id), "cancel") is None
    assert ended(world, request_id) is RequestStatus.CANCELLED
    assert placements(world.image) == before
    assert world.image.membership.excluded() == {"b1"}


def test_excluded_node_that_returns_does_not_block_barriers() -> None:
    world = with_dead(3, "b1")
    assert world.apply(Exclude(("b1",)), "exclude") is None
    assert ended(world, "exclude") is RequestStatus.DONE
    world.nodes["b1"].alive, world.nodes["b1"].applies = True, False
    world.add("a2")
    took_s = world.until(lambda: status_of(world, "join-a2") is RequestStatus.DONE, "the join")
    assert took_s < Limits().barrier_patience_s
    assert ended(world, remove(world, "b1")) is RequestStatus.DONE
    assert world.state("b1") is NodeState.LEFT


def test_second_request_for_a_dead_node_is_refused() -> None:
    world = with_dead(3, "b1")
    remove(world, "b1")
    assert code_of(world.replace("b9", "b1")) == "request_in_progress"
    assert code_of(world.apply(Remove(node_id="b1"))) == "request_in_progress"


def test_excluded_node_cannot_leave_or_be_excluded_again() -> None:
    world = with_dead(3, "b1")
    assert world.apply(Exclude(("b1",)), "exclude") is None
    assert ended(world, "exclude") is RequestStatus.DONE
    assert code_of(world.apply(Leave("b1"))) == "node_excluded"
    assert code_of(world.apply(Exclude(("b1",)))) == "nobody_to_exclude"


def test_refusal_does_not_advise_to_start_an_excluded_node() -> None:
    world = with_dead(1, "b1")
    assert world.apply(Exclude(("b1",), force=True), "exclude") is None
    assert ended(world, "exclude") is RequestStatus.DONE
    assert world.replace("b9", "b1") is None
    assert ended(world, "replace-b9") is RequestStatus.FAILED
    assert error_of(world, "replace-b9").endswith(
        "only b1 has. Start a new node with STELE_JOIN=no and use `stele replace b1 URL --force`:"
        " these writes are then given up."
    )
    assert ended(world, remove(world, "b1")) is RequestStatus.FAILED


def test_removed_node_is_not_marked_for_cleanup() -> None:
    """The node lost ranges while it was excluded, and so was marked for cleanup."""
    world = with_dead(3, "b1")
    assert world.apply(Exclude(("b1",)), "exclude") is None
    assert ended(world, "exclude") is RequestStatus.DONE
    world.add("b3")
    assert ended(world, "join-b3") is RequestStatus.DONE
    node = world.image.node("b1")
    assert node is not None and node.cleanup_since > 0
    assert ended(world, remove(world, "b1")) is RequestStatus.DONE
    node = world.image.node("b1")
    assert node is not None and node.cleanup_since == 0


def test_coordinator_waits_for_heartbeats_again_after_a_pause() -> None:
    """It receives acks of the others first. The ack of b1 follows a moment later."""
    world = with_dead(3)
    request_id = remove(world, "b1")
    world.pass_s(1)
    brain = world.brain
    world.now_s += 60
    slept_to_s = world.now_s
    for name in ("a1", "c1", "b2", "c2"):
        brain.hear(world.nodes[name].ack(world.image))

    def commands(now_s: float) -> set[str]:
        seen = Observed(
            world.image, brain.acks, brain.reports, brain.term, now_s, reading=brain.reading
        )
        steps = next_steps(brain.memory, seen, world.limits)
        brain.memory = steps.memory
        return {command_name(envelope.command) for envelope in steps.commands}

    assert "exclude_dead" not in commands(slept_to_s)
    assert "exclude_dead" not in commands(slept_to_s + 1)
    for later_s in range(2, 5):
        assert "exclude_dead" not in commands(slept_to_s + later_s)
    assert status_of(world, request_id) is RequestStatus.PENDING


def test_operation_blocked_by_excluded_and_silent_nodes_is_rolled_back() -> None:
    """Each alone would leave a quorum. A node declared dead meanwhile counts as silent."""
    world = undoing(with_dead(2, nodes="b2"))
    assert world.apply(Leave("b2"), "leave") is None
    reach(world, "leave", STATE.WRITE_BOTH_READ_OLD, fenced=False)
    for name in ("a1", "b2"):
        world.nodes[name].alive = False
    assert world.apply(Exclude(("a1",)), "exclude") is None
    assert ended(world, "exclude") is RequestStatus.DONE
    assert ended(world, "leave") is RequestStatus.FAILED
    assert "b2" in error_of(world, "leave")
    serve_ring(world)


def two_of_a_rack(*, excluded: bool = False) -> World:
    """Return a world in which b1 and b2 are dead, and each would take over from the other."""
    world = with_dead(3, "b1", "b2")
    if excluded:
        assert world.apply(Exclude(("b1", "b2")), "exclude") is None
        assert ended(world, "exclude") is RequestStatus.DONE
    return world


@pytest.mark.parametrize("excluded", [False, True])
def test_dead_nodes_of_a_rack_are_removed_together(*, excluded: bool) -> None:
    world = two_of_a_rack(excluded=excluded)
    first = remove(world, "b1")
    world.tick()
    second = remove(world, "b2")
    world.until(lambda: world.image.topology.of_request(first), "the removal")
    transition = world.image.topology.of_request(first)
    assert transition is not None and {*transition.request_ids()} == {first, second}
    assert ended(world, first) is RequestStatus.DONE
    assert status_of(world, second) is RequestStatus.DONE
    assert not world.image.membership.excluded()
    serve_ring(world)
    world.run()


def test_removal_of_one_of_two_dead_nodes_is_refused_with_a_hint() -> None:
    world = two_of_a_rack(excluded=True)
    request_id = remove(world, "b1")
    world.pass_s(Limits().company_s / 2)
    assert open_(world, request_id)
    assert ended(world, request_id) is RequestStatus.FAILED
    assert "`stele remove NODE b2`" in error_of(world, request_id)


def test_impossible_joint_removal_is_refused_and_excludes_no_node() -> None:
    """Some ranges have one replica left, which may lack acknowledged writes."""
    world = with_dead(3, "b1", "c1")
    first, second = remove(world, "b1"), remove(world, "c1")
    assert ended(world, first) is RequestStatus.FAILED
    assert ended(world, second) is RequestStatus.FAILED
    assert "only b1 and c1 have" in error_of(world, first)
    assert not world.image.membership.excluded()


def test_removal_succeeds_next_to_a_refused_removal_of_a_live_node() -> None:
    world = with_dead(3, "b1")
    wrong, right = remove(world, "c1"), remove(world, "b1")
    assert ended(world, right) is RequestStatus.DONE
    assert ended(world, wrong) is RequestStatus.FAILED
    serve_ring(world)


def test_removal_without_force_is_refused_next_to_a_forced_one() -> None:
    """One request gives up the ranges that only the two have, and the other does not."""
    world = with_dead(2, "b1", "c1")
    assert world.apply(Exclude(("b1", "c1"), force=True), "exclude") is None
    assert ended(world, "exclude") is RequestStatus.DONE
    careful = remove(world, "c1")
    assert ended(world, careful) is RequestStatus.FAILED
    assert "only b1 and c1 have" in error_of(world, careful)
    both = [remove(world, "b1", force=True), f"{careful}-forced"]
    assert world.apply(Remove(node_id="c1", force=True), both[1]) is None
    assert [ended(world, request_id) for request_id in both] == [RequestStatus.DONE] * 2


def test_cancel_of_one_of_two_joint_removals_ends_both() -> None:
    world = two_of_a_rack()
    for name in ("a1", "c1", "c2"):
        world.nodes[name].mute = True
    first, second = remove(world, "b1"), remove(world, "b2")
    reach(world, first, STATE.WRITE_BOTH_READ_OLD)
    assert world.apply(Cancel(first), "cancel") is None
    assert ended(world, first) is RequestStatus.CANCELLED
    assert ended(world, second) is RequestStatus.FAILED
    assert "`stele remove NODE b1`" in error_of(world, second)
    serve_ring(world)


def test_two_exclusions_cannot_exclude_all_nodes_with_data() -> None:
    """Each request leaves a node with data, but both do not. Nodes without tokens have no data."""
    world = three_nodes(2)
    world.add("z1 z2", num_tokens=0)
    world.run()
    for name in ("a1", "b1", "c1"):
        world.nodes[name].alive = False
    world.pass_s(DOWN_S)
    assert world.apply(Exclude(("a1",)), "first") is None
    assert world.apply(Exclude(("b1", "c1")), "second") is None
    assert ended(world, "first") is RequestStatus.DONE
    assert ended(world, "second") is RequestStatus.FAILED
    assert world.image.membership.excluded() == {"a1"}


def test_keyspace_with_replicas_on_excluded_nodes_is_refused() -> None:
    """Some of its ranges could not be written, and would block the removal of the node."""
    world = three_nodes(2)
    world.nodes["c1"].alive = False
    world.pass_s(DOWN_S)
    assert world.apply(Exclude(("c1",)), "exclude") is None
    assert ended(world, "exclude") is RequestStatus.DONE
    refused = world.apply(CreateKeyspace("fresh", {"dc1": 1}))
    assert refused is not None and (refused.code, refused.details) == (
        "dead_replicas",
        {"dead": "c1"},
    )
    assert ended(world, remove(world, "c1")) is RequestStatus.DONE
    assert world.apply(CreateKeyspace("fresh", {"dc1": 1})) is None


def test_impossible_request_is_rejected_while_other_tablets_move() -> None:
    """A balancer may move tablets all the time. The request does not wait for moves of unrelated tablets."""
    world = with_dead(1, "b1")
    world.create_table({"dc1": 1}, 4)
    table = world.image.schema.serving("music.songs")
    assert table is not None
    rows = world.image.ring.placements[table.placement].rows
    tablet, source = next((at, r.reads[0]) for at, r in enumerate(rows) if r.reads[0] != "b1")
    target = min({"a1", "c1", "b2", "c2"} - {source})
    world.nodes[target].mute = True
    move = TabletMove(table="music.songs", tablet=tablet, from_node=source, to_node=target)
    assert world.apply(MoveTablets((move,)), "migration") is None
    reach(world, "migration", TransitionState.STREAMING, fenced=True)
    assert world.apply(Remove(node_id="b1"), "remove") is None
    world.until(lambda: status_of(world, "remove") is RequestStatus.FAILED, "it is rejected", 20)
    assert "may have acknowledged writes that only b1 has" in error_of(world, "remove")
    assert world.transition("migration").state is TransitionState.STREAMING
