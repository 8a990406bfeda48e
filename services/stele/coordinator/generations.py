"""CDC generations beside the topology: each is published in its turn, and forgotten in its time.

Nothing waits for this. A generation is published once every member that is not excluded knows its time.
"""

from stele.coordinator.desk import Desk
from stele.domain.cdc.commands import ForgetCdcGeneration, PublishCdcGeneration
from stele.domain.cdc.decide import to_forget, to_publish


def look_after_generations(desk: Desk) -> None:
    """Publish the oldest that is not, once that is safe; forget those whose time is over by this clock."""
    seen = desk.seen
    due = to_publish(seen.image)
    if due and desk.answered(seen.image.cdc.generations[due].committed_epoch).complete:
        desk.submit(PublishCdcGeneration(seen.term, due))
    for generation_id in to_forget(seen.image, seen.wall_ms):
        desk.submit(ForgetCdcGeneration(seen.term, generation_id))
