"""Check of the rows on all disks of a small cluster. It would take too long in larger ones."""

from typing import TYPE_CHECKING, Final

from stele.agent.stores import read_partition
from stele.domain.image import Image
from stele_simulator.messages import token_of_key

if TYPE_CHECKING:
    from stele_simulator.processes.story_world import StoryWorld

LOST: Final = "no acknowledged write is lost"


def check_acknowledged_rows(world: "StoryWorld", image: Image) -> None:
    """Check that the replicas without an acknowledged row are too few for a quorum of reads. Lost nodes do not
    answer.
    """
    if world.rows.age % 2:
        return
    rows = {node.node_id: world.stores.timestamps(node) for node in world.nodes}
    for data in image.schema.all_data():
        placement = image.ring.placements.get(data.placement)
        if placement is None:
            continue  # INV-TABL-3
        for key, wanted in world.stores.acknowledged(data.data_id).items():
            token, text = token_of_key((data.data_id, key.decode())), key.decode()
            reads = placement.row_for(token).reads
            lacking = [
                name
                for name in reads
                if name not in world.gone
                and name in rows
                and rows[name].get((read_partition(image, name, data.data_id, token), text), 0)
                < wanted
            ]
            world.demand(
                len(lacking) <= len(reads) // 2,
                LOST,
                f"{data.name}/{text} at {wanted} is met by every quorum of its readers {reads}",
                f"{lacking} lack it at epoch {image.epoch}",
            )
