"""Global requests: noop, quiesce and cleanup wait for work in progress; truncate is a transition."""

import msgspec
import pytest

from stele.coordinator.steps import Limits
from stele.domain.commands import (
    AnyCommand,
    Cancel,
    Cleanup,
    CreateKeyspace,
    DropKeyspace,
    Exclude,
    Leave,
    NoopRequest,
    Quiesce,
    Rejection,
    ServeRequest,
    Truncate,
)
from stele.domain.fencing import VersionTracker, check_token
from stele.domain.model.transitions import TransitionOpened
from stele.domain.names import NodeState, OrderKind, RequestStatus, TransitionState
from tests.coordinator.stories import error_of, reach, status_of, undoing
from tests.coordinator.world import World, three_nodes

STATE = TransitionState
STATUS = RequestStatus


def ask(world: World, command: AnyCommand, request_id: str) -> None:
    assert world.apply(command, request_id) is None


def ends(world: World, request_id: str, status: RequestStatus = STATUS.DONE) -> float:
    return world.until(lambda: status_of(world, request_id) is status, f"{request_id} {status}")


def waits_for(world: World, request_id: str) -> str:
    world.tick()
    return next((w.what for w in world.brain.steps.waits if request_id in w.request_ids), "")


def blockers(world: World, request_id: str) -> dict[str, str]:
    waits = (w for w in world.brain.steps.waits if request_id in w.request_ids)
    return {b.node_id: b.why for wait in waits for b in wait.blockers}


def refused(world: World, command: AnyCommand) -> Rejection:
    found = world.apply(command)
    assert found is not None, "it was taken"
    return found


def unfenced() -> World:
    """Return a world in which c1 has not applied the newest version, so that it is not fenced yet."""
    world = three_nodes()
    world.limits = msgspec.structs.replace(world.limits, barrier_patience_s=1000.0)
    world.add("a2")
    world.nodes["a2"].mute = True
    reach(world, "join-a2", STATE.JOIN_GROUP0, fenced=False)
    world.nodes["c1"].applies = False
    return world


# Noop.


def test_noop_is_done_at_once_if_all_versions_are_fenced() -> None:
    world = three_nodes()
    world.run()
    version = world.version
    ask(world, NoopRequest(), "noop")
    assert ends(world, "noop") <= 1
    assert world.version == version, "it changes nothing"


def test_noop_waits_until_its_version_is_fenced() -> None:
    world = unfenced()
    ask(world, NoopRequest(), "noop")
    assert waits_for(world, "noop") == f"version {world.version} to be fenced"
    world.pass_s(60)
    assert status_of(world, "noop") is STATUS.PENDING
    world.nodes["c1"].applies = True
    ends(world, "noop")


def test_later_rounds_do_not_delay_a_noop() -> None:
    """The next round fences the version that the noop waits for."""
    world = unfenced()
    ask(world, NoopRequest(), "noop")
    behind = world.version
    world.nodes["c1"].applies = True
    world.until(lambda: world.version > behind, "the next round")
    world.nodes["c1"].applies = False
    assert not world.fenced()
    assert ends(world, "noop") <= 1
    assert not world.fenced()


def test_serve_of_a_waiting_request_is_refused() -> None:
    world = unfenced()
    ask(world, NoopRequest(), "noop")
    term = world.image.topology.coordinator.term
    early = refused(world, ServeRequest(term, "noop", STATUS.PENDING))
    assert early.code == "overtaken" and "to be fenced" in early.message
    assert refused(world, ServeRequest(term - 1, "noop", STATUS.PENDING)).code == "stale_term"
    assert refused(world, ServeRequest(term, "none", STATUS.PENDING)).code == "unknown_request"
    assert refused(world, ServeRequest(term, "join-a2", STATUS.RUNNING)).code == "overtaken"


@pytest.mark.parametrize("command", [NoopRequest(), Quiesce(), Cleanup(), Truncate("library")])
def test_pending_global_request_can_be_cancelled(command: AnyCommand) -> None:
    world = unfenced()
    ask(world, command, "asked")
    world.pass_s(1)
    ask(world, Cancel("asked"), "cancel")
    assert status_of(world, "asked") is STATUS.CANCELLED
    assert error_of(world, "asked") == "cancelled by ada"
    world.nodes["c1"].applies, world.nodes["a2"].mute = True, False
    world.run()
    assert not world.orders("a1", OrderKind.TRUNCATE)


# Quiesce.


def test_quiesce_waits_for_all_earlier_requests() -> None:
    world = three_nodes()
    world.add("a2")
    world.nodes["a2"].mute = True
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD)
    ask(world, Leave("c1"), "leave")
    ask(world, Quiesce(), "quiesce")
    assert waits_for(world, "quiesce") == ("earlier requests: join (join-a2), leave (leave)")
    ask(world, Cancel("leave"), "cancel")
    assert waits_for(world, "quiesce") == "earlier requests: join (join-a2)"
    for name in ("a1", "b1", "c1"):
        world.nodes[name].mute = True
    world.nodes["a2"].mute = False
    ends(world, "join-a2")
    world.until(lambda: "cleanup" in waits_for(world, "quiesce"), "the cleanup to be awaited")
    world.nodes["b1"].alive = False
    world.pass_s(Limits().down_after_s + 1)
    assert status_of(world, "quiesce") is STATUS.PENDING
    dirty = [n for n, node in world.image.membership.normal().items() if node.cleanup_since]
    assert [*blockers(world, "quiesce")] and {*blockers(world, "quiesce")} == {*dirty}
    assert blockers(world, "quiesce").get("b1", "is down") == "is down"
    for node in world.nodes.values():
        node.alive, node.mute = True, False
    world.brain.memory = world.brain.memory.__class__()
    ends(world, "quiesce")
    assert not any(node.cleanup_since for node in world.image.membership.normal().values())


def test_later_requests_and_a_quiesce_do_not_wait_for_each_other() -> None:
    world = undoing(three_nodes())
    world.run()
    world.add("a2")
    world.nodes["a2"].mute = True
    reach(world, "join-a2", STATE.WRITE_BOTH_READ_OLD)
    ask(world, Quiesce(), "quiesce")
    world.add("d1")
    ask(world, Quiesce(), "second")
    ask(world, Truncate("library"), "truncate")
    ends(world, "truncate")
    assert status_of(world, "quiesce") is STATUS.PENDING
    world.nodes["a2"].mute = False
    ends(world, "quiesce")
    ends(world, "second")
    assert status_of(world, "join-d1") is STATUS.DONE


# Cleanup.


def test_every_normal_node_cleans_up_with_or_without_a_mark() -> None:
    world = three_nodes()
    world.run()
    for node in world.nodes.values():
        node.orders.clear()
    ask(world, Cleanup(), "cleanup")
    ends(world, "cleanup")
    assert all(world.orders(name, OrderKind.CLEANUP) for name in ("a1", "b1", "c1"))
    assert not any(node.cleanup_since for node in world.image.membership.nodes.values())


def test_cleanup_can_be_limited_to_one_node() -> None:
    world = three_nodes()
    world.run()
    for node in world.nodes.values():
        node.orders.clear()
    ask(world, Cleanup(node_id="b1"), "cleanup")
    ends(world, "cleanup")
    assert [n for n in world.nodes if world.orders(n, OrderKind.CLEANUP)] == ["b1"]


def test_cleanup_waits_for_the_report_of_each_node() -> None:
    world = three_nodes()
    world.run()
    world.nodes["b1"].mute = True
    ask(world, Cleanup(), "cleanup")
    world.until(lambda: waits_for(world, "cleanup") == "cleanup by b1", "the others' reports")
    assert blockers(world, "cleanup") == {"b1": "has not reported yet"}
    world.nodes["b1"].alive = False
    world.pass_s(Limits().dead_node_patience_s * 2)
    assert status_of(world, "cleanup") is STATUS.RUNNING
    assert blockers(world, "cleanup") == {"b1": "is down"}
    world.nodes["b1"].alive, world.nodes["b1"].mute = True, False
    ends(world, "cleanup")


@pytest.mark.parametrize("way", ["cancel", "exclude"])
def test_cancel_or_exclude_ends_the_wait_for_a_dead_node(way: str) -> None:
    world = three_nodes()
    world.run()
    world.nodes["b1"].alive = False
    ask(world, Cleanup(), "cleanup")
    world.until(lambda: waits_for(world, "cleanup") == "cleanup by b1", "the others' reports")
    if way == "cancel":
        ask(world, Cancel("cleanup"), "cancel")
        assert status_of(world, "cleanup") is STATUS.CANCELLED
        request = world.image.request("cleanup")
        assert request is not None and not request.awaited_nodes
    else:
        ask(world, Exclude(("b1",)), "exclude")
        ends(world, "cleanup")


def test_node_is_not_awaited_again_after_a_new_cleanup_mark() -> None:
    world = three_nodes()
    world.run()
    world.nodes["b1"].mute = True
    ask(world, Cleanup(), "cleanup")
    world.until(lambda: waits_for(world, "cleanup") == "cleanup by b1", "the others' reports")
    world.add("a2")
    ends(world, "join-a2")
    dirty = {n for n, node in world.image.membership.normal().items() if node.cleanup_since}
    assert dirty > {"b1"}
    assert waits_for(world, "cleanup") == "cleanup by b1"
    world.nodes["b1"].mute = False
    ends(world, "cleanup")


def test_cleanup_starts_only_after_the_fence() -> None:
    world = unfenced()
    ask(world, Cleanup(), "cleanup")
    assert waits_for(world, "cleanup") == f"version {world.version} to be fenced"
    assert not world.orders("a1", OrderKind.CLEANUP)
    world.nodes["c1"].applies = True
    ends(world, "cleanup")


def test_second_cleanup_of_a_node_is_refused_and_names_the_first() -> None:
    world = unfenced()
    ask(world, Cleanup(node_id="a1"), "one")
    again = refused(world, Cleanup())
    assert (again.code, again.details) == ("cleanup_in_progress", {"request_id": "one"})
    ask(world, Cleanup(node_id="b1"), "another")
    assert refused(world, Cleanup(node_id="b1")).details == {"request_id": "another"}
    world.nodes["c1"].applies = True
    ends(world, "one")
    ends(world, "another")
    ask(world, Cleanup(), "all")


def test_cleanup_of_a_node_that_is_not_normal_is_refused() -> None:
    world = unfenced()
    assert refused(world, Cleanup(node_id="a9")).code == "unknown_node"
    assert refused(world, Cleanup(node_id="a2")).code == "wrong_state"
    ask(world, Cancel("join-a2"), "cancel")
    world.nodes["c1"].applies = True
    world.until(lambda: world.state("a2") is NodeState.LEFT, "a2 to be out")
    assert refused(world, Cleanup(node_id="a2")).code == "node_left"


def test_cleanup_of_an_excluded_node_fails() -> None:
    world = unfenced()
    ask(world, Cancel("join-a2"), "cancel")
    ask(world, Cleanup(node_id="b1"), "cleanup")
    world.nodes["b1"].alive = False
    world.pass_s(Limits().down_after_s + 1)
    ask(world, Exclude(("b1",)), "exclude")
    ends(world, "exclude")
    world.nodes["c1"].applies = True
    ends(world, "cleanup", STATUS.FAILED)
    assert error_of(world, "cleanup") == "Node 'b1' is no normal node any more."


# Truncate.


def library(world: World) -> str:
    keyspace = world.image.schema.named("library")
    assert keyspace is not None
    return keyspace.data_id


def test_truncation_gives_the_keyspace_a_new_data_id_in_a_new_version() -> None:
    world = three_nodes()
    world.run()
    before, version = library(world), world.version
    tracker = VersionTracker()
    tracker.follow(world.image)
    hold = tracker.hold(version, before, 5)
    ask(world, Truncate("library"), "truncate")
    reach(world, "truncate", STATE.TRUNCATE, fenced=False)
    after = library(world)
    keyspace = world.image.schema.named("library")
    assert keyspace is not None
    assert keyspace.truncated_version == world.version == version + 1
    assert before != after and world.image.schema.of_data(before) is None
    assert check_token(world.image, before, 5, version) is not None, "not even before the fence"
    assert check_token(world.image, after, 5, world.version) is None
    tracker.follow(world.image)
    assert hold.version == version, "the barrier waits for requests of before"
    ends(world, "truncate")
    assert library(world) == after
    ask(world, Truncate("library"), "again")
    ends(world, "again")
    assert library(world) not in (before, after)
    assert not any(node.cleanup_since for node in world.image.membership.nodes.values())


def test_truncation_waits_for_the_report_of_every_member() -> None:
    world = three_nodes(rf=1)
    world.add("a2 b2")
    world.run()
    world.nodes["b2"].mute = True
    ask(world, Truncate("library"), "truncate")
    world.until(lambda: waits_for(world, "truncate") == "truncate by b2", "the others' reports")
    world.nodes["b2"].alive = False
    world.pass_s(Limits().silence_s * 2)
    assert status_of(world, "truncate") is STATUS.RUNNING
    assert blockers(world, "truncate") == {"b2": "is down"}
    world.nodes["b2"].alive, world.nodes["b2"].mute = True, False
    ends(world, "truncate")
    assert all(world.orders(name, OrderKind.TRUNCATE) for name in world.nodes)


def test_truncation_needs_the_ack_of_a_node_that_has_reported() -> None:
    """An acknowledged version survives a restart; a report alone does not prove that."""
    world = three_nodes()
    world.run()
    ask(world, Truncate("library"), "truncate")
    reach(world, "truncate", STATE.TRUNCATE, fenced=False)
    world.nodes["c1"].applies = False
    world.until(lambda: world.orders("c1", OrderKind.TRUNCATE), "the order to c1")
    world.until(lambda: blockers(world, "truncate"), "c1 to be late")
    world.pass_s(5)
    epoch = world.transition("truncate").entered_epoch
    late = {"c1": f"has applied epoch {epoch - 1}, not {epoch}"}
    assert blockers(world, "truncate") == late
    assert status_of(world, "truncate") is STATUS.RUNNING
    world.nodes["c1"].applies = True
    ends(world, "truncate")


def test_failed_truncate_order_is_retried_until_it_succeeds() -> None:
    world = three_nodes()
    world.run()
    world.nodes["c1"].fails = 2 * Limits().attempts
    ask(world, Truncate("library"), "truncate")
    ends(world, "truncate")


def test_truncation_blocks_no_other_request_and_ends_by_an_exclusion() -> None:
    world = three_nodes()
    world.add("b2")
    world.run()
    ask(world, Truncate("library"), "truncate")
    world.nodes["b2"].mute = True
    reach(world, "truncate", STATE.TRUNCATE)
    ask(world, NoopRequest(), "noop")
    ends(world, "noop")
    world.add("a2")
    ends(world, "join-a2")
    assert world.orders("a2", OrderKind.TRUNCATE), "who has joined meanwhile has to report too"
    world.nodes["b2"].alive = False
    world.pass_s(Limits().down_after_s + 1)
    ask(world, Exclude(("b2",)), "exclude")
    ends(world, "truncate")


def test_truncation_starts_only_while_all_members_are_up() -> None:
    world = three_nodes()
    world.run()
    world.pass_s(1)
    data = library(world)
    world.nodes["c1"].alive = False
    world.pass_s(Limits().down_after_s + 1)
    ask(world, Truncate("library"), "truncate")
    assert waits_for(world, "truncate") == "dead nodes, to start truncate"
    ends(world, "truncate", STATUS.FAILED)
    assert "Dead nodes: c1" in error_of(world, "truncate")
    assert library(world) == data


def test_second_request_for_a_keyspace_is_refused() -> None:
    world = three_nodes()
    assert refused(world, Truncate("nothing")).code == "unknown_keyspace"
    ask(world, Truncate("library"), "truncate")
    for command in (Truncate("library"), DropKeyspace("library")):
        again = refused(world, command)
        assert again.code == "request_in_progress"
        assert again.details == {"request_id": "truncate", "kind": "truncate"}
    ends(world, "truncate")
    ask(world, DropKeyspace("library"), "drop")
    assert refused(world, Truncate("library")).details["request_id"] == "drop"
    world.run()
    assert refused(world, Truncate("library")).code == "unknown_keyspace"


def test_global_requests_run_last_and_in_order() -> None:
    world = unfenced()
    ask(world, Cancel("join-a2"), "cancel")
    for name in ("shop", "old"):
        ask(world, CreateKeyspace(name, {"dc1": 1}), name)
    ask(world, Truncate("shop"), "first")
    ask(world, Truncate("library"), "second")
    ask(world, DropKeyspace("old"), "drop")
    world.nodes["c1"].applies = True
    world.run()
    opened = [f for e in world.epochs for f in e.facts if isinstance(f, TransitionOpened)]
    assert [f.transition.transition_id for f in opened[-3:]] == ["drop", "first", "second"]
