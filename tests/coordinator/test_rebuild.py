"""Rebuild: a node streams all its data again, and routing does not change."""

import pytest

from stele.coordinator.steps import Limits
from stele.domain.commands import CreateKeyspace, Exclude, Leave, Rebuild
from stele.domain.names import NodeState, RequestStatus, TransitionState
from stele.domain.ring.ranges import Range
from stele.domain.topology.operations.table import OPERATIONS
from tests.coordinator.stories import error_of, reach, spread, status_of
from tests.coordinator.test_move import rows
from tests.coordinator.world import World, empty_cluster, three_nodes
from tests.domain.epochs import code_of

STATE = TransitionState
REQUEST = "rebuild"


def rebuild(world: World, node_id: str, source_dc: str = "", *, force: bool = False) -> None:
    asked = Rebuild(node_id=node_id, source_dc=source_dc, force=force)
    assert world.apply(asked, REQUEST) is None


def two_dcs(*rf: int) -> World:
    """Return a1 to a3 in dc1, b1 to b3 in dc2, and a keyspace with these numbers of replicas."""
    world = empty_cluster()
    for dc, names in (("dc1", "a1 a2 a3"), ("dc2", "b1 b2 b3")):
        for name in names.split():
            world.add(name, dc, rack=name)
    world.run()
    replication = {f"dc{index}": count for index, count in enumerate(rf, 1) if count}
    assert world.apply(CreateKeyspace("library", replication)) is None
    return world


def asked_of(world: World, node_id: str) -> set[tuple[tuple[str, ...], int]]:
    """Return the sources of each range of the open rebuild, and the number that it needs."""
    transition = world.transition(REQUEST)
    sources_of = OPERATIONS[transition.kind].sources
    found = [
        sources_of(world.image, transition, row, node_id, frozenset())
        for plan in transition.plans.values()
        for row in plan.rows
    ]
    return {(tuple(sorted(asked[0])), asked[1]) for asked in found if asked is not None}


def test_rebuild_changes_no_rows_and_covers_all_ranges_of_the_node() -> None:
    world = three_nodes(rf=3)
    before, version = rows(world, "library"), world.version
    world.nodes["b1"].mute = True
    rebuild(world, "b1")
    reach(world, REQUEST, STATE.REBUILDING)
    assert world.state("b1") is NodeState.REBUILDING
    assert rows(world, "library") == before
    plan = world.transition(REQUEST).plans["dc1:3"]
    assert [(row.start, row.end, (row.old, row.new, ())) for row in plan.rows] == before
    assert asked_of(world, "b1") == {(("a1", "c1"), 2)}
    assert asked_of(world, "a1") == set()
    world.nodes["b1"].mute = False
    world.run()
    assert status_of(world, REQUEST) is RequestStatus.DONE
    assert world.state("b1") is NodeState.NORMAL
    assert rows(world, "library") == before
    assert world.version > version, "its session begins and ends by rounds"
    assert not any(node.cleanup_since for node in world.image.membership.nodes.values())


def test_only_the_rebuilt_node_streams() -> None:
    world = three_nodes(rf=2)
    for node in world.nodes.values():
        node.orders.clear()
    rebuild(world, "b1")
    world.run()
    assert {name for name in world.nodes if world.orders(name)} == {"b1"}


def test_rebuild_starts_while_other_nodes_are_down() -> None:
    """The sources are checked when the streams are ordered."""
    world = three_nodes(rf=2)
    world.add("a2")
    world.run()
    world.nodes["a2"].alive = False
    world.pass_s(Limits().down_after_s + 1)
    rebuild(world, "b1")
    world.until(lambda: status_of(world, REQUEST) is RequestStatus.DONE, "the end")


def test_rebuild_waits_for_its_node_until_the_exclusion() -> None:
    world = three_nodes(rf=2)
    world.nodes["b1"].alive = False
    world.pass_s(Limits().down_after_s + 1)
    rebuild(world, "b1")
    world.pass_s(5 * Limits().dead_node_patience_s)
    assert status_of(world, REQUEST) is RequestStatus.PENDING
    assert world.apply(Exclude(("b1",)), "exclude") is None
    world.run()
    assert status_of(world, REQUEST) is RequestStatus.FAILED
    assert "Dead nodes: b1" in error_of(world, REQUEST)


def test_rebuild_locks_its_ranges_and_other_ranges_continue() -> None:
    world = spread()
    assert world.apply(CreateKeyspace("two", {"dc1": 2})) is None
    world.nodes["a3"].mute = True
    rebuild(world, "a3", force=True)
    reach(world, REQUEST, STATE.REBUILDING)
    locks = world.transition(REQUEST).plans["dc1:2"].locks
    assert locks == (Range(100, 300),)
    assert world.apply(Leave("a2"), "near") is None
    assert world.apply(Leave("a7"), "far") is None
    world.until(lambda: status_of(world, "far") is RequestStatus.DONE, "what is elsewhere")
    assert status_of(world, "near") is RequestStatus.PENDING
    world.nodes["a3"].mute = False
    world.run()
    assert status_of(world, "near") is RequestStatus.DONE


def test_rebuild_with_one_replica_has_no_sources() -> None:
    world = spread()
    assert code_of(world.apply(Rebuild(node_id="a3"))) == "too_few_sources"
    world.nodes["a3"].mute = True
    rebuild(world, "a3", force=True)
    reach(world, REQUEST, STATE.REBUILDING)
    assert asked_of(world, "a3") == {((), 0)}


def test_rebuild_with_an_excluded_replica_needs_force() -> None:
    world = three_nodes(rf=3)
    world.nodes["c1"].alive = False
    world.pass_s(Limits().down_after_s + 1)
    assert world.apply(Exclude(("c1",)), "exclude") is None
    world.run()
    assert code_of(world.apply(Rebuild(node_id="b1"))) == "too_few_sources"
    rebuild(world, "b1", force=True)
    world.until(lambda: status_of(world, REQUEST) is RequestStatus.DONE, "the end")


@pytest.mark.parametrize(
    ("rf", "node", "dc", "asked"),
    [
        ((3, 3), "b1", "dc1", {(("a1", "a2", "a3"), 3)}),
        ((3, 2), "b1", "dc1", {(("a1", "a2", "a3"), 3)}),
        ((3, 3), "b1", "", {(("a1", "a2", "a3", "b2", "b3"), 3)}),
        ((1, 1), "b1", "dc1", {(("a1",), 1), (("a2",), 1), (("a3",), 1)}),
        ((3, 2), "a1", "dc2", "too_few_sources"),
        ((3, 3), "a1", "dc1", "too_few_sources"),
        ((3, 0), "a1", "dc2", "too_few_sources"),
        ((3, 3), "a1", "dc3", "unknown_dc"),
    ],
)
def test_source_dc_must_be_enough_for_every_quorum(
    rf: tuple[int, int], node: str, dc: str, asked: object
) -> None:
    world = two_dcs(*rf)
    refused = world.apply(Rebuild(node_id=node, source_dc=dc), REQUEST)
    if refused is not None:
        assert refused.code == asked
        return
    world.nodes[node].mute = True
    reach(world, REQUEST, STATE.REBUILDING)
    found = asked_of(world, node)
    assert found and isinstance(asked, set) and found <= asked


def test_insufficient_source_dc_is_accepted_with_force() -> None:
    world = two_dcs(3, 2)
    world.nodes["a1"].mute = True
    rebuild(world, "a1", "dc2", force=True)
    reach(world, REQUEST, STATE.REBUILDING)
    assert {len(sources) for sources, _ in asked_of(world, "a1")} == {2}
    assert {needed for _, needed in asked_of(world, "a1")} == {2}


def test_single_node_cannot_be_rebuilt() -> None:
    world = empty_cluster()
    world.add("a1")
    world.run()
    assert code_of(world.apply(Rebuild(node_id="a1", force=True))) == "single_node"
    assert code_of(world.apply(Rebuild(node_id="b9"))) == "unknown_node"
