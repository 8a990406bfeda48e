"""An ack counts only for the history that the counting process has itself (I5, I13)."""

from stele.domain.image import Image
from stele.domain.topology.barriers import AckTable, barrier
from tests.domain.ack_of import ack_of
from tests.domain.history import three_nodes
from tests.node.world import World

OTHER = bytes([3] * 16)


def acks_of(image: Image, **more: object) -> AckTable:
    table = AckTable()
    for node_id in image.membership.taking_part():
        table = table.with_ack(ack_of(image, node_id, **more), 0.0)
    return table


def test_acks_count_unless_their_epoch_is_known_with_another_state() -> None:
    history, _ = three_nodes()
    image = history.image
    states = {i.epoch: i.state_id for i in history.images}
    same, other = acks_of(image), acks_of(image, state_id=OTHER)
    found = barrier(image, same, image.epoch, 0, 1.0, states.get)
    assert found.complete and found.satisfied
    found = barrier(image, other, image.epoch, 0, 1.0, states.get)
    assert not found.complete
    assert {b.why for b in found.blockers} == {f"is at epoch {image.epoch} of another history"}
    unread = barrier(image, other, image.epoch, 0, 1.0, lambda _: None)
    assert unread.complete


def test_node_that_uses_a_closed_session_blocks_the_barrier() -> None:
    world = World()
    world.start_join()
    world.advance()
    image, session = world.image, world.session
    for in_use, complete in (((session,), True), ((session, "closed"), False)):
        found = barrier(image, acks_of(image, sessions_in_use=in_use), image.epoch, 0, 1.0)
        assert found.complete is complete
        assert {b.why for b in found.blockers} <= {"still works under closed session closed"}


def test_node_that_uses_an_older_version_blocks_the_barrier() -> None:
    history, _ = three_nodes()
    image, states = history.image, {i.epoch: i.state_id for i in history.images}
    version = image.topology.version
    acks = acks_of(image)
    slow = min(image.membership.taking_part())
    late = ack_of(image, slow, oldest_version_in_use=version - 1, sequence=2)
    found = barrier(image, acks.with_ack(late, 1.0), image.epoch, version, 1.0, states.get)
    assert not found.complete
    assert [(b.node_id, b.why) for b in found.blockers] == [
        (slow, f"has requests of version {version - 1}, older than {version}")
    ]
    found = barrier(image, acks, image.epoch, version, 1.0, states.get)
    assert found.complete
