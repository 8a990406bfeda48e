"""CDC generations beside the topology: each is published in its turn, and forgotten in its time.

Nothing waits for this. A generation is published once every member that is not excluded knows its time.
"""

from stele.coordinator.desk import Desk
from stele.coordinator.knowledge import Observed
from stele.domain.cdc.commands import ForgetCdcGeneration, PublishCdcGeneration
from stele.domain.cdc.decide import to_forget, to_publish


def look_after_generations(desk: Desk) -> None:
    """Publish the oldest that is not, once that is safe; forget those whose time is over by this clock."""
    seen = desk.seen
    due = to_publish(seen.image)
    if due and _is_known_to_all(seen, due):
        desk.submit(PublishCdcGeneration(seen.term, due))
    for generation_id in to_forget(seen.image, seen.wall_ms):
        desk.submit(ForgetCdcGeneration(seen.term, generation_id))


def _is_known_to_all(seen: Observed, generation_id: str) -> bool:
    committed = seen.image.cdc.generations[generation_id].committed_epoch
    acks = seen.acks.by_node
    return all(
        node_id in acks and acks[node_id].ack.epoch >= committed
        for node_id in seen.image.membership.taking_part()
    )
