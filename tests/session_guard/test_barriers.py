"""Barriers with names, and how long each name has been there."""

from __future__ import annotations

import msgspec

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


def test_acks_from_another_data_directory_do_not_count() -> None:
    """A wiped node's new disk has not applied anything: what the node acknowledged was the old one's."""
    world = three_nodes()
    target = (world.image.epoch, world.version)
    ack = world.nodes["a1"].ack(world.image)
    strange = AckTable().with_ack(msgspec.structs.replace(ack, host_id="new disk"), 1.0)
    found, _ = view(world.image, strange, Blocking(), target, 1.0)
    why = {blocker.node_id: blocker.why for blocker in found.blockers}
    assert why["a1"] == "is heard from another data directory, host new disk"
    found, _ = view(world.image, AckTable().with_ack(ack, 1.0), Blocking(), target, 1.0)
    assert "a1" not in {blocker.node_id for blocker in found.blockers}


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
