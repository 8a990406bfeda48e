"""Check INV-TABL-1 and INV-TABL-2 (docs/design.md) at the production stores, shard by shard.

INV-TABL-1: a shard without a replica holds no rows of a tablet that is not in transition, unless its
node is marked for cleanup. INV-TABL-2: a node deletes rows of a tablet only for an open transition of the
tablet or under its own mark, and never rows that the log gives to that shard.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stele.agent.stores import Span as Deleted
from stele.agent.stores import parted
from stele.domain.image import Image
from stele.domain.names import TABLET_MAP, NodeState
from stele_simulator.processes.members import NodeMachine
from stele_simulator.tablet_checks import Span, places, rows_at, span, spans_meet

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

CLEAN: Final = "INV-TABL-1"
OF_ITS_TIME: Final = "INV-TABL-2"
_ROWS: Final = """
select distinct keyspace, token from cells where keyspace = ? or keyspace like ?"""


class TabletRows:
    """Looks at disks when a transition of tablets ends, and at each row that a node takes in or deletes."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def changed(self, before: Image, after: Image) -> None:
        """Check that the other shards of nodes have no rows of tablets whose transitions have ended."""
        one, two = before.topology.transitions, after.topology.transitions
        if one is two or not self._counts(after.state_id):
            return
        for transition in before.topology.open():
            if transition.transition_id in two:
                continue
            for placement, plan in transition.plans.items():
                if placement.startswith(TABLET_MAP) and placement in after.ring.placements:
                    spans = [span(row.start, row.end) for row in plan.rows]
                    touched = {name for row in plan.rows for name in (*row.old, *row.new)}
                    self._look(after, placement, spans, touched)

    def rest(self, image: Image) -> None:
        """Check that at rest only nodes that are marked for a cleanup have foreign rows."""
        names = {node.node_id for node in self._world.nodes}
        for placement in sorted(image.ring.placements):
            if placement.startswith(TABLET_MAP):
                rows = image.ring.placements[placement].rows
                self._look(image, placement, [span(row.start, row.end) for row in rows], names)

    def _look(self, image: Image, placement: str, spans: list[Span], names: set[str]) -> None:
        for node in self._world.nodes:
            if node.node_id not in names or _is_excused(image, node.node_id):
                continue
            for data in image.schema.using(placement):
                engine = self._world.stores.engine_of(node)
                values = (data.data_id, f"{data.data_id}#%")
                for partition, token in () if engine is None else engine.execute(_ROWS, values):
                    if any(spans_meet(each, (token - 1, token)) for each in spans):
                        self._is_at_home(image, node.node_id, partition, token, "is on its disk")

    def takes(self, node: NodeMachine, token: int, partitions: Sequence[str]) -> None:
        """A row has its place in the store's order, by whatever epoch its node knows."""
        assert node.image is not None
        image = self._world.witness.image
        if self._counts(node.image.state_id) and not _is_excused(image, node.node_id):
            for partition in partitions:
                what = f"is taken in at epoch {node.image.epoch}"
                self._is_at_home(image, node.node_id, partition, token, what)

    def _is_at_home(
        self, image: Image, node_id: str, partition: str, token: int, what: str
    ) -> None:
        data_id, shard = parted(partition)
        data = image.schema.of_data(data_id)
        if data is None or not data.placement.startswith(TABLET_MAP):
            return
        if _moves(image, data.placement, (token - 1, token)):
            return
        row = image.ring.placements[data.placement].row_for(token)
        self._world.demand(
            (node_id, shard) in places(row),
            CLEAN,
            f"shard {shard} of {node_id} has rows of its own tablets alone, as it is not to clean up",
            f"token {token} of {data.name} {what}, which is on {sorted(places(row))} by epoch {image.epoch}",
        )

    def deletes(self, node: NodeMachine, asked: Deleted) -> None:
        """A deletion has its place in the store's order."""
        known, durable = node.image, self._world.witness.image
        assert known is not None
        data_id, shard = parted(asked.keyspace)
        data = known.schema.of_data(data_id)
        if data is None or not data.placement.startswith(TABLET_MAP):
            return
        deleted, row = span(asked.start, asked.end), known.node(node.node_id)
        self._world.demand(
            _moves(known, data.placement, deleted) or (row is not None and row.cleanup_since > 0),
            OF_ITS_TIME,
            f"{node.node_id} deletes of {data.name} for an open transition of it, or as it is to clean up",
            f"there is none, and it is not, as it knows at epoch {known.epoch}",
        )
        placement = durable.ring.placements.get(data.placement)
        if placement is None or not self._counts(known.state_id):
            return
        own = rows_at(placement, node.node_id, shard, asked.start, asked.end)
        self._world.demand(
            not own,
            OF_ITS_TIME,
            f"{node.node_id} deletes nothing that epoch {durable.epoch} gives to its shard {shard}",
            f"it deletes ({asked.start}, {asked.end}] of {data.name}, of which {own[:1]} is its own",
        )

    def _counts(self, state_id: bytes) -> bool:
        """It is of the history that the topic holds, and nothing has happened to that for a while."""
        witness = self._world.witness
        return (
            self._world.rows.age == 0
            and witness.quiet()
            and (state_id == witness.head or state_id in witness.line(witness.head))
        )


def _is_excused(image: Image, node_id: str) -> bool:
    """Return whether a node cleans up later by itself, or serves no requests any more."""
    node = image.node(node_id)
    return node is None or bool(node.cleanup_since) or node.excluded or node.state is NodeState.LEFT


def _moves(image: Image, placement: str, one: Span) -> bool:
    """A transition of some tablet there is open."""
    return any(
        spans_meet(span(row.start, row.end), one)
        for transition in image.topology.transitions.values()
        if placement in transition.plans
        for row in transition.plans[placement].rows
    )
