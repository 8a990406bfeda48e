"""What was truncated never answers again, and is gone from every member once the request is done."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from stele.domain.image import Image
from stele.domain.names import NodeState, RequestKind
from stele.domain.schema.facts import owner_of
from stele.sim.messages import Cell, Key
from stele.sim.violation import require

Cells = Mapping[Key, Cell]


class TruncationWitness:
    """The ids that data of keyspaces and tables had, and when data of which id first answered for a key."""

    def __init__(
        self, stores: Mapping[str, Callable[[], Cells]], is_gone: Callable[[str], bool]
    ) -> None:
        self.checks = 0
        self._stores = stores
        self._is_gone = is_gone
        self._ids: dict[str, list[str]] = defaultdict(list)
        """By keyspace or table, the oldest first."""
        self._since: dict[str, int] = {}
        """The epoch that gave data this id."""
        self._answered: dict[Key, float] = {}
        """When a request for a key was first answered by data of this id."""
        self._done_at: dict[str, float] = {}
        """When the request was done that truncated data of this id."""
        self._acknowledged: dict[str, float] = {}
        """When the write of a value was."""
        self._opened: dict[str, float] = {}
        self._truncated: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """By keyspace or table: when truncations began, and were done."""

    def schema_changed(self, after: Image) -> None:
        for data in after.schema.all_data():
            ids = self._ids[owner_of(data.data_id)]
            if data.data_id not in ids:
                ids.append(data.data_id)
                self._since[data.data_id] = after.epoch

    def answers(self, data_id: str, key: str, began_s: float, now_s: float) -> None:
        """There is one moment of each key from which on nobody is answered by what was there before."""
        self.checks += 1
        ids = self._ids[owner_of(data_id)]
        for newer in ids[ids.index(data_id) + 1 :]:
            since_s = self._answered.get((newer, key), float("inf"))
            require(
                began_s < min(since_s, self._done_at.get(data_id, float("inf"))),
                "truncated data never answers",
                f"{key} was answered by {newer} at {since_s:.3f} s, or {data_id} was truncated",
                f"a request that began at {began_s:.3f} s was answered by {data_id}",
            )
        self._answered.setdefault((data_id, key), now_s)

    def acknowledges(self, value: str, now_s: float) -> None:
        self._acknowledged.setdefault(value, now_s)

    def keeps(self, node_id: str, image: Image, key: Key) -> None:
        """Nothing is kept of data that the node knows to be truncated."""
        self.checks += 1
        ids = self._ids[owner_of(key[0])]
        newer = [i for i in ids[ids.index(key[0]) + 1 :] if self._since[i] <= image.epoch]
        require(
            not newer,
            "truncated data is gone from every member",
            f"{node_id} takes in no data of {key[0]} once it knows of {newer}",
            f"it took {key} at epoch {image.epoch}",
        )

    def reads(self, data_id: str, value: str, began_s: float) -> None:
        """Whatever ids data has: what was there when a truncation began is not there once it is done."""
        written_s = self._acknowledged.get(value)
        for opened_s, done_s in self._truncated[owner_of(data_id)]:
            require(
                written_s is None or written_s >= opened_s or began_s < done_s,
                "truncated data is never read",
                f"'{value}', written by {written_s} s, was truncated from {opened_s:.3f} to {done_s:.3f} s",
                f"it was read by a request that began at {began_s:.3f} s",
            )

    def topology_changed(self, before: Image, after: Image, now_s: float) -> None:
        """The truncations that this epoch began and ended."""
        for name, transition in after.topology.transitions.items():
            if transition.kind is RequestKind.TRUNCATE:
                self._opened.setdefault(name, now_s)
        for name, transition in before.topology.transitions.items():
            if transition.kind is not RequestKind.TRUNCATE or name in after.topology.transitions:
                continue
            truncated = transition.table_id or transition.keyspace_id
            self._truncated[truncated].append((self._opened[name], now_s))
            old = self._ids[truncated][:-1]
            self._done_at.update(
                (data_id, now_s) for data_id in old if data_id not in self._done_at
            )
            self._check_gone(after, old)

    def _check_gone(self, image: Image, old: Iterable[str]) -> None:
        members = image.membership.nodes.values()
        for node in members:
            if node.excluded or node.state is NodeState.LEFT or self._is_gone(node.node_id):
                continue
            self.checks += 1
            left = [key for key in self._stores[node.node_id]() if key[0] in old]
            require(
                not left,
                "truncated data is gone from every member",
                f"{node.node_id} has deleted it, or is excluded, when the request is done",
                f"it holds {sorted(left)[:3]}",
            )
