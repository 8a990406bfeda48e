"""Barriers with the blocking nodes, and the time for which each node has blocked."""

from __future__ import annotations

from stele.domain.image import EMPTY, Image
from stele.domain.topology.barriers import AckTable
from stele.session_guard.guard import Blocking, current_target, view
from tests.domain.ack_of import ack_of
from tests.domain.history import three_nodes
from tests.node.world import World


def image_of_three() -> Image:
    return three_nodes()[0].image


def test_blocker_keeps_its_start_until_it_acknowledges() -> None:
    world = World()
    world.start_join()
    world.advance()
    image = world.image
    target = current_target(image)
    found, blocking = view(image, AckTable(), Blocking(), target, 100.0)
    assert [b.node_id for b in found.blockers] == ["n1", "n2", "n3", "n4"]
    assert {b.blocking_for_s for b in found.blockers} == {0.0}
    assert {b.silent_for_s for b in found.blockers} == {None}
    acks = AckTable().with_ack(ack_of(image, "n1"), 102.0).with_ack(ack_of(image, "n2"), 103.0)
    found, blocking = view(image, acks, blocking, target, 104.0)
    assert [(b.node_id, b.blocking_for_s) for b in found.blockers] == [("n3", 4.0), ("n4", 4.0)]
    assert not found.satisfied
    acks = acks.with_ack(ack_of(image, "n3"), 105.0)
    found, blocking = view(image, acks, blocking, target, 106.0)
    assert found.satisfied and not found.complete


def test_acks_from_another_data_directory_do_not_count() -> None:
    """The new disk of a wiped node has applied nothing: the acks of the node were those of the old disk."""
    image = image_of_three()
    target = current_target(image)
    strange = AckTable().with_ack(ack_of(image, "n1", host_id="new disk"), 1.0)
    found, _ = view(image, strange, Blocking(), target, 1.0)
    why = {blocker.node_id: blocker.why for blocker in found.blockers}
    assert why["n1"] == "runs with another data directory, host new disk"
    found, _ = view(image, AckTable().with_ack(ack_of(image, "n1"), 1.0), Blocking(), target, 1.0)
    assert "n1" not in {blocker.node_id for blocker in found.blockers}


def test_current_barrier_is_that_of_the_newest_version() -> None:
    assert current_target(EMPTY) == (0, 1)
    image = image_of_three()
    topology = image.topology
    assert current_target(image) == (topology.since_epoch, topology.version)
