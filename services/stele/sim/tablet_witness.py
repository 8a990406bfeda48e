"""What nodes hold of tablets: nothing is left where no replica is, and nobody works for what is over.

INV-TABL-1: when a tablet is not in transition, a shard that has no replica of it has none of its rows, unless
the node is marked to clean up. INV-TABL-2: what was ordered for one transition has no effect in a later one.
"""

from collections.abc import Callable, Mapping

from stele.agent.partitions import parted
from stele.domain.image import Image
from stele.domain.membership.facts import Node
from stele.domain.messages import Order
from stele.domain.names import NodeState
from stele.domain.ring.ranges import RangeReplicas
from stele.sim.messages import Cell, Key, token_of_key
from stele.sim.tablet_checks import Span, places, span, spans_meet
from stele.sim.violation import require

Cells = Mapping[Key, Cell]


class TabletWitness:
    """Looks at storages when a transition of tablets ends, and whenever a node stores or deletes something."""

    def __init__(
        self,
        is_gone: Callable[[str], bool],
        durable: Callable[[], Image],
    ) -> None:
        self.checks = 0
        self.disks: dict[str, Callable[[], Cells]] = {}
        """What nodes have on their disks, by partition of the store."""
        self._is_gone = is_gone
        self._durable = durable

    def topology_changed(self, before: Image, after: Image) -> None:
        """INV-TABL-1 for the tablets whose transitions ended."""
        for name, transition in before.topology.transitions.items():
            if name in after.topology.transitions:
                continue
            for placement, plan in transition.plans.items():
                spans = [span(row.start, row.end) for row in plan.rows]
                touched = {n for row in plan.rows for n in (*row.old, *row.new)}
                for node_id in sorted(touched):
                    self._check_node(after, placement, spans, node_id)

    def _check_node(self, image: Image, placement: str, spans: list[Span], node_id: str) -> None:
        for key in sorted(self.disks[node_id]()):
            if any(_holds(one, key) for one in spans) and _map_of(image, key) == placement:
                self._check_key(image, node_id, key, "its transition has ended")

    def stores(self, node_id: str, image: Image, key: Key) -> None:
        """INV-TABL-1: a node takes in a row only of tablets that it has a replica of, or is about to have.

        ``image`` is what the node knows. Late ones have not deleted yet what the log says is over.
        """
        if _map_of(image, key):
            self._check_key(self._durable(), node_id, key, f"taken in at epoch {image.epoch}")

    def _check_key(self, image: Image, node_id: str, key: Key, when: str) -> None:
        self.checks += 1
        node = image.node(node_id)
        placement = _map_of(image, key)
        excused = node is None or _is_excused(node) or self._is_gone(node_id)
        if excused or not placement or _moves(image, placement, key):
            return
        row = image.ring.placements[placement].row_for(token_of_key(key))
        require(
            parted(key[0])[1] in _shards(row, node_id),
            "INV-TABL-1",
            f"{node_id} is clean, so its shards have rows of their own tablets alone ({when})",
            f"it has {key}, of {places(row)}, at epoch {image.epoch}",
        )

    def deletes(self, node_id: str, image: Image, order: Order, key: Key) -> None:
        """INV-TABL-2: under an open session, of its tablets alone; and never what the node is to have."""
        placement = _map_of(image, key)
        if not placement:
            return
        self.checks += 1
        node, transition = image.node(node_id), image.topology.of_session(order.session)
        marked = node is not None and node.cleanup_session() == order.session
        require(
            transition is not None or marked,
            "INV-TABL-2",
            f"{node_id} deletes for a transition that is open",
            f"{order.session} was over when it deleted {key}",
        )
        row = image.ring.placements[placement].row_for(token_of_key(key))
        require(
            parted(key[0])[1] not in _shards(row, node_id),
            "INV-TABL-2",
            f"{node_id} deletes of tablets that are not its own, or not of that shard",
            f"it deleted {key} of {places(row)} at epoch {image.epoch}",
        )


def _shards(row: RangeReplicas, node_id: str) -> set[int]:
    return {shard for node, shard in places(row) if node == node_id}


def _is_excused(node: Node) -> bool:
    """It is to clean up by itself, or serves nobody any more."""
    return bool(node.cleanup_since) or node.excluded or node.state is NodeState.LEFT


def _map_of(image: Image, key: Key) -> str:
    """The tablet map that the key's data is placed by; empty for what has none, or is gone."""
    tables, (data_id, _) = image.schema.tables.values(), parted(key[0])
    found = [t.placement for t in tables if t.data_id == data_id and t.placement]
    return found[0] if found else ""


def _moves(image: Image, placement: str, key: Key) -> bool:
    plans = [t.plans[placement] for t in image.topology.open() if placement in t.plans]
    return any(_holds(span(row.start, row.end), key) for plan in plans for row in plan.rows)


def _holds(one: Span, key: Key) -> bool:
    token = token_of_key(key)
    return spans_meet(one, (token - 1, token))
