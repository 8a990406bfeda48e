"""Changes of a keyspace's replication: any into any, in parallel, rolled back, and with dead nodes."""

import pytest

from stele.domain.commands import (
    Cancel,
    CreateKeyspace,
    DropKeyspace,
    Exclude,
    KeyspaceRfChange,
    Leave,
    Rejection,
)
from stele.domain.fencing import VersionTracker, check_token
from stele.domain.model.schema import Keyspace, placement_name
from stele.domain.names import OrderKind, RequestStatus, TransitionState
from stele.domain.ring.transition import stream_sources
from stele.domain.rules.ring import ring_now
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator.ranges_in_use import sides
from tests.coordinator.stories import error_of, reach, status_of
from tests.coordinator.world import World, empty_cluster, three_nodes
from tests.domain.epochs import code_of

STATE = TransitionState


def keyspace(world: World, name: str = "library") -> Keyspace:
    found = world.image.schema.named(name)
    assert found is not None
    return found


def alter(world: World, name: str = "library", **replication: int) -> Rejection | None:
    return world.apply(KeyspaceRfChange(name, replication), f"alter-{name}")


def changed(rf: int, to: int, state: TransitionState) -> World:
    """Return three nodes whose replication change has entered a state. No node works."""
    world = three_nodes(rf)
    for node in world.nodes.values():
        node.mute = True
    assert alter(world, dc1=to) is None
    reach(world, "alter-library", state)
    return world


def is_placed(world: World, replication: dict[str, int], name: str = "library") -> None:
    """Check the replicas of the strategy, the shared placement, and that the change left nothing behind."""
    found = keyspace(world, name)
    assert (found.replication, found.placement) == (replication, placement_name(replication))
    rows = world.image.ring.placements[found.placement].rows
    wanted = ring_now(world.image).placement(replication).rows
    assert [(r.end, sides(r)) for r in rows] == [(r.end, sides(r)) for r in wanted]
    names = {placement_name(k.replication) for k in world.image.schema.by_id.values()}
    assert {*world.image.ring.placements} == names


REPLICATIONS: list[dict[str, int]] = [
    {"dc1": 1},
    {"dc1": 3},
    {"dc1": 4},
    {"dc2": 1},
    {"dc1": 1, "dc2": 2},
    {"dc1": 3, "dc2": 2},
]


@pytest.mark.parametrize("before", REPLICATIONS, ids=placement_name)
def test_any_replication_changes_to_any_other_in_one_request(before: dict[str, int]) -> None:
    world = empty_cluster()
    world.add("a1 b1 c1 c2")
    world.add("d1 d2", dc="dc2")
    world.run()
    assert world.apply(CreateKeyspace("library", before)) is None
    at = before
    for number, after in enumerate([each for each in REPLICATIONS if each != before]):
        request_id = f"alter-{number}"
        assert (
            world.apply(KeyspaceRfChange("library", dict.fromkeys(at, 0) | after), request_id)
            is None
        )
        world.run()
        assert status_of(world, request_id) is RequestStatus.DONE
        is_placed(world, after)
        assert after != at
        at = after


def test_change_goes_through_its_states_with_its_own_placement() -> None:
    world = three_nodes(rf=1)
    assert world.apply(CreateKeyspace("twin", {"dc1": 1})) is None
    twin = keyspace(world, "twin")
    assert alter(world, dc1=3) is None
    world.run()
    states = [
        image.topology.transitions["alter-library"].state
        for image in world.images
        if "alter-library" in image.topology.transitions
    ]
    assert list(dict.fromkeys(states)) == [
        STATE.WRITE_BOTH_READ_OLD,
        STATE.WRITE_BOTH_READ_NEW,
        STATE.FINISHING,
    ]
    while_moving = [i for i in world.images if "alter-library" in i.ring.placements]
    assert while_moving
    assert all(image.schema.by_id[twin.keyspace_id] == twin for image in while_moving)
    is_placed(world, {"dc1": 3})
    is_placed(world, {"dc1": 1}, "twin")


def test_older_requests_are_refused_despite_shared_rows() -> None:
    world = three_nodes(rf=1)
    assert world.apply(CreateKeyspace("wide", {"dc1": 3})) is None
    assert alter(world, dc1=3) is None
    world.run()
    library, finished = keyspace(world), keyspace(world).placed_version
    rows = world.image.ring.placements[library.placement].rows
    assert max(row.version for row in rows) < finished <= world.image.topology.fence_version
    late = check_token(world.image, library.keyspace_id, 0, finished - 1)
    assert late is not None and late.row_version == finished
    assert check_token(world.image, library.keyspace_id, 0, finished) is None
    wide = keyspace(world, "wide").keyspace_id
    assert check_token(world.image, wide, 0, finished - 1) is None, "it has not changed"


def test_request_of_an_older_version_is_awaited_and_never_promoted() -> None:
    world = three_nodes(rf=1)
    held, library = world.version, keyspace(world).keyspace_id
    tracker = VersionTracker()
    tracker.follow(world.image)
    tracker.hold(held, library, 0)
    assert alter(world, dc1=3) is None
    world.run()
    tracker.follow(world.image)
    assert tracker.oldest_in_use(world.version) == held


def test_remaining_one_of_two_replicas_needs_no_data_but_must_be_up() -> None:
    world = three_nodes(rf=2)
    assert alter(world, dc1=1) is None
    reach(world, "alter-library", STATE.WRITE_BOTH_READ_OLD)
    transition = world.transition("alter-library")
    assert [*world.nodes] == OPERATIONS[transition.kind].receivers(transition)
    assert not any(
        stream_sources(row, node_id)[1]
        for plan in transition.plans.values()
        for row in plan.rows
        for node_id in row.receiving()
    )
    world.run()
    assert status_of(world, "alter-library") is RequestStatus.DONE
    assert all(world.orders(name, OrderKind.CLEANUP) for name in world.nodes)


@pytest.mark.parametrize(("rf", "to"), [(1, 3), (3, 1), (2, 3)])
def test_cancelled_change_restores_the_placement(rf: int, to: int) -> None:
    world = changed(rf, to, STATE.WRITE_BOTH_READ_OLD)
    before = [sides(r) for r in ring_now(world.image).placement({"dc1": rf}).rows]
    assert world.apply(Cancel("alter-library"), "cancel") is None
    for node in world.nodes.values():
        node.mute = False
    world.run()
    assert status_of(world, "alter-library") is RequestStatus.CANCELLED
    is_placed(world, {"dc1": rf})
    rows = world.image.ring.placements[keyspace(world).placement].rows
    assert [sides(r) for r in rows] == before


def test_keyspaces_change_in_parallel() -> None:
    world = three_nodes(rf=1)
    assert world.apply(CreateKeyspace("twin", {"dc1": 1})) is None
    world.nodes["c1"].mute = True
    assert alter(world, dc1=3) is None
    assert alter(world, "twin", dc1=2) is None
    reach(world, "alter-library", STATE.WRITE_BOTH_READ_OLD)
    reach(world, "alter-twin", STATE.WRITE_BOTH_READ_OLD)
    assert world.apply(CreateKeyspace("third", {"dc1": 2})) is None
    assert world.apply(DropKeyspace("third"), "drop") is None
    world.until(lambda: status_of(world, "drop") is RequestStatus.DONE, "the drop")
    world.nodes["c1"].mute = False
    world.until(world.at_rest, "the end of both", 600)
    assert status_of(world, "alter-library") is RequestStatus.DONE
    is_placed(world, {"dc1": 3})
    is_placed(world, {"dc1": 2}, "twin")


def test_join_and_replication_change_wait_for_each_other() -> None:
    world = changed(1, 3, STATE.WRITE_BOTH_READ_OLD)
    world.add("d1")
    world.pass_s(5)
    assert status_of(world, "join-d1") is RequestStatus.PENDING
    assert any("alter-library" in wait.what for wait in world.brain.steps.waits)
    for node in world.nodes.values():
        node.mute = False
    world.nodes["d1"].mute = True
    reach(world, "join-d1", STATE.WRITE_BOTH_READ_OLD)
    assert keyspace(world).replication == {"dc1": 3}
    assert world.apply(KeyspaceRfChange("library", {"dc1": 2}), "again") is None
    world.pass_s(5)
    assert status_of(world, "again") is RequestStatus.PENDING
    world.nodes["d1"].mute = False
    world.run()
    assert status_of(world, "again") is RequestStatus.DONE
    is_placed(world, {"dc1": 2})


def test_node_needed_by_a_replication_change_cannot_leave() -> None:
    world = three_nodes(rf=1)
    world.nodes["c1"].mute = True
    world.add("c2")
    assert alter(world, dc1=4) is not None, "c2 is no member yet"
    assert alter(world, "library", dc1=3) is not None, (
        "the same id never stands for another command"
    )
    assert world.apply(KeyspaceRfChange("library", {"dc1": 3}), "alter") is None
    assert code_of(world.apply(Leave("b1"), "leave")) == "too_few_nodes"


def test_change_fails_if_a_needed_node_was_excluded_meanwhile() -> None:
    world = three_nodes(rf=1)
    world.nodes["c1"].alive = False
    world.pass_s(10)
    assert alter(world, dc1=3) is None
    assert world.apply(Exclude(("c1",), force=True), "exclude") is None
    world.until(lambda: status_of(world, "alter-library") is RequestStatus.FAILED, "the end", 100)
    assert error_of(world, "alter-library").startswith("Replication factor 3 in 'dc1' needs 3")
    is_placed(world, {"dc1": 1})


def test_excluded_node_cannot_take_over_ranges() -> None:
    """One of three replicas is excluded. Among two replicas it would serve some ranges without their data."""
    world = three_nodes(rf=3)
    world.nodes["c1"].alive = False
    world.pass_s(10)
    assert world.apply(Exclude(("c1",)), "exclude") is None
    world.until(lambda: status_of(world, "exclude") is RequestStatus.DONE, "the exclusion")
    assert alter(world, dc1=2) is None
    world.until(lambda: status_of(world, "alter-library") is RequestStatus.FAILED, "the end", 100)
    assert error_of(world, "alter-library").startswith("c1 would have to take over ranges")


@pytest.mark.parametrize(
    ("replication", "code"),
    [
        ({"dc1": 4}, "too_few_nodes"),
        ({"dc2": 1}, "too_few_nodes"),
        ({"dc1": 0}, "bad_replication"),
        ({}, "bad_replication"),
        ({"dc1": 3, "dc2": -1}, "bad_replication"),
        ({"dc1": 2}, "replication_unchanged"),
        ({"dc1": 2, "dc2": 0}, "replication_unchanged"),
    ],
)
def test_invalid_or_unchanged_replication_is_refused(
    replication: dict[str, int], code: str
) -> None:
    world = three_nodes(rf=2)
    assert code_of(world.apply(KeyspaceRfChange("library", replication))) == code


def test_alter_keeps_the_replicas_of_a_dc_that_it_does_not_name() -> None:
    world = three_nodes(rf=2)
    world.add("d1 d2", dc="dc2")
    world.run()
    both = KeyspaceRfChange("library", {"dc2": 2})
    assert world.apply(both, "wider") is None
    assert world.image.requests.requests["wider"].replication == {"dc1": 2, "dc2": 2}
    world.run()
    assert world.apply(KeyspaceRfChange("library", {"dc1": 0}), "narrower") is None
    assert world.image.requests.requests["narrower"].replication == {"dc2": 2}


def test_second_request_for_a_keyspace_is_refused() -> None:
    world = changed(1, 3, STATE.WRITE_BOTH_READ_OLD)
    for command in (DropKeyspace("library"), KeyspaceRfChange("library", {"dc1": 2})):
        refused = world.apply(command)
        assert refused is not None and refused.code == "request_in_progress"
        assert refused.details["request_id"] == "alter-library"
    assert code_of(world.apply(KeyspaceRfChange("nobody", {"dc1": 2}))) == "unknown_keyspace"
    assert world.apply(CreateKeyspace("other", {"dc1": 1})) is None
    assert world.apply(DropKeyspace("other"), "drop") is None
    assert code_of(world.apply(KeyspaceRfChange("other", {"dc1": 2}))) == "keyspace_being_dropped"


def test_change_is_rolled_back_if_a_dead_node_would_be_the_only_replica() -> None:
    world = changed(2, 1, STATE.WRITE_BOTH_READ_OLD)
    world.nodes["c1"].alive = False
    world.pass_s(10)
    assert world.apply(Exclude(("c1",)), "exclude") is None
    for node in world.nodes.values():
        node.mute = False
    world.run()
    assert status_of(world, "alter-library") is RequestStatus.FAILED
    is_placed(world, {"dc1": 2})


def test_consecutive_changes_do_not_starve_a_join() -> None:
    world = three_nodes(rf=1)
    assert world.apply(CreateKeyspace("twin", {"dc1": 1})) is None
    for node in world.nodes.values():
        node.mute = True
    assert alter(world, dc1=2) is None
    reach(world, "alter-library", STATE.WRITE_BOTH_READ_OLD)
    world.add("d1")
    world.pass_s(2)
    assert alter(world, "twin", dc1=2) is None
    for node in world.nodes.values():
        node.mute = False
    world.run()
    started = {
        name: world.image.requests.requests[name].started_epoch
        for name in ("join-d1", "alter-twin")
    }
    assert started["join-d1"] < started["alter-twin"]
