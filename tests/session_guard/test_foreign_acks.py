"""The guard skips and counts messages of another log."""

from stele.log.codec import encode_ack, encode_epoch
from stele.log.follower import LogFollower
from stele.runtime.metrics import foreign_messages
from stele.session_guard.guard import Guard
from tests.domain.ack_of import ack_of
from tests.domain.history import three_nodes
from tests.log.memory import MemoryLog, MemoryPartition


async def test_ack_of_another_log_is_skipped_and_counted() -> None:
    partition = MemoryPartition()
    for epoch in three_nodes()[0].epochs:
        partition.append(encode_epoch(epoch))
    follower = LogFollower(MemoryLog(partition))
    follower.start()
    image = await follower.wait_for_end(10)
    guard = Guard(follower, 5.0)

    def ack(log_id: bytes) -> bytes:
        return encode_ack(ack_of(image, "n1", log_id=log_id))

    counted = foreign_messages.labels("acks")
    before = counted._value.get()
    guard.on_ack(ack(bytes([4] * 16)))
    assert "n1" in {blocker.node_id for blocker in guard.barrier().blockers}
    assert counted._value.get() == before + 1
    guard.on_ack(ack(image.log_id))
    assert "n1" not in {blocker.node_id for blocker in guard.barrier().blockers}
    follower.stop()
