"""Checks of the rows on all disks of a small cluster. They would take too long in larger ones."""

from typing import TYPE_CHECKING, Final

from stele.agent.stores import read_partition
from stele.domain.image import Image
from stele_simulator.messages import token_of_key

if TYPE_CHECKING:
    from stele_simulator.processes.members import NodeMachine
    from stele_simulator.processes.stage import Stage

LOST: Final = "no acknowledged write is lost"

Rows = dict[tuple[str, str], int]
"""Timestamps by partition and key."""


class StageChecks:
    """Looks at all disks whenever replicas change."""

    def __init__(self, stage: "Stage") -> None:
        self.checks = 0
        self._stage = stage

    def changed(self, before: Image, after: Image) -> None:
        """One more epoch."""
        if after.ring is not before.ring or after.topology is not before.topology:
            self._acknowledged_is_there(after)

    def _acknowledged_is_there(self, image: Image) -> None:
        """Check that the replicas without an acknowledged row are too few for a quorum of reads. Lost nodes
        do not answer.
        """
        if self._stage.rows.age % 2:
            return
        rows = {node.node_id: self._rows_of(node) for node in self._stage.nodes}
        for data in image.schema.all_data():
            placement = image.ring.placements.get(data.placement)
            if placement is None:
                continue  # INV-TABL-3
            for key, wanted in self._stage.stores.acknowledged(data.data_id).items():
                token = token_of_key((data.data_id, key.decode()))
                reads = placement.row_for(token).reads
                lacking = [
                    name
                    for name in reads
                    if name not in self._stage.gone
                    and name in rows
                    and rows[name].get(
                        (read_partition(image, name, data.data_id, token), key.decode()), 0
                    )
                    < wanted
                ]
                self.checks += 1
                self._stage.demand(
                    len(lacking) <= len(reads) // 2,
                    LOST,
                    f"{data.name}/{key.decode()} at {wanted} is met by every quorum of its readers {reads}",
                    f"{lacking} lack it at epoch {image.epoch}",
                )

    def _rows_of(self, node: "NodeMachine") -> Rows:
        return self._stage.stores.timestamps(node)
