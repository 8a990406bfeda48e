"""What whole nodes take, keep, give and delete of rows, seen where it happens (I3, I6, I14).

The methods of production that clients, peers and orders come to are watched from outside. Which replicas there
are is read off the rows of the log's images, what they have off their disks. None of production's rules is
asked: not which version is too old, which row wins, what a quorum is, or what is foreign to a node.
"""

import sqlite3 as real
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from stele.agent.partitions import parted
from stele.agent.spans import Span
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import RangeReplicas
from stele.node import store as node_store
from stele.node.cells import Cell, Row
from stele.node.coordinate import Coordination, Found, Written
from stele.node.replica import Replica
from stele.node.store import Size, Store
from stele.node.votes import Consistency
from stele.node.wire import Answer, AnyOp
from stele.sim.patching import Patch
from stele.sim.processes.members import FOLDER, NodeMachine
from stele.sim.processes.sqlite import Connection, Database
from stele.sim.ranges_in_use import row_of
from stele.sim.tablet_checks import places, span, spans_meet

if TYPE_CHECKING:
    from stele.sim.processes.world import World

FENCED: Final = "I6"
ON_DISK: Final = "I14"
FRESH: Final = "quorum requests are linearizable"
OWN: Final = "nobody deletes what is its own"
NEWEST: Final = "the newest row stays"
_STANDING: Final = """
select timestamp, tombstone, value from cells where keyspace = ? and token = ? and key = ?"""
_EVERYWHERE: Final = """
select max(timestamp) from cells where token = ? and key = ? and (keyspace = ? or keyspace like ?)"""

Key = tuple[str, bytes]
"""The id of the data, and the key."""
Standing = tuple[int, int, bytes] | None


class Acknowledged(NamedTuple):
    """The newest timestamp of a key that a client of this age was told."""

    age: int
    timestamp: int


class StoreWitness:
    """Sees each operation of a replica, each answer to a client, and each deletion."""

    def __init__(self, world: "World") -> None:
        self.checks = 0
        self.stale = 0
        """Requests of a version below the fence that were refused for it."""
        self._world = world
        self._acknowledged: dict[Key, Acknowledged] = {}
        self._copies: dict[str, tuple[bytes, real.Connection]] = {}
        """What is on the platter of nodes that do not run, opened."""

    # -- replicas --

    def served(
        self, node_id: str, image: Image, ops: Sequence[AnyOp], answers: list[Answer]
    ) -> None:
        """I6: what is done is of no version that a fence shuts out which the node knows, and nobody serves who
        is excluded, nor is served.
        """
        for op, answer in zip(ops, answers, strict=True):
            if op.version < image.topology.fence_version:
                self.stale += not answer.done
            if not answer.done:
                continue
            self.checks += 1
            for name in (node_id, op.coordinating):
                row = image.node(name)
                self._demand(
                    row is None or not (row.excluded_since or row.state is NodeState.LEFT),
                    FENCED,
                    f"{node_id} serves {op.coordinating} while neither is excluded or has left",
                    f"{name} is or has, as it knows at epoch {image.epoch}",
                )
            changed = self._changed_in(image, op)
            self._demand(
                changed == 0,
                FENCED,
                f"{node_id}, whose fence is {image.topology.fence_version}, serves nothing of {op.data_id}"
                f" by a row older than version {changed}",
                f"it served {op} at epoch {image.epoch}",
            )

    def _changed_in(self, image: Image, op: AnyOp) -> int:
        """A fenced version after the request's that gave its row other replicas; 0: none."""
        fence = image.topology.fence_version
        if op.version >= fence:
            return 0
        after = image
        for before in self._backwards(image):
            version = after.topology.version
            if version <= op.version:
                return 0
            one, two = (row_of(each, op.data_id, op.token) for each in (before, after))
            if version <= fence and one is not None and one != two:
                return version
            after = before
        return 0

    def _backwards(self, image: Image) -> Iterator[Image]:
        """The images before this one, the newest first."""
        witness, state_id = self._world.witness, image.state_id
        while (known := witness.records.get(state_id)) is not None:
            state_id = known.previous
            found = witness.image_at(state_id)
            if found is None:
                return
            yield found

    # -- clients --

    def begins(self, data_id: str, key: bytes) -> int:
        """The newest timestamp that anybody was told before; 0: none that counts."""
        known = self._acknowledged.get((data_id, key))
        return known.timestamp if known is not None and known.age == self.age() else 0

    def acknowledged(self, data_id: str) -> dict[bytes, int]:
        """The newest timestamp that anybody was told of each key of this data."""
        keys = [key for its, key in self._acknowledged if its == data_id]
        return {key: found for key in keys if (found := self.begins(data_id, key))}

    def wrote(self, image: Image, name: str, key: bytes, epoch: int, timestamp: int) -> None:
        """A node says that a write is done."""
        self._holds(image, name, key, epoch, timestamp, "was acknowledged")

    def read(
        self, image: Image, name: str, key: bytes, epoch: int, cell: Cell | None, least: int
    ) -> None:
        """A node says what it read; ``least`` is what ``begins`` gave when it was asked."""
        found = 0 if cell is None else cell.timestamp
        if self.begins(self._data_id(image, name), key):  # else epochs were lost meanwhile
            self.checks += 1
            self._demand(
                found >= least,
                FRESH,
                f"a read of {name}/{key.decode()} gives timestamp {least}, which was acknowledged before it"
                " began, or a newer one",
                f"it gives {found}",
            )
        if cell is not None:
            self._holds(image, name, key, epoch, found, "was read")

    def _holds(
        self, image: Image, name: str, key: bytes, epoch: int, timestamp: int, what: str
    ) -> None:
        """I14: what a client is told is on the platters of a quorum, so that nobody is told less later."""
        data_id, age = self._data_id(image, name), self.age()
        if not data_id or age < 0:
            return
        before = self.begins(data_id, key)
        self._acknowledged[data_id, key] = Acknowledged(age, max(before, timestamp))
        token = token_of(key)
        rows = [*self._rows(image, data_id, token, epoch)]
        there = {node.node_id: node for node in self._world.nodes}
        if any(node_id not in there for row in rows for node_id in row.writes):
            return  # its disk was thrown away meanwhile
        having = {
            node_id
            for node_id in {node_id for row in rows for node_id in row.writes}
            if self.newest(there[node_id], data_id, token, key) >= timestamp
        }
        self.checks += 1
        self._demand(
            any(_is_quorum(having, row) for row in rows),
            ON_DISK,
            f"timestamp {timestamp} of {name}/{key.decode()}, which {what}, or a newer one, is on the disks of"
            f" a quorum of {', '.join(rows[0].writes)}",
            f"{', '.join(sorted(having)) or 'nobody'} has it there",
        )

    def _rows(self, image: Image, data_id: str, token: int, epoch: int) -> Iterator[RangeReplicas]:
        """Those of the log of now, and all back to the one by which the request was routed."""
        newest = self._world.witness.image
        for each in (newest, *self._back_to(newest, epoch), image):
            data = each.schema.of_data(data_id)
            if data is not None:
                yield each.ring.placements[data.placement].row_for(token)

    def _back_to(self, image: Image, epoch: int) -> Iterator[Image]:
        for before in self._backwards(image):
            if before.epoch < epoch:
                return
            yield before

    def _data_id(self, image: Image, name: str) -> str:
        data = image.schema.serving(name)
        return "" if data is None else data.data_id

    def age(self) -> int:
        """Below 0: epochs were lost, and who had what of rows cannot be said."""
        age = self._world.rows.age
        return age if age % 2 == 0 and self._world.witness.quiet() else -1

    def newest(self, node: NodeMachine, data_id: str, token: int, key: bytes) -> int:
        """The newest timestamp of a key that a power failure leaves, on whichever shard."""
        path = f"{FOLDER}/{node.store_file}"
        kept = node.disk.on_platter.get(path)
        if kept is None or not kept.synced:
            return 0
        database = cast("Database | None", node.plug.databases.get(path))
        if node.alive and database is not None and database.is_saved_as(kept.synced):
            engine = database.engine
        else:
            engine = self._opened(node.name, kept.synced)
        values = (token, key, data_id, f"{data_id}#%")
        return int(engine.execute(_EVERYWHERE, values).fetchone()[0] or 0)

    def _opened(self, name: str, content: bytes) -> real.Connection:
        before = self._copies.get(name)
        if before is None or before[0] is not content:
            engine = real.connect(":memory:")
            engine.deserialize(content)
            if before is not None:
                before[1].close()
            self._copies[name] = before = content, engine
        return before[1]

    # -- deletions --

    def deletes(self, node: NodeMachine, image: Image, asked: Span) -> None:
        """What a node deletes no row of the log gives to that shard of it."""
        data_id, shard = parted(asked.keyspace)
        data = image.schema.of_data(data_id)
        if data is None:
            return
        own = [
            row
            for row in image.ring.placements[data.placement].rows
            if (node.node_id, shard) in places(row)
            and spans_meet(span(row.start, row.end), span(asked.start, asked.end))
        ]
        self.checks += 1
        self._demand(
            not own,
            OWN,
            f"{node.node_id} deletes nothing of what it is written to by epoch {image.epoch}, which it knows",
            f"it deletes ({asked.start}, {asked.end}] of {data.name}, of which {own[:1]} is its own",
        )

    # -- rows --

    def put(self, before: Standing, given: Row, after: Standing) -> None:
        """Of the row that stood and the one that came the newer one stands."""
        came = given.timestamp, int(given.tombstone), bytes(given.value)
        newest = came if before is None else max(before, came)
        self.checks += 1
        self._demand(
            after == newest,
            NEWEST,
            f"of {given.key.decode()} stands {newest}, the newer of {before} and {came}",
            f"{after} stands",
        )

    def _demand(self, holds: bool, invariant: str, expected: str, found: str) -> None:
        self._world.demand(holds, invariant, expected, found)


def _is_quorum(having: set[str], row: RangeReplicas) -> bool:
    """More than half of those who are read from, and of those on the other side of a move."""
    sides = (row.reads, row.other) if row.other else (row.reads,)
    return all(2 * len(having & {*side}) > len(side) for side in sides)


def watch(patch: Patch, world: "World", who: Callable[[], object]) -> None:
    """For as long as the patch lasts; ``who`` is the machine that runs."""
    stores = world.stores
    _watch_replicas(patch, stores)
    _watch_clients(patch, stores)
    _watch_deletions(patch, stores, who)
    _watch_rows(patch, stores)


def _watch_replicas(patch: Patch, stores: StoreWitness) -> None:
    plain = Replica.serve

    async def serve(self: Replica, ops: Sequence[AnyOp]) -> list[Answer]:
        answers = await plain(self, ops)
        stores.served(self._node_id, self._follower.image, ops, answers)
        return answers

    patch.attribute(Replica, "serve", serve)


def _watch_clients(patch: Patch, stores: StoreWitness) -> None:
    plain_write, plain_read = Coordination.write, Coordination.read

    async def write(
        self: Coordination, keyspace: str, key: bytes, value: bytes | None, consistency: Consistency
    ) -> Written:
        done = await plain_write(self, keyspace, key, value, consistency)
        image = self._follower.image
        stores.wrote(image, keyspace, key, done.epoch, done.timestamp)
        return done

    async def read(
        self: Coordination, keyspace: str, key: bytes, consistency: Consistency
    ) -> Found:
        data = self._follower.image.schema.serving(keyspace)
        least = 0 if data is None else stores.begins(data.data_id, key)
        found = await plain_read(self, keyspace, key, consistency)
        image = self._follower.image
        stores.read(image, keyspace, key, found.epoch, found.cell, least)
        return found

    patch.attribute(Coordination, "write", write)
    patch.attribute(Coordination, "read", read)


def _watch_deletions(patch: Patch, stores: StoreWitness, who: Callable[[], object]) -> None:
    plain = Store.delete

    async def delete(
        self: Store, span: Span, limit_rows: int, permit: Callable[[], bool] = lambda: True
    ) -> Size:
        def asked() -> bool:
            may, node = permit(), who()
            if may and isinstance(node, NodeMachine) and node.image is not None:
                stores.deletes(node, node.image, span)
            return may

        return await plain(self, span, limit_rows, asked)

    patch.attribute(Store, "delete", delete)


def _watch_rows(patch: Patch, stores: StoreWitness) -> None:
    plain: Callable[[Any, Row], int] = vars(node_store)["_write_cell"]

    def write_cell(writer: Any, row: Row) -> int:
        where = row.keyspace, row.token, row.key
        engine = cast(Connection, writer).engine
        before: Standing = engine.execute(_STANDING, where).fetchone()
        found = plain(writer, row)
        stores.put(before, row, engine.execute(_STANDING, where).fetchone())
        return found

    patch.function(plain, write_cell)
