"""Truncated data is never served again, and no member has it once the request is done.

Separate clients write to it all the while. Data gets another id with each truncation. The id of an answer's
data is observed at the nodes, by the image by which the request was routed.
"""

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from stele.domain.image import Image
from stele.domain.model.membership import Node
from stele.domain.model.schema import owner_of
from stele.domain.model.transitions import Transition
from stele.domain.names import NodeState, RequestKind
from stele_simulator.processes.data import (
    KEYSPACE_TRUNCATED,
    OK,
    TABLE_TRUNCATED,
    THINK_S,
    DataClient,
)
from stele_simulator.processes.members import NodeMachine

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

ANSWERS: Final = "truncated data never answers"
GONE: Final = "truncated data is gone from every member"
READ: Final = "truncated data is never read"
NAMES: Final = (TABLE_TRUNCATED, TABLE_TRUNCATED, KEYSPACE_TRUNCATED)
KEYS: Final = 4
_COUNT: Final = "select count(*) from cells where keyspace = ? or keyspace like ?"

Key = tuple[str, bytes]
"""The id of the data, and the key."""


class Since(NamedTuple):
    """The state of the log that gave data its id, and its epoch."""

    state_id: bytes
    epoch: int


class Truncation(NamedTuple):
    """Begin and end of a truncation, and the state of the log at its end."""

    opened_us: int
    done_us: int
    state_id: bytes


def _is_there(row: Node) -> bool:
    return not row.excluded and row.state is not NodeState.LEFT


def _cleans_up_later(row: Node) -> bool:
    """Its join was undone together with another, and it waits to join again: it has what was written to it
    until then, is no member that is ordered to truncate, and is marked, to delete it once it is one.
    """
    return row.state is NodeState.NONE and row.cleanup_since > 0


class TruncationWitness:
    """Ids of data in the order of the log, and the time when each id first answered for a key."""

    def __init__(self, world: "World") -> None:
        self.done = 0
        self._world = world
        self._ids: dict[str, dict[str, Since]] = defaultdict(dict)
        """By keyspace or table."""
        self._answered: dict[Key, int] = {}
        """When a request for a key was first answered by data of this id."""
        self._done_us: dict[str, Truncation] = {}
        """By the id that the data had before."""
        self._written_us: dict[bytes, int] = {}
        """When the write of a value was acknowledged."""
        self._opened_us: dict[str, int] = {}
        self._done: dict[str, list[Truncation]] = defaultdict(list)

    # -- the log --

    def changed(self, before: Image, after: Image) -> None:
        """One more epoch."""
        if after.schema is not before.schema:
            for data in after.schema.all_data():
                since = Since(after.state_id, after.epoch)
                self._ids[owner_of(data.data_id)].setdefault(data.data_id, since)
        if after.membership is not before.membership:
            self._cleaned(before, after)
        one, two = before.topology.transitions, after.topology.transitions
        if one is two:
            return
        for transition in after.topology.open():
            if transition.kind is RequestKind.TRUNCATE:
                opened_us = self._world.kernel.now_us
                self._opened_us.setdefault(transition.transition_id, opened_us)
        for transition in before.topology.open():
            if transition.kind is RequestKind.TRUNCATE and transition.transition_id not in two:
                self._ended(after, transition)

    def _ended(self, after: Image, transition: Transition) -> None:
        owner, now_us = transition.table_id or transition.keyspace_id, self._world.kernel.now_us
        ended = Truncation(self._opened_us[transition.transition_id], now_us, after.state_id)
        self.done += 1
        self._done[owner].append(ended)
        old = [name for name in self._ids_of(owner) if after.schema.of_data(name) is None]
        for data_id in old:
            self._done_us.setdefault(data_id, ended)
        for node in self._world.nodes:
            row = after.node(node.node_id)
            if row is not None and _is_there(row) and not _cleans_up_later(row):
                self._has_nothing_of(old, node, after.epoch)

    def _cleaned(self, before: Image, after: Image) -> None:
        """Check that a node that has cleaned up has no data truncated while it was no member."""
        for node in self._world.nodes:
            was, row = before.node(node.node_id), after.node(node.node_id)
            if was is None or row is None or not was.cleanup_since or row.cleanup_since:
                continue
            if _is_there(row):
                done = (name for name, ended in self._done_us.items() if self._holds(ended))
                old = [name for name in done if after.schema.of_data(name) is None]
                self._has_nothing_of(old, node, after.epoch)

    def _has_nothing_of(self, old: list[str], node: NodeMachine, epoch: int) -> None:
        engine = self._world.stores.engine_of(node)
        for data_id in old:
            found = engine and engine.execute(_COUNT, (data_id, f"{data_id}#%")).fetchone()
            left = found[0] if found else 0
            self._world.demand(
                not left,
                GONE,
                f"{node.node_id} has nothing of {data_id} on its disk once that was truncated",
                f"it has {left} rows at epoch {epoch}",
            )

    def _ids_of(self, owner: str) -> list[str]:
        """In the history that the topic holds now, the oldest first."""
        witness = self._world.witness
        line = witness.line(witness.head)
        return [name for name, since in self._ids[owner].items() if since.state_id in line]

    # -- nodes --

    def takes(self, node: NodeMachine, data_id: str) -> None:
        """A row has its place in a node's store: it is of no data that the node knows to be truncated."""
        known = node.image
        assert known is not None
        ids = self._ids[owner_of(data_id)]
        if len(ids) == 1 or data_id not in ids:
            return
        names = self._ids_of(owner_of(data_id))
        newer = names[names.index(data_id) + 1 :] if data_id in names else []
        line = self._world.witness.line(self._world.witness.head)
        if known.state_id in line:
            self._world.demand(
                not any(ids[name].epoch <= known.epoch for name in newer),
                GONE,
                f"{node.node_id} takes in nothing of {data_id} once it knows that it was truncated",
                f"it took some in at epoch {known.epoch}, and the newest is {newer[-1:]}",
            )

    def answers(self, data_id: str, key: bytes, began_us: int) -> None:
        """Check that from one instant on no answer for a key is of older data."""
        if self._world.stores.age() < 0:
            return
        names = self._ids_of(owner_of(data_id))
        if data_id not in names:
            return
        for newer in names[names.index(data_id) + 1 :]:
            since_us = self._answered.get((newer, key))
            self._world.demand(
                since_us is None or began_us < since_us,
                ANSWERS,
                f"{key.decode()} is answered by {newer}, as it was before this request began",
                f"it is answered by {data_id}, which was truncated",
            )
        done = self._done_us.get(data_id)
        self._world.demand(
            done is None or not self._holds(done) or began_us < done.done_us,
            ANSWERS,
            f"a request for {key.decode()} that begins after a truncation is not answered by {data_id}",
            "it is",
        )
        self._answered.setdefault((data_id, key), self._world.kernel.now_us)

    # -- clients --

    def written(self, value: bytes) -> None:
        self._written_us.setdefault(value, self._world.kernel.now_us)

    def read(self, name: str, value: bytes, began_us: int) -> None:
        """Whatever ids data has: what was there when a truncation began is not there once it is done."""
        data = self._world.witness.image.schema.serving(name)
        written_us = self._written_us.get(value)
        if data is None or written_us is None or self._world.stores.age() < 0:
            return
        for each in self._done[owner_of(data.data_id)]:
            self._world.demand(
                written_us >= each.opened_us or began_us < each.done_us or not self._holds(each),
                READ,
                f"'{value.decode()}' of {name}, written at {written_us / 1e6:.3f} s, was truncated from"
                f" {each.opened_us / 1e6:.3f} to {each.done_us / 1e6:.3f} s",
                f"it is read by a request that began at {began_us / 1e6:.3f} s",
            )

    def _holds(self, truncation: Truncation) -> bool:
        """It was not lost."""
        witness = self._world.witness
        return truncation.state_id in witness.line(witness.head)


class TruncatedClient(DataClient):
    """Writes to truncated data and reads it. Answers are checked by the ids of the data."""

    async def _work(self) -> None:
        while self.world.callers_work:
            await self.sleep(2 * THINK_S * self.chance.random())
            await self.ask(self.chance.choice(NAMES))

    async def ask(self, name: str) -> None:
        key, node = f"{name}/key{self.chance.randrange(KEYS)}", self.chance.choice(self.world.nodes)
        began_us, witness = self.world.kernel.now_us, self.world.truncations
        if self.chance.random() < 0.5:
            self._written += 1
            value = f"{self.name}:{self._written}".encode()
            status, _ = await self._call(node.name, key, value)
            if status == OK:
                witness.written(value)
        else:
            status, content = await self._call(node.name, key, None)
            if status == OK:
                witness.read(name, content, began_us)
