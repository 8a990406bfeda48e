"""Nodes on the way back: barriers, and the checks of barriers, wait for none of their ranges."""

from stele.domain.image import Image
from stele_simulator.violation import require


def check_goes_back(before: Image, after: Image) -> None:
    """I11: the reads of no range that a marked transition was to move go forward after the mark."""
    for transition in before.topology.open():
        if not transition.mark:
            continue
        for name, plan in transition.plans.items():
            one, two = before.ring.placements[name], after.ring.placements.get(name)
            if two is None:
                continue
            for row in plan.rows:
                was, now = one.row_for(row.end).reads, two.row_for(row.end).reads
                moves = was == row.old and now == row.new and {*row.new} != {*row.old}
                require(
                    not moves,
                    "I11",
                    f"{transition.kind} {transition.transition_id} is marked to go back, so reads of"
                    f" ({row.start}, {row.end}] of {name} stay at {row.old}",
                    f"epoch {after.epoch} moves them to {row.new}",
                )
