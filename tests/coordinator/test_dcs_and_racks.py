"""Several datacentres and racks: what joins and leaves change there, and what is refused."""

import pytest

from stele.domain.commands import CreateKeyspace, Exclude, KeyspaceRfChange, Leave, Remove
from stele.domain.names import NodeState, RequestStatus
from tests.coordinator.stories import error_of, status_of
from tests.coordinator.test_move import rows, serve_ring
from tests.coordinator.world import World, empty_cluster
from tests.domain.epochs import code_of


def cluster(**nodes: str) -> World:
    """Return normal nodes of each dc. ``a1`` is in rack ``a``."""
    world = empty_cluster()
    for dc, names in nodes.items():
        world.add(names, dc)
    world.run()
    return world


def test_new_dc_changes_no_replicas_until_a_keyspace_names_it() -> None:
    world = cluster(dc1="a1 b1 c1")
    assert world.apply(CreateKeyspace("one", {"dc1": 3})) is None

    def replicas() -> set[tuple[str, ...]]:
        placement = world.image.placement_of("one")
        assert placement is not None
        return {tuple(sorted(row.reads)) for row in placement.rows}

    before = replicas()
    assert code_of(world.apply(CreateKeyspace("both", {"dc1": 3, "dc2": 2}))) == "too_few_nodes"
    world.add("d1 e1", "dc2")
    world.run()
    assert replicas() == before
    assert not any(order for name in ("a1", "b1", "c1") for order in world.orders(name)[1:])
    assert world.apply(CreateKeyspace("both", {"dc1": 3, "dc2": 2})) is None
    placement = world.image.placement_of("both")
    assert placement is not None
    assert {tuple(sorted(row.reads)) for row in placement.rows} == {("a1", "b1", "c1", "d1", "e1")}


@pytest.mark.parametrize("named", [True, False])
def test_last_node_of_a_dc_leaves_only_if_no_keyspace_names_the_dc(*, named: bool) -> None:
    world = cluster(dc1="a1 b1", dc2="d1")
    replication = {"dc1": 2, **({"dc2": 1} if named else {})}
    assert world.apply(CreateKeyspace("library", replication)) is None
    refused = world.apply(Leave("d1"), "leave")
    if named:
        assert refused is not None and refused.code == "too_few_nodes"
        assert "0 nodes would remain in 'dc2'; keyspace 'library' needs 1" in refused.message
        return
    world.run()
    assert world.state("d1") is NodeState.LEFT
    serve_ring(world, "library")


def test_last_node_of_a_rack_may_leave_and_replicas_then_share_a_rack() -> None:
    """As with rf_rack_valid_keyspaces off, the default, the factor is kept and racks may be shared."""
    world = cluster(dc1="a1 a2 b1 b2 c1")
    assert world.apply(CreateKeyspace("library", {"dc1": 3})) is None
    placement = world.image.placement_of("library")
    assert placement is not None
    assert all(len({node[0] for node in row.reads}) == 3 for row in placement.rows)
    assert world.apply(Leave("c1"), "leave") is None
    world.run()
    assert status_of(world, "leave") is RequestStatus.DONE
    placement = world.image.placement_of("library")
    assert placement is not None
    assert all(len({*row.reads}) == 3 for row in placement.rows)
    assert all({node[0] for node in row.reads} == {"a", "b"} for row in placement.rows)
    world.add("c2")
    world.run()
    placement = world.image.placement_of("library")
    assert placement is not None
    assert all("c2" in row.reads for row in placement.rows), "a replica in each rack again"


def test_every_rack_keeps_a_replica_after_a_leave_in_the_same_rack() -> None:
    world = cluster(dc1="a1 a2 b1 b2 c1 c2", dc2="d1 d2 e1")
    assert world.apply(CreateKeyspace("library", {"dc1": 3, "dc2": 2})) is None
    for name in ("a1", "d1"):
        assert world.apply(Leave(name), f"leave-{name}") is None
    world.run()
    assert {status_of(world, f"leave-{n}") for n in ("a1", "d1")} == {RequestStatus.DONE}
    assert rows(world, "library")
    placement = world.image.placement_of("library")
    assert placement is not None
    racks = {"".join(sorted(node[0] for node in row.reads)) for row in placement.rows}
    assert racks == {"abcde"}
    serve_ring(world, "library")


def test_racks_of_one_name_in_two_dcs_are_two_racks() -> None:
    world = empty_cluster()
    for name, dc in (("a1", "dc1"), ("a2", "dc1"), ("a3", "dc2"), ("a4", "dc2")):
        world.add(name, dc, rack="r1" if name in ("a1", "a3") else "r2")
    world.run()
    assert world.apply(CreateKeyspace("library", {"dc1": 1, "dc2": 1})) is None
    placement = world.image.placement_of("library")
    assert placement is not None
    for row in placement.rows:
        assert len({*row.reads} & {"a1", "a2"}) == len({*row.reads} & {"a3", "a4"}) == 1


def test_lost_rack_of_nine_nodes_is_removed_in_one_operation() -> None:
    """The limit for joins does not apply: no dead node could take over from another."""
    dead = [f"a{number}" for number in range(1, 10)]
    world = cluster(dc1=" ".join([*dead, "b1", "b2", "b3", "c1", "c2", "c3", "d1"]))
    assert world.apply(CreateKeyspace("library", {"dc1": 3})) is None
    for name in dead:
        world.crash(name)
    world.pass_s(7)
    for name in dead:
        assert world.apply(Remove(node_id=name), name) is None
    world.run()
    assert {status_of(world, name) for name in dead} == {RequestStatus.DONE}
    assert all(world.state(name) is NodeState.LEFT for name in dead)


def test_lost_dc_with_most_copies_is_given_up_only_with_force() -> None:
    world = cluster(dc1="a1 b1", dc2="d1 e1 f1")
    lost = ("d1", "e1", "f1")
    assert world.apply(CreateKeyspace("library", {"dc1": 2, "dc2": 3})) is None
    for name in lost:
        world.crash(name)
    world.pass_s(7)
    assert world.apply(Exclude(lost, force=True), "exclude") is None
    world.run()
    assert world.apply(KeyspaceRfChange("library", {"dc1": 2, "dc2": 0}), "careful") is None
    world.run()
    assert status_of(world, "careful") is RequestStatus.FAILED
    assert "f1 have. Ask again with force: " in error_of(world, "careful"), "excluded: no start"
    assert (
        world.apply(KeyspaceRfChange("library", {"dc1": 2, "dc2": 0}, force=True), "forced") is None
    )
    world.run()
    assert status_of(world, "forced") is RequestStatus.DONE
    for name in lost:
        assert world.apply(Remove(node_id=name), name) is None
    world.run()
    assert all(world.state(name) is NodeState.LEFT for name in lost)
    serve_ring(world, "library")
