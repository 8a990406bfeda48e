"""Every rule of ``next_steps``, in virtual time. ``World.submit`` checks the invariants at each epoch."""

from __future__ import annotations

import pytest

from stele.coordinator.steps import Limits, Memory, Observed, next_steps
from stele.domain.commands import (
    Advance,
    AdvanceFence,
    Leave,
    StartRequest,
)
from stele.domain.names import (
    CleanupStatus,
    NodeState,
    OrderKind,
    ReportStatus,
    RequestStatus,
    TransitionState,
)
from tests.coordinator.stories import joining, reach, status_of
from tests.coordinator.world import World, empty_cluster, report_of, three_nodes

STATE = TransitionState


def states(world: World, since: int = 0) -> list[str]:
    """The transition states that the log went through from an epoch on, each once in a row."""
    found: list[str] = []
    for image in world.images[since:]:
        state = image.topology.topology.transition_state
        if not found or found[-1] != state:
            found.append(state)
    return found


# The way forward.


def test_the_first_node_joins_alone() -> None:
    world = empty_cluster()
    world.add("a1")
    world.settle()
    assert world.state("a1") is NodeState.NORMAL


def test_a_join_goes_through_its_states() -> None:
    world = three_nodes()
    since = len(world.images) - 1
    world.add("a2")
    world.settle()
    assert states(world, since) == ["", STATE.JOIN_GROUP0, STATE.WRITE_BOTH_READ_OLD,
                                    STATE.WRITE_BOTH_READ_NEW, ""]  # fmt: skip
    assert world.state("a2") is NodeState.NORMAL


def test_a_leave_goes_through_its_states() -> None:
    world = three_nodes()
    since = len(world.images) - 1
    world.apply(Leave("c1"), "leave-c1")
    world.settle()
    assert states(world, since) == ["", STATE.WRITE_BOTH_READ_OLD, STATE.WRITE_BOTH_READ_NEW,
                                    STATE.LEFT_TOKEN_RING, ""]  # fmt: skip
    assert world.state("c1") is NodeState.LEFT


def test_joins_come_before_leaves_and_one_runs_at_a_time() -> None:
    world = three_nodes()
    world.apply(Leave("c1"), "leave-c1")
    world.add("a2 b2")
    world.settle()
    requests = world.image.requests.requests
    started = [requests[r].started_epoch for r in ("join-a2", "join-b2", "leave-c1")]
    finished = [requests[r].finished_epoch for r in ("join-a2", "join-b2", "leave-c1")]
    assert started == sorted(started) and finished == sorted(finished)
    assert finished[0] < started[1] < finished[1] < started[2]


def test_all_who_gain_ranges_are_ordered_to_stream_under_the_open_session() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    topology = world.image.topology.topology
    order = world.orders("a2")[-1]
    assert order.session == topology.session != ""
    assert order.version == topology.version
    assert order.epoch == topology.fence_epoch
    assert order.request_id == "join-a2"
    assert not world.orders("b1")[1:]


def test_nodes_that_lost_ranges_clean_up_before_the_next_request() -> None:
    world = three_nodes()
    world.add("a2")
    world.nodes["a1"].mute = True
    world.until(lambda: world.orders("a1", OrderKind.CLEANUP), "the order to clean up")
    world.add("b2")
    world.run(5)
    assert status_of(world, "join-b2") is RequestStatus.PENDING
    world.nodes["a1"].mute = False
    world.settle()
    assert status_of(world, "join-b2") is RequestStatus.DONE


def test_a_cleanup_that_fails_for_good_holds_up_nobody() -> None:
    world = three_nodes()
    world.add("a2")
    world.until(lambda: world.orders("a2"), "streaming")
    world.nodes["a1"].fails = 1000
    world.until(lambda: status_of(world, "join-a2") is RequestStatus.DONE, "the join")
    world.add("b2")
    world.until(lambda: status_of(world, "join-b2") is RequestStatus.DONE, "the next join")
    node = world.image.node("a1")
    assert node is not None and node.cleanup is CleanupStatus.NEEDED
    assert 3 <= len(world.orders("a1", OrderKind.CLEANUP)) <= 12


def test_a_node_that_comes_back_late_is_cleaned_up() -> None:
    world = three_nodes()
    world.add("a2")
    world.until(lambda: world.state("a2") is NodeState.NORMAL, "the join")
    world.nodes["a1"].alive = False
    world.run(300)
    world.nodes["a1"].alive = True
    world.settle()


# Barriers and fences.


def test_a_barrier_waits_for_every_node_and_names_who_blocks() -> None:
    world = joining(STATE.JOIN_GROUP0, fenced=False)
    world.nodes["b1"].applies = False
    steps = world.run(5)
    assert [b.node_id for b in steps.blockers] == ["b1"]
    assert "has applied epoch" in steps.blockers[0].why


def test_after_its_patience_a_quorum_will_do() -> None:
    world = joining(STATE.JOIN_GROUP0, fenced=False, rf=3)
    world.nodes["b1"].applies = False
    version = world.version
    took_s = world.until(
        lambda: world.image.topology.topology.fence_version == version, "the fence"
    )
    assert took_s >= Limits().barrier_patience_s - 1
    world.nodes["a2"].mute = False
    world.until(lambda: status_of(world, "join-a2") is RequestStatus.DONE, "the join without b1")


def test_requests_of_an_older_version_hold_the_barrier_up() -> None:
    world = joining(STATE.JOIN_GROUP0, fenced=False)
    world.nodes["b1"].holds = 1
    steps = world.run(5)
    assert "older than" in steps.blockers[0].why
    world.nodes["b1"].holds = None
    world.nodes["a2"].mute = False
    world.settle()


def test_without_a_quorum_nothing_moves() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD, fenced=False)
    for name in ("a1", "b1", "c1"):
        world.nodes[name].applies = False
    version = world.version
    world.run(25)
    assert world.image.topology.topology.fence_version == version - 1


def test_a_steady_stream_of_requests_does_not_make_patience_endless() -> None:
    world = joining(STATE.JOIN_GROUP0, fenced=False, rf=3)
    world.nodes["b1"].applies = False
    version, began_s, names = world.version, world.now_s, iter(range(1000))
    while world.image.topology.topology.fence_version < version:
        world.add(f"c{100 + next(names)}")
        world.run(2)
        assert world.now_s - began_s < 30, "the fence did not move"


# Work: again, and not for ever.


def test_an_order_that_was_lost_is_sent_again() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.run(5)
    orders = world.orders("a2")
    assert len(orders) >= 2
    assert [o.index for o in orders] == sorted({o.index for o in orders})
    assert len({o.same_work() for o in orders}) == 1


def test_work_is_tried_three_times_and_then_rolled_back() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.nodes["a2"].mute, world.nodes["a2"].fails = False, 3
    world.settle()
    assert status_of(world, "join-a2") is RequestStatus.FAILED
    assert "3 times: disk full" in world.image.requests.requests["join-a2"].error
    assert world.state("a2") is NodeState.LEFT


def test_work_that_fails_twice_and_then_succeeds_is_no_failure() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.nodes["a2"].mute, world.nodes["a2"].fails = False, 2
    world.settle()
    assert status_of(world, "join-a2") is RequestStatus.DONE


def test_the_last_try_is_waited_for() -> None:
    """A failure of the try before must not be taken for the failure of the one that has begun."""
    world = three_nodes()
    world.add("a2")
    world.nodes["a2"].fails = 2
    world.until(lambda: len(world.orders("a2")) == 2, "two tries")
    world.nodes["a2"].mute = True
    world.until(lambda: len(world.orders("a2")) >= 3, "the third try")
    world.run(5)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING
    world.nodes["a2"].mute = False
    world.settle()
    assert status_of(world, "join-a2") is RequestStatus.DONE


def test_work_without_progress_is_rolled_back() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    took_s = world.settle()
    assert took_s > Limits().silence_s - 1
    assert "no progress" in world.image.requests.requests["join-a2"].error


def test_work_with_progress_is_waited_for() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    order = world.orders("a2")[-1]
    for done in range(1, 40):
        report = report_of(order, ReportStatus.RUNNING, bytes_done=done)
        world.brain.reports = world.brain.reports.with_report(report, world.now_s)
        world.run(5)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING


# Terms and memory.


def test_a_stale_term_does_nothing() -> None:
    world = three_nodes()
    world.add("a2")
    seen = Observed(world.image, world.brain.acks, world.brain.reports, 0, world.now_s)
    steps = next_steps(Memory(), seen, world.limits)
    assert not steps.commands and not steps.orders
    assert "another coordinator" in steps.waiting_for


@pytest.mark.parametrize(
    "state", [STATE.JOIN_GROUP0, STATE.WRITE_BOTH_READ_OLD, STATE.WRITE_BOTH_READ_NEW]
)
def test_a_successor_without_memory_goes_on(state: TransitionState) -> None:
    world = three_nodes()
    world.add("a2")
    reach(world, state, fenced=False)
    world.replace_brain()
    world.settle()
    assert status_of(world, "join-a2") is RequestStatus.DONE
    assert world.image.topology.coordinator.term == 2


def test_a_repeated_command_is_the_same_command() -> None:
    world = three_nodes()
    world.add("a2")
    world.log_down_until_s = world.now_s + 7
    sent: list[tuple[str, str]] = []
    while world.now_s < world.log_down_until_s:
        sent += [(type(e.command).__name__, e.request_id) for e in world.tick().commands]
    assert len(sent) >= 3
    assert len(set(sent)) == 1
    world.settle()


def test_commands_of_a_step_that_is_over_are_refused() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    codes = [
        world.apply(command).code  # type: ignore[union-attr]
        for command in (
            Advance(1, "join-a2", world.version - 1),
            AdvanceFence(1, world.version - 1),
            StartRequest(1, "join-a2"),
            Advance(0, "join-a2", world.version),
        )
    ]
    assert codes == ["overtaken", "overtaken", "topology_busy", "stale_term"]


def test_a_node_that_restarts_with_an_earlier_clock_is_heard_again() -> None:
    world = three_nodes()
    node = world.nodes["b1"]
    node.boot, node.sequence = 0, 0
    world.run(3)
    assert world.brain.acks.silent_for_s("b1", world.now_s) > 2
    world.run(12)
    assert world.brain.acks.silent_for_s("b1", world.now_s) < 1
