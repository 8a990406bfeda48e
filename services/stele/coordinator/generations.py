"""CDC generations beside the topology: each is published in order, and forgotten when its time is
over.

No request waits for this. A generation is published once every member that is not excluded has
applied the epoch with its time.
"""

from stele.coordinator.desk import Desk
from stele.domain.cdc.domain import to_forget, to_publish
from stele.domain.cdc.model import ForgetCdcGeneration, PublishCdcGeneration


def look_after_generations(desk: Desk) -> None:
    """Publish the oldest unpublished generation once that is safe. Forget generations whose time is
    over by this clock.
    """
    seen = desk.seen
    due = to_publish(seen.image)
    if due and desk.answered(seen.image.cdc.generations[due].committed_epoch).complete:
        desk.submit(PublishCdcGeneration(seen.term, due))
    for generation_id in to_forget(seen.image, seen.wall_ms):
        desk.submit(ForgetCdcGeneration(seen.term, generation_id))
