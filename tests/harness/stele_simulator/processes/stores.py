"""Rows that whole nodes accept, keep, return and delete, observed where it happens (I3, I6, I14).

The witness observes production's methods for clients, peers and orders from outside. Replicas come from the
rows of the log's images, and their content from their disks. The witness uses none of production's rules on
stale versions, newer rows, quorums, or foreign ranges.
"""

import sqlite3 as real
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from stele.agent.judging import Code
from stele.agent.orders import OrderProgress
from stele.agent.pulling import Puller, Reading
from stele.agent.stores import Row as Moved
from stele.agent.stores import Span, parted
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.model.schema import CHANGE_LOG
from stele.domain.names import NodeState
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import RangeReplicas
from stele.node import store as node_store
from stele.node.cells import ROW, Cell, StoredCell
from stele.node.coordinate import (
    Consistency,
    Coordination,
    Found,
    PlaceOf,
    RequestRefused,
    WriteOf,
    Written,
)
from stele.node.replica import LocalReplica
from stele.node.store import Size, SqliteStore
from stele.node.streaming import Streamer
from stele.node.wire import Answer, AnyOp, Compare, Scan
from stele_simulator.kernel import us
from stele_simulator.patching import Patch
from stele_simulator.processes.changes import is_captured
from stele_simulator.processes.columns import REGISTERS
from stele_simulator.processes.embedded_store import Shelf
from stele_simulator.processes.members import FOLDER, NodeMachine
from stele_simulator.processes.request_holds import watch_holds
from stele_simulator.processes.sqlite import Connection, Database
from stele_simulator.ranges_in_use import row_of
from stele_simulator.tablet_checks import places, rows_at

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

FENCED: Final = "I6"
ON_DISK: Final = "I14"
REQUEST_S: Final = 5.0
"""Longest time that a node waits for replicas."""
FRESH: Final = "quorum requests are linearizable"
CLEAN: Final = "cleanup is complete"
OWN: Final = "nobody deletes what is its own"
NEWEST: Final = "the newest row stays"
LOGGED: Final = "D1"
_STANDING: Final = """
select timestamp, tombstone, value from cells where keyspace = ? and token = ? and key = ?"""
_LOGGED: Final = """
select 1 from cells where (keyspace = ? or keyspace like ?) and token = ?
and substr(key, 1, 8) = ? and substr(key, 17) = ?"""
_STORED: Final = "select distinct keyspace, token from cells"
_EVERYWHERE: Final = """
select max(timestamp) from cells where token = ? and key = ? and (keyspace = ? or keyspace like ?)"""

Key = tuple[str, bytes]
"""The id of the data, and the key."""
CellContent = tuple[int, int, bytes]
"""Timestamp, kind and value."""
Standing = CellContent | None


class Acknowledged(NamedTuple):
    """The newest timestamp of a key that a client of this age received."""

    age: int
    timestamp: int


class Least(NamedTuple):
    """A lower bound for a request: the data, the timestamp, and the beginning of the request."""

    data_id: str
    timestamp: int
    began_us: int


class StoreWitness:
    """Sees each operation of a replica, each answer to a client, and each deletion."""

    def __init__(self, world: "World") -> None:
        self.stale = 0
        """Requests of a version below the fence that were refused for it."""
        self._world = world
        self._acknowledged: dict[Key, Acknowledged] = {}
        self._wiped_us: dict[str, int] = {}
        """By node: the time at which its disk was thrown away."""
        self._copies: dict[str, tuple[bytes, real.Connection]] = {}
        """Opened disks of nodes that do not run."""

    def wiped(self, node_id: str) -> None:
        """Note that a node has lost its disk, with rows of requests that are not answered yet."""
        self._wiped_us[node_id] = self._world.kernel.now_us

    # -- replicas --

    def served(
        self, node_id: str, image: Image, ops: Sequence[AnyOp], answers: list[Answer]
    ) -> None:
        """I6: a request has no version that is fenced as far as the node knows, and excluded nodes neither
        serve nor are served.
        """
        for op, answer in zip(ops, answers, strict=True):
            if op.version < image.topology.fence_version:
                self.stale += not answer.done
            if not answer.done:
                continue
            for name in (node_id, op.coordinating):
                row = image.node(name)
                self._world.demand(
                    row is None or not (row.excluded_since or row.state is NodeState.LEFT),
                    FENCED,
                    f"{node_id} serves {op.coordinating} while neither is excluded or has left",
                    f"{name} is or has, as it knows at epoch {image.epoch}",
                )
            changed = self._changed_in(image, op)
            self._world.demand(
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

    def least(self, image: Image, name: str, key: bytes) -> Least:
        """When a request comes."""
        data = image.schema.serving(name)
        data_id = "" if data is None else data.data_id
        return Least(data_id, self.begins(data_id, key), self._world.kernel.now_us)

    def answered(self, image: Image, name: str, key: bytes, epoch: int, began_us: int) -> None:
        """Check an answer to a client, if its data counts."""
        data_id = self._data_id(image, name, epoch)
        self._world.truncations.answers(data_id, key, began_us)

    def begins(self, data_id: str, key: bytes) -> int:
        """Return the newest timestamp that any client received before; 0: none that counts."""
        known = self._acknowledged.get((data_id, key))
        return known.timestamp if known is not None and known.age == self.age() else 0

    def acknowledged(self, data_id: str) -> dict[bytes, int]:
        """Return the newest acknowledged timestamp of each key of this data."""
        keys = [key for its, key in self._acknowledged if its == data_id]
        return {key: found for key in keys if (found := self.begins(data_id, key))}

    def wrote(self, image: Image, name: str, key: bytes, epoch: int, timestamp: int) -> None:
        """A node says that a write is done."""
        self._holds(image, name, key, epoch, timestamp, "was acknowledged")
        if is_captured(self._world.witness.image_of_epoch(epoch), name):
            self._is_logged(image, name, key, epoch, timestamp)

    def read(
        self, image: Image, name: str, key: bytes, epoch: int, cell: Cell | None, least: Least
    ) -> None:
        """A node says what it read; ``least`` is what ``least`` gave when it was asked."""
        found, data_id = 0 if cell is None else cell.timestamp, self._data_id(image, name, epoch)
        # Else epochs were lost meanwhile, or it was truncated.
        if self.begins(data_id, key) and data_id == least.data_id:
            self._world.demand(
                found >= least.timestamp,
                FRESH,
                f"a read of {name}/{key.decode()} gives timestamp {least.timestamp}, which was told before it"
                " began, or a newer one",
                f"it gives {found}",
            )
        if cell is not None:
            self._holds(image, name, key, epoch, found, "was read")

    def _holds(
        self, image: Image, name: str, key: bytes, epoch: int, timestamp: int, what: str
    ) -> None:
        """I14: acknowledged data is on the disks of a quorum, so that later reads return it."""
        data_id, age = self._data_id(image, name, epoch), self.age()
        if not data_id or age < 0:
            return
        before = self.begins(data_id, key)
        self._acknowledged[data_id, key] = Acknowledged(age, max(before, timestamp))
        token = token_of(key)
        rows = [*self._rows(image, data_id, token, epoch)]
        there = {node.node_id: node for node in self._world.nodes}
        writes = {node_id for row in rows for node_id in row.writes}
        since_us = self._world.kernel.now_us - us(REQUEST_S)
        if any(n not in there or self._wiped_us.get(n, -1) >= since_us for n in writes):
            return  # its disk was thrown away meanwhile
        having = {
            node_id
            for node_id in writes
            if self.newest(there[node_id], data_id, token, key) >= timestamp
        }
        self._world.demand(
            any(_is_quorum(having, row) for row in rows),
            ON_DISK,
            f"timestamp {timestamp} of {name}/{key.decode()}, which {what}, or a newer one, is on the disks of"
            f" a quorum of {', '.join(rows[0].writes)}",
            f"{', '.join(sorted(having)) or 'nobody'} has it there",
        )

    def _is_logged(self, image: Image, name: str, key: bytes, epoch: int, timestamp: int) -> None:
        """D1: the change of an acknowledged write is on the disks of a quorum."""
        data_id, token = self._data_id(image, name, epoch), token_of(key)
        if not data_id or self.age() < 0:
            return
        rows = [*self._rows(image, data_id, token, epoch)]
        there = {node.node_id: node for node in self._world.nodes}
        if any(node_id not in there for row in rows for node_id in row.writes):
            return  # its disk was thrown away meanwhile
        values = f"{data_id}{CHANGE_LOG}", f"{data_id}{CHANGE_LOG}#%", token, _time(timestamp), key
        engines = {node_id: self.engine_of(node) for node_id, node in there.items()}
        having = {
            node_id
            for node_id, engine in engines.items()
            if engine is not None and engine.execute(_LOGGED, values).fetchone() is not None
        }
        self._world.demand(
            any(_is_quorum(having, row) for row in rows),
            LOGGED,
            f"the change of {name}/{key.decode()} at {timestamp}, which was acknowledged, is on the disks of"
            f" a quorum of {', '.join(rows[0].writes)}",
            f"{', '.join(sorted(having)) or 'nobody'} has it there",
        )

    def _rows(self, image: Image, data_id: str, token: int, epoch: int) -> Iterator[RangeReplicas]:
        """Return the rows of the present log, back to the one by which the request was routed."""
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

    def _data_id(self, image: Image, name: str, epoch: int) -> str:
        """Return the id of the data of a node's request, which was routed by this epoch of its image."""
        back = self._back_to(image, epoch) if image.epoch > epoch else ()
        routed = next((each for each in back if each.epoch == epoch), image)
        data = routed.schema.serving(name)
        return "" if data is None else data.data_id

    def age(self) -> int:
        """Below 0: epochs were lost, and who had what of rows cannot be said."""
        age = self._world.rows.age
        return age if age % 2 == 0 and self._world.witness.quiet() else -1

    def newest(self, node: NodeMachine, data_id: str, token: int, key: bytes) -> int:
        """The newest timestamp of a key that a power failure leaves, on whichever shard."""
        engine = self.engine_of(node)
        if engine is None:
            return 0
        values = (token, key, data_id, f"{data_id}#%")
        return int(engine.execute(_EVERYWHERE, values).fetchone()[0] or 0)

    def engine_of(self, node: NodeMachine) -> real.Connection | None:
        """Open a node's store as a power failure leaves it; None where there is none."""
        path = f"{FOLDER}/{node.store_file}"
        kept = node.disk.on_platter.get(path)
        if kept is None or not kept.synced:
            return None
        database = cast("Database | None", node.plug.databases.get(path))
        if node.alive and database is not None and database.is_saved_as(kept.synced):
            return database.engine
        return self._opened(node, kept.synced)

    def timestamps(self, node: NodeMachine) -> dict[tuple[str, str], int]:
        """Return the timestamps of all its rows by partition and key: those of its process, or those on the
        disk of a node that does not run.
        """
        path = f"{FOLDER}/{node.store_file}"
        database = cast("Database | None", node.plug.databases.get(path)) if node.alive else None
        engine = self.engine_of(node) if database is None else database.engine
        if engine is None:
            return {}
        # Keys of change logs are no texts.
        rows = (
            f"select keyspace, key, timestamp from cells where not instr(keyspace, '{CHANGE_LOG}')"
        )
        found = engine.execute(rows)
        return {(partition, bytes(key).decode()): at for partition, key, at in found}

    def forget_rows(self, node: NodeMachine) -> None:
        """Delete all rows of a running node, which continues without notice."""
        database = cast("Database", node.plug.databases[f"{FOLDER}/{node.store_file}"])
        assert database.engine.execute("delete from cells").rowcount > 0, "it has none"
        database.committed()

    def _opened(self, node: NodeMachine, content: bytes) -> real.Connection:
        before = self._copies.get(node.name)
        if before is None or before[0] is not content:
            engine = node.open_store(content)
            if before is not None:
                before[1].close()
            self._copies[node.name] = before = content, engine
        return before[1]

    # -- deletions --

    def check_clean(self, image: Image) -> None:
        """At rest: a member that the log calls clean holds nothing of ranges that are not its own."""
        members = image.membership.normal()
        for node in self._world.nodes:
            row, engine = members.get(node.node_id), self.engine_of(node)
            if row is None or row.cleanup_since or engine is None:
                continue
            stored = [(str(name), int(token)) for name, token in engine.execute(_STORED).fetchall()]
            foreign = [
                (name, token)
                for name, token in sorted(stored)
                if (node.node_id, parted(name)[1]) not in _places_of(image, name, token)
            ]
            self._world.demand(
                not foreign,
                CLEAN,
                f"{node.node_id} is clean, so it holds only what it owns",
                f"it holds {foreign[:3]} at epoch {image.epoch}",
            )

    def deletes(self, node: NodeMachine, image: Image, asked: Span) -> None:
        """Check that no row of the log assigns the deleted rows to that shard of the node."""
        self._world.tablet_rows.deletes(node, asked)
        data_id, shard = parted(asked.keyspace)
        data = image.schema.of_data(data_id)
        if data is None:
            return
        placement = image.ring.placements[data.placement]
        own = rows_at(placement, node.node_id, shard, asked.start, asked.end)
        self._world.demand(
            not own,
            OWN,
            f"{node.node_id} deletes nothing of what it is written to by epoch {image.epoch}, which it knows",
            f"it deletes ({asked.start}, {asked.end}] of {data.name}, of which {own[:1]} is its own",
        )

    # -- rows --

    def takes(self, node: NodeMachine, token: int, partitions: Sequence[str]) -> None:
        """A row has its place in the order of a node's store, in these partitions."""
        self._world.tablet_rows.takes(node, token, partitions)
        for data_id in {parted(partition)[0] for partition in partitions}:
            self._world.truncations.takes(node, data_id)

    def put(self, before: Standing, given: StoredCell, after: Standing) -> None:
        """Check that the newer of two rows is kept, or the newer value of each of their columns."""
        came = given.timestamp, int(given.kind), bytes(given.value)
        newest = came if before is None else max(before, came)
        if given.kind == ROW and before is not None and after is not None:
            lost = _lost_columns([before, came], after)
            self._world.demand(
                not lost,
                REGISTERS,
                f"of {given.key!r} stands the newer value of each column of {before} and {came}",
                f"{after} stands, without {lost}",
            )
            return
        self._world.demand(
            after == newest,
            NEWEST,
            f"of {given.key!r} stands {newest}, the newer of {before} and {came}",
            f"{after} stands",
        )


def _time(timestamp_us: int) -> bytes:
    return timestamp_us.to_bytes(8, "big")


def _lost_columns(given: list[CellContent], after: CellContent) -> list[Any]:
    """Return the columns that are older after a merge, or in none of the versions that were merged."""
    versions = [msgspec.msgpack.decode(value) for _, _, value in given]
    deleted_us = max(deleted for deleted, _ in versions)
    known = [each for _, columns in versions for each in columns]
    kept = {column_id: (at, value) for column_id, at, value in msgspec.msgpack.decode(after[2])[1]}
    older = [
        (column_id, at)
        for column_id, at, _ in known
        if at > deleted_us and kept.get(column_id, (0, b""))[0] < at
    ]
    return older + [each for each in kept.items() if [each[0], *each[1]] not in known]


def _places_of(image: Image, name: str, token: int) -> set[tuple[str, int]]:
    """Return the nodes and shards that have the key; none when its data is gone."""
    data = image.schema.of_data(parted(name)[0])
    if data is None:
        return set()
    return {*places(image.ring.placements[data.placement].row_for(token))}


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
    _watch_writes(patch, stores, who)
    _watch_rows(patch, stores)
    _watch_shelves(patch, stores, who)
    _watch_streams(patch, world, who)
    watch_holds(patch, world, who)


def _watch_replicas(patch: Patch, stores: StoreWitness) -> None:
    plain = LocalReplica.serve

    async def serve(self: LocalReplica, ops: Sequence[AnyOp]) -> list[Answer]:
        answers = await plain(self, ops)
        stores.served(self._node_id, self._follower.image, ops, answers)
        return answers

    patch.attribute(LocalReplica, "serve", serve)


def _watch_clients(patch: Patch, stores: StoreWitness) -> None:
    plain_write, plain_read = Coordination.write, Coordination.read

    async def write(
        self: Coordination,
        name: str,
        write: WriteOf,
        consistency: Consistency,
        at_least: int = 0,
    ) -> Written:
        image = self._follower.image
        try:
            key = write(image).place.key
        except RequestRefused:  # the node may know its columns once it has read the log
            return await plain_write(self, name, write, consistency, at_least)
        least = stores.least(image, name, key)
        done = await plain_write(self, name, write, consistency, at_least)
        image = self._follower.image
        stores.answered(image, name, key, done.epoch, least.began_us)
        stores.wrote(image, name, key, done.epoch, done.timestamp)
        return done

    async def read(
        self: Coordination,
        name: str,
        place: PlaceOf,
        consistency: Consistency,
        at_least: int = 0,
    ) -> Found:
        image = self._follower.image
        try:
            key = place(image).key
        except RequestRefused:
            return await plain_read(self, name, place, consistency, at_least)
        least = stores.least(image, name, key)
        found = await plain_read(self, name, place, consistency, at_least)
        image = self._follower.image
        stores.answered(image, name, key, found.epoch, least.began_us)
        stores.read(image, name, key, found.epoch, found.cell, least)
        return found

    patch.attribute(Coordination, "write", write)
    patch.attribute(Coordination, "read", read)


def _watch_deletions(patch: Patch, stores: StoreWitness, who: Callable[[], object]) -> None:
    plain = SqliteStore.delete

    async def delete(
        self: SqliteStore, span: Span, limit_rows: int, permit: Callable[[], bool] = lambda: True
    ) -> Size:
        def asked() -> bool:
            may, node = permit(), who()
            if may and isinstance(node, NodeMachine) and node.image is not None:
                stores.deletes(node, node.image, span)
            return may

        return await plain(self, span, limit_rows, asked)

    patch.attribute(SqliteStore, "delete", delete)


def _watch_writes(patch: Patch, stores: StoreWitness, who: Callable[[], object]) -> None:
    plain = SqliteStore.write

    async def write(
        self: SqliteStore,
        rows: Sequence[StoredCell],
        permit: Callable[[int], bool] = lambda _: True,
        into: Callable[[int], Sequence[str]] | None = None,
        captures: Callable[[int], Any] = lambda _: None,
    ) -> list[int | None]:
        def asked(place: int) -> bool:
            may, node = permit(place), who()
            if may and isinstance(node, NodeMachine) and node.image is not None:
                row = rows[place]
                stores.takes(node, row.token, (row.keyspace,) if into is None else into(place))
            return may

        return await plain(self, rows, asked, into, captures)

    patch.attribute(SqliteStore, "write", write)


def _watch_rows(patch: Patch, stores: StoreWitness) -> None:
    plain: Callable[[Any, StoredCell], int] = vars(node_store)["_write_cell"]

    def write_cell(writer: Any, row: StoredCell) -> int:
        where = row.keyspace, row.token, row.key
        engine = cast(Connection, writer).engine
        before: Standing = engine.execute(_STANDING, where).fetchone()
        found = plain(writer, row)
        stores.put(before, row, engine.execute(_STANDING, where).fetchone())
        return found

    patch.function(plain, write_cell)


def _watch_shelves(patch: Patch, stores: StoreWitness, who: Callable[[], object]) -> None:
    plain_merge, plain_delete = Shelf.merge, Shelf.delete

    def merge(self: Shelf, data_id: str, rows: Sequence[Moved]) -> None:
        node = who()
        if isinstance(node, NodeMachine) and node.image is not None:
            for row in rows:
                stores.takes(node, row.token, (data_id,))
        plain_merge(self, data_id, rows)

    def delete(self: Shelf, span: Span, limit: int) -> int:
        node = who()
        if isinstance(node, NodeMachine) and node.image is not None:
            stores.deletes(node, node.image, span)
        return plain_delete(self, span, limit)

    patch.attribute(Shelf, "merge", merge)
    patch.attribute(Shelf, "delete", delete)


def _watch_streams(patch: Patch, world: "World", who: Callable[[], object]) -> None:
    plain_run = Puller.run
    plain_keep: Callable[..., bool] = vars(Streamer)["_may_keep"]
    plain_give: Callable[..., Any] = vars(LocalReplica)["_in_session"]

    async def run(self: Puller, order: Order, progress: OrderProgress) -> None:
        await plain_run(self, order, progress)
        world.witness.log.streams.streamed(self._node_id, order.session)

    def may_keep(self: Streamer, reading: Reading, rows: Sequence[StoredCell], place: int) -> bool:
        keeps, node = plain_keep(self, reading, rows, place), who()
        if keeps and isinstance(node, NodeMachine) and node.image is not None:
            world.streams.keeps(node, reading.order.session)
        return keeps

    async def in_session(self: LocalReplica, asked: Scan | Compare, work: Any, refused: Any) -> Any:
        found, node = await plain_give(self, asked, work, refused), who()
        if found.code is Code.OK and isinstance(node, NodeMachine) and node.image is not None:
            world.streams.gives(node, asked.session)
        return found

    patch.attribute(Puller, "run", run)
    patch.attribute(Streamer, "_may_keep", may_keep)
    patch.attribute(LocalReplica, "_in_session", in_session)
