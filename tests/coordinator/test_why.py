"""Each wait in sentences: subject, start, cause, limit with its setting, and advice."""

import re

import msgspec

from stele.coordinator.model import Observed
from stele.coordinator.progress import StreamRates, progress_of
from stele.coordinator.steps import next_steps
from stele.domain.commands import (
    AnyCommand,
    Cancel,
    Cleanup,
    DropKeyspace,
    Exclude,
    Leave,
    NewCdcGeneration,
    Quiesce,
    Rebuild,
    Remove,
    RepairTable,
    SetSetting,
)
from stele.domain.messages import ReportTable
from stele.domain.names import ReportStatus, TransitionState, WaitKind
from stele.runtime.answers.coordinator import Progress
from stele.words.explain import explain, waiting_line
from tests.coordinator.stories import joining, reach, spread, undoing, wide
from tests.coordinator.world import World, empty_cluster, report_of, three_nodes

STATE = TransitionState


def shown(world: World) -> Progress:
    brain = world.brain
    seen = Observed(world.image, brain.acks, brain.reports, brain.term, world.now_s)
    return progress_of(seen, world.limits, StreamRates(), brain.steps.waits, active=True)


def told(world: World, request_id: str) -> list[str]:
    request = world.image.requests.requests[request_id]
    transition = world.image.topology.of_request(request_id)
    return [*explain(request, transition, shown(world))]


def seconds(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(\d+\.\d) s", text)]


def running(world: World, node_id: str, bytes_done: int) -> None:
    report = report_of(world.orders(node_id)[-1], ReportStatus.RUNNING, bytes_done)
    world.brain.reports = world.brain.reports.with_report(report, world.now_s)
    world.tick()


def test_cluster_at_rest_has_no_waits() -> None:
    world = three_nodes()
    world.run()
    world.pass_s(1)
    assert shown(world).waits == ()


def test_wait_for_needed_dead_nodes_advises_nothing_that_loses_data() -> None:
    world = three_nodes(rf=3)
    world.nodes["b1"].alive = world.nodes["c1"].alive = False
    world.pass_s(10)
    world.add("a2")
    world.pass_s(4)
    line, *_, advice = told(world, "join-a2")
    assert "dead nodes, to start join; the cause is b1: is down, last heard" in line
    waited_s, silent_s = seconds(line)
    assert 2 < waited_s <= 4 and silent_s > 13
    assert line.endswith("; no setting ends this wait")
    assert advice.startswith("do: start b1, c1: 7 ranges (") and "exclude" not in advice
    assert "of library may have acknowledged writes that no other live node has" in advice
    assert advice.endswith(", or withdraw the request: `stele cancel join-a2`")
    world.pass_s(30)
    *_, advice = told(world, "join-a2")
    assert advice == (
        "do: start b1, c1: then it continues; or, if b1, c1 is dead for good, cancel it and replace or"
        " remove b1, c1, or withdraw the request: `stele cancel join-a2`"
    )


def test_wait_for_a_group_is_short_and_has_no_cause() -> None:
    world = three_nodes()
    world.add("a2 b2")
    world.nodes["b2"].alive = False
    world.pass_s(0.75)
    line, *_, advice = told(world, "join-a2")
    assert "others that join too" in line and "the cause" not in line
    assert line.endswith("more at most, then it starts without them")
    assert "withdraw" in advice


def test_locked_request_names_the_request_in_the_way() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.apply(Leave("c1"), "leave-c1")
    world.pass_s(1)
    *_, advice = told(world, "leave-c1")
    assert "Request join-a2 (join) is moving ranges" in told(world, "leave-c1")[0]
    assert "`stele cancel join-a2`" in advice and "`stele cancel leave-c1`" in advice


def test_request_behind_a_pending_one_names_it() -> None:
    world = spread()
    world.nodes["a4"].mute = True
    for name in ("a3", "a4", "a5"):
        assert world.apply(Leave(name), f"leave-{name}") is None
    world.pass_s(2)
    assert (
        "request leave-a4, which needs the same ranges, comes first" in told(world, "leave-a5")[0]
    )


def test_wait_before_an_exclusion_names_its_setting() -> None:
    world = three_nodes()
    world.nodes["c1"].alive = False
    world.pass_s(10)
    world.apply(Exclude(("c1",)), "exclude-c1")
    world.pass_s(2)
    line, *_, advice = told(world, "exclude-c1")
    assert "a sign of life of c1" in line
    assert line.endswith(
        "(STELE_HEARTBEAT_TIMEOUT_S is 5 s), then it counts as dead, and is excluded"
    )
    assert advice.startswith("do: wait, or withdraw")


def test_live_node_to_exclude_is_advised_to_be_decommissioned() -> None:
    world = three_nodes()
    world.apply(Exclude(("c1",)), "exclude-c1")
    world.pass_s(2)
    line, *_, advice = told(world, "exclude-c1")
    assert "c1 to be down; the cause is c1: is up" in line
    assert line.endswith("(2 x STELE_HEARTBEAT_TIMEOUT_S is 10 s), then the request is rejected")
    assert "c1 is alive: `stele decommission c1` moves its data first" in advice


def test_wait_names_all_silent_nodes_if_none_is_heard() -> None:
    world = three_nodes()
    for node in world.nodes.values():
        node.alive = False
    world.pass_s(10)
    world.apply(Remove(node_id="c1"), "remove-c1")
    world.pass_s(2)
    line, *_ = told(world, "remove-c1")
    assert "a sign of life of a1, b1" in line
    assert line.endswith("; no setting ends this wait")


def test_wait_for_a_slow_node_ends_at_a_quorum() -> None:
    world = three_nodes(rf=3)
    world.pass_s(1)
    world.add("a2")
    world.nodes["b1"].applies = False
    reach(world, "join-a2", STATE.JOIN_GROUP0, fenced=False)
    world.pass_s(4)
    line, *_, advice = told(world, "join-a2")
    assert f"version {world.version} everywhere; the cause is b1: has applied epoch" in line
    waited_s, _, left_s = seconds(line)
    assert 3 <= waited_s <= 4.5 and waited_s + left_s == 10
    assert "STELE_BARRIER_PATIENCE_S is 10 s), then EACH_QUORUM is enough" in line
    assert "look at the log of b1" in advice and "undo it: `stele cancel join-a2`" in advice
    world.pass_s(left_s + 0.5)
    assert world.transition("join-a2").state is not STATE.JOIN_GROUP0 or world.fenced()


def test_wait_without_a_quorum_announces_the_rollback() -> None:
    world = undoing(joining(STATE.WRITE_BOTH_READ_OLD, rf=1, fenced=False))
    world.nodes["b1"].alive = False
    world.nodes["b1"].applies = False
    world.pass_s(8)
    line, *_ = told(world, "join-a2")
    assert "the cause is b1" in line
    assert (
        "STELE_DEAD_NODE_PATIENCE_S is 30 s), then what has no quorum without them is undone"
        in line
    )


def test_wait_past_the_point_of_no_return_has_no_limit_or_cancel() -> None:
    world = three_nodes(rf=1)
    world.add("a2")
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_NEW, fenced=None)
    world.nodes["a2"].alive = False
    world.nodes["b1"].applies = False
    world.pass_s(20)
    line, held_up, advice = told(world, "join-a2")
    assert "the cause is a2" in line, "who is silent comes before who is slow"
    assert line.endswith("; no setting ends this wait")
    assert held_up.startswith("held up by b1: ")
    assert "start a2: " in advice and "stele exclude" not in advice, "it has the only copy"
    assert advice.endswith("past its point of no return and cannot be undone")


def test_every_request_behind_a_blocked_round_names_the_node_and_an_action() -> None:
    world = three_nodes(rf=1)
    world.create_table({"dc1": 1}, 4)
    world.add("a2")
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_NEW, fenced=False)
    world.crash("b1")
    waiting: list[AnyCommand] = [
        Leave("c1"),
        DropKeyspace("library"),
        RepairTable("music.songs"),
        NewCdcGeneration(force=True),
        Cleanup(),
        Quiesce(),
    ]
    for command in waiting:
        assert world.apply(command, type(command).__name__) is None
    world.pass_s(100)
    for request_id in ("join-a2", *(type(command).__name__ for command in waiting)):
        *_, line, advice = told(world, request_id)
        assert "version 11 everywhere; the cause is b1: " in line
        assert "do: start b1: 2 ranges" in advice and "exclude" not in advice, "it has only copies"


def test_wait_for_the_fence_names_its_version() -> None:
    world = three_nodes(rf=3)
    world.add("a2")
    world.nodes["b1"].applies = False
    reach(world, "join-a2", STATE.JOIN_GROUP0, fenced=False)
    world.until(world.fenced, "the fence", 20)
    for node in world.nodes.values():
        node.applies = False
    world.pass_s(4)
    line, *_ = told(world, "join-a2")
    assert f"the fence of version {world.version} to be known; the cause is " in line


def test_dead_source_is_the_cause_instead_of_its_receiver() -> None:
    world = undoing(joining(STATE.WRITE_BOTH_READ_OLD, rf=2))
    world.until(lambda: world.orders("a2"), "the order")
    world.pass_s(2)
    running(world, "a2", 40)
    source = next(row.leaving()[0] for row in world.transition("join-a2").plans["dc1:2"].rows)
    world.nodes[source].alive = False
    world.pass_s(8)
    line, *moved, advice = told(world, "join-a2")
    assert f"stream by a2; the cause is {source}: is down, and gives a2 no data" in line
    assert "; if it makes no progress for " in line, "progress restarts it"
    *_, left_s = seconds(line)
    assert 50 < left_s < 53
    assert line.endswith("(STELE_SILENCE_S is 60 s), it is undone")
    assert any("a2 stream running, 40 B of 100 B, no progress for " in text for text in moved)
    assert f"start {source}" in advice and "undo it: `stele cancel join-a2`" in advice


def test_rebuild_names_its_dead_source() -> None:
    world = three_nodes(rf=3)
    world.nodes["b1"].mute = True
    assert world.apply(Rebuild(node_id="b1"), "rebuild") is None
    world.until(lambda: world.orders("b1"), "the order")
    world.pass_s(2)
    running(world, "b1", 40)
    world.nodes["a1"].alive = False
    world.pass_s(8)
    line, *_ = told(world, "rebuild")
    assert "stream by b1; the cause is a1: is down, and gives b1 no data" in line


def test_earlier_limit_of_a_stream_is_named() -> None:
    world = undoing(joining(STATE.WRITE_BOTH_READ_OLD))
    world.until(lambda: world.orders("a2"), "the order")
    running(world, "a2", 10)
    world.apply(SetSetting("step_time_limit_s", "90"))
    world.pass_s(10)
    line, *_ = told(world, "join-a2")
    assert line.endswith("(STELE_SILENCE_S is 60 s), it is undone")
    for done in (20, 30, 40):
        world.pass_s(15)
        running(world, "a2", done)
    line, *_ = told(world, "join-a2")
    assert line.endswith("(step_time_limit_s is 90 s), then it is undone")
    *_, left_s = seconds(line)
    world.pass_s(left_s + 1)
    assert "step_time_limit_s" in world.image.requests.requests["join-a2"].error


def test_stream_with_progress_has_no_cause() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    for done in (10, 20, 30):
        world.pass_s(1)
        running(world, "a2", done)
    line, *moved, advice = told(world, "join-a2")
    assert "stream by a2" in line and "the cause" not in line
    assert moved[0] == "a2 stream running, 30 B of 100 B"
    assert advice == "do: wait, or undo it: `stele cancel join-a2`"


def test_receiver_of_large_rows_is_the_cause_only_after_a_while() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    running(world, "a2", 10)
    world.pass_s(8)
    line, *_, advice = told(world, "join-a2")
    assert "stream by a2" in line and "the cause" not in line
    assert advice == "do: wait, or undo it: `stele cancel join-a2`"
    world.pass_s(4)
    line, *_, advice = told(world, "join-a2")
    assert "the cause is a2" in line
    assert "look at the log of a2; restart it if it hangs" in advice


def test_total_is_unknown_before_the_first_report() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    assert "the bytes to stream are unknown: no node has reported yet" in told(world, "join-a2")
    report = report_of(world.orders("a2")[-1], ReportStatus.RUNNING)
    unmeasured = msgspec.structs.replace(report, bytes_total=0)
    world.brain.reports = ReportTable().with_report(unmeasured, world.now_s)
    assert "a2 stream running, 0 B of unknown" in told(world, "join-a2")


def test_down_receiver_is_the_cause_and_the_limit_is_named() -> None:
    world = undoing(joining(STATE.WRITE_BOTH_READ_OLD))
    world.until(lambda: world.orders("a2"), "the order")
    world.pass_s(2)
    world.nodes["a2"].alive = False
    world.pass_s(8)
    line, *_ = told(world, "join-a2")
    assert "the cause is a2" in line
    assert line.endswith("(STELE_DEAD_NODE_PATIENCE_S is 30 s), then it is undone")


def test_failing_receiver_is_the_cause_with_its_reason() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.nodes["a2"].mute = False
    world.nodes["a2"].fails = 2
    world.until(lambda: world.nodes["a2"].fails == 1, "a failure")
    world.pass_s(1)
    line, *_ = told(world, "join-a2")
    assert "the cause is a2: failed to stream: disk full" in line


def test_wait_before_reads_move_names_the_down_node() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("a2"), "the order")
    world.pass_s(2)
    world.nodes["a2"].alive = False
    world.pass_s(7)
    for order in [order for each in world.nodes.values() for order in each.orders]:
        world.report(order)
    world.pass_s(1)
    line, *_ = told(world, "join-a2")
    assert "a2 to be up before reads move there; the cause is a2: is down" in line
    assert line.endswith("; no setting ends this wait")


def test_wait_for_the_log_names_the_command() -> None:
    world = three_nodes()
    world.add("a2")
    world.log_down_until_s = world.now_s + 100
    world.pass_s(9)
    line, *_, advice = told(world, "join-a2")
    assert "the log to commit advance" in line and "STELE_RESEND_S" in line
    assert seconds(line)[0] > 7, "since the first time that it was sent"
    assert "whether a metadata-log runs" in advice


def test_coordinator_of_an_old_term_is_explained() -> None:
    world = three_nodes()
    world.add("a2")
    seen = Observed(world.image, world.brain.acks, world.brain.reports, 0, world.now_s)
    waits = next_steps(world.brain.memory, seen, world.limits).waits
    progress = progress_of(seen, world.limits, StreamRates(), waits, active=False)
    (line, advice) = explain(world.image.requests.requests["join-a2"], None, progress)
    assert "another coordinator holds the term" in line
    assert "which coordinator acts" in advice


def test_rollback_is_explained_without_a_cancel_hint() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    assert world.apply(Cancel("join-a2")) is None
    world.nodes["b1"].applies = False
    world.pass_s(2)
    first, *_, advice = told(world, "join-a2")
    assert first == "it is going back to the placements of before"
    assert "stele cancel" not in advice


def test_cleanup_delays_no_request() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.nodes["a2"].mute = False
    world.nodes["a1"].mute = True
    world.until(lambda: world.image.membership.nodes["a1"].cleanup_since, "the cleanup")
    world.pass_s(1)
    world.apply(DropKeyspace("library"), "drop")
    progress = shown(world)
    assert any("cleanup by a1" in waiting_line(w) for w in progress.waits)
    assert progress.wait_of("drop") is None


def test_wait_keeps_its_start_over_rounds_of_other_requests() -> None:
    world = empty_cluster()
    world.add("a1 b1 c1")
    world.run()
    world.add("a2")
    world.nodes["a2"].mute = True
    world.until(lambda: world.orders("a2"), "the order")
    world.pass_s(5)
    for number in range(3):
        world.apply(Leave("nobody"), f"nothing-{number}")
        world.pass_s(1)
    (wait,) = [w for w in shown(world).waits if w.kind is WaitKind.STREAM]
    assert wait.waited_s is not None and wait.waited_s >= 7


def test_dead_source_is_named_only_for_its_receivers() -> None:
    """Two nodes join as one operation, with replication factor 1: each source serves one of them."""
    world = wide()
    world.add("b1 b2")
    for name in ("b1", "b2"):
        world.nodes[name].mute = True
    reach(world, "join-b1", STATE.WRITE_BOTH_READ_OLD)
    world.until(lambda: world.orders("b1") and world.orders("b2"), "the orders")
    rows = [row for plan in world.transition("join-b1").plans.values() for row in plan.rows]
    served = {
        source: {row.coming()[0] for row in rows if source in row.old}
        for row in rows
        for source in row.old
    }
    assert {"b1"} in served.values()
    assert {"b2"} in served.values()
    world.pass_s(2)
    for name in ("b1", "b2"):
        running(world, name, 40)
    for source, receivers in served.items():
        if len(receivers) == 1:
            world.nodes[source].alive = False
    world.pass_s(8)
    line, *rest = told(world, "join-b1")
    told_of = " ".join([line, *rest])
    for source, receivers in served.items():
        if len(receivers) == 1:
            assert f"{source}: is down, and gives {min(receivers)} no data" in told_of
