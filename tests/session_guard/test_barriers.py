"""Barriers with names, and how long each name has been there."""

from __future__ import annotations

from stele.domain.acks import AckTable
from stele.domain.image import EMPTY
from stele.session_guard.barriers import KEPT_TARGETS, Blocking, current_target, view
from tests.coordinator.world import three_nodes


def test_a_blocker_keeps_its_time_until_it_passes() -> None:
    world = three_nodes()
    target = (world.image.epoch, world.version)
    found, blocking = view(world.image, AckTable(), Blocking(), target, 100.0)
    assert [b.node_id for b in found.blockers] == ["a1", "b1", "c1"]
    assert {b.blocking_for_s for b in found.blockers} == {0.0}
    assert {b.silent_for_s for b in found.blockers} == {None}
    acks = AckTable().with_ack(world.nodes["a1"].ack(world.image), 103.0)
    found, blocking = view(world.image, acks, blocking, target, 104.0)
    assert [(b.node_id, b.blocking_for_s) for b in found.blockers] == [("b1", 4.0), ("c1", 4.0)]
    assert not found.quorum
    acks = acks.with_ack(world.nodes["b1"].ack(world.image), 105.0)
    found, blocking = view(world.image, acks, blocking, target, 106.0)
    assert found.quorum and not found.complete


def test_each_barrier_has_its_own_times_and_their_number_is_bounded() -> None:
    blocking = Blocking()
    for epoch in range(100):
        blocking = blocking.since((epoch, 1), frozenset({"n1"}), float(epoch))
    assert len(blocking.by_target) == len(blocking.order) == KEPT_TARGETS
    assert blocking.by_target[99, 1]["n1"] == 99.0


def test_the_present_barrier_is_that_of_the_newest_version() -> None:
    assert current_target(EMPTY) == (0, 1)
    world = three_nodes()
    topology = world.image.topology.topology
    assert current_target(world.image) == (topology.since_epoch, topology.version)
