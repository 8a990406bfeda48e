"""A data node: replica, coordinator of clients' requests, and a member that acknowledges what it applied.

The rules are the production ones: routing by the image's placement, the fence of each range, versions that
requests hold until they end or are promoted, quorums. The storage is a dictionary; a write is durable once
its short flush is over.
"""

from collections.abc import Callable
from typing import Final

from stele.agent.partitions import parted, write_partitions
from stele.domain.commands import Envelope, Join, Replace
from stele.domain.facts import Epoch
from stele.domain.fencing import VersionTracker, check_token, takes_part
from stele.domain.messages import Ack
from stele.domain.requests.ids import named
from stele.domain.ring.quorum import read_satisfied, write_satisfied
from stele.domain.ring.ranges import Range, RangeReplicas, contains
from stele.domain.sessions import SessionManager
from stele.sim.kernel import Future
from stele.sim.messages import Cell, Key, ReadCell, ReadResult, WriteCell, token_of_key
from stele.sim.node_work import OrderWorker
from stele.sim.process import Follower, Reply
from stele.sim.writer import Caller

HEARTBEAT_S: Final = 0.5
REPLICA_TIMEOUT_S: Final = 1.5
FLUSH_S: Final = 0.004
EPOCH_WAIT_S: Final = 1.0
"""A replica that is asked by a newer image reads the log for so long before it refuses."""
SNAPSHOT_EVERY: Final = 25
"""Epochs between the node's own snapshots."""


class Node(OrderWorker, Caller, Follower):
    """One data node, by the name that is its node id."""

    join_command: Join | Replace | None = None

    def start(self) -> None:
        self.disk.setdefault("cells", {})
        self.disk["boot"] = self.disk.get("boot", 0) + 1
        self.sessions = SessionManager()
        self.versions = VersionTracker()
        self.serving = False
        self._sequence = 0
        self._flushing: list[WriteCell] = []
        self.forget_orders()
        self.follow_log()
        self.sessions.follow(self.image.topology)
        self.versions.follow(self.image)
        self.spawn(self._enter_service())
        self._heartbeat()

    @property
    def cells(self) -> dict[Key, Cell]:
        cells: dict[Key, Cell] = self.disk["cells"]
        return cells

    def partitions_of(self, key: Key) -> list[Key]:
        """Where it is on the disk, as ``stele.node`` has it: where it is read from first."""
        found = write_partitions(self.image, self.name, key[0], token_of_key(key))
        return [(partition, key[1]) for partition in found]

    def read_cells(self) -> dict[Key, Cell]:
        """All that its reads would find, and what nobody reads any more, by the data's id."""
        own = self.image.node(self.name)
        if own is None or own.shards == 1:
            return self.cells
        found = dict[Key, Cell]()
        for place, cell in self.cells.items():
            key = parted(place[0])[0], place[1]
            if self.image.schema.of_data(key[0]) is None or self.partitions_of(key)[0] == place:
                found[key] = cell
        return found

    def on_epoch(self, epoch: Epoch | None) -> None:
        self.sessions.follow(self.image.topology)
        self.versions.follow(self.image)
        self.delete_backups()
        self.world.witness.nodes.uses(self)
        if self.image.epoch % SNAPSHOT_EVERY == 0:
            self.save_snapshot()
        self.wake_orders()

    def oldest_version(self) -> int:
        return self.versions.oldest_in_use(self.image.topology.version)

    @property
    def coordinates(self) -> bool:
        """Serves clients: as far as it knows it is one of those whom every barrier waits for."""
        return self.serving and self.name in self.image.membership.taking_part()

    async def _enter_service(self) -> None:
        """A node serves nobody before it knows every fence that it may have acknowledged in a former life."""
        await self.catch_up()
        self.serving = True
        self.wake_orders()
        if self.join_command is not None and self.image.node(self.name) is None:
            request_id = named(f"join {self.name}")
            await self.submit(
                Envelope(request_id=request_id, command=self.join_command, actor=self.name)
            )

    def _heartbeat(self) -> None:
        self.world.witness.nodes.uses(self)
        topology = self.image.topology
        self._sequence += 1
        ack = Ack(
            node_id=self.name,
            boot_id=f"{self.disk['boot']:08d}",
            sequence=self._sequence,
            epoch=self.image.epoch,
            version=topology.version,
            fence_version=topology.fence_version,
            oldest_version_in_use=self.oldest_version(),
            sessions_in_use=self.sessions.in_use(),
            at_ms=self.clock.wall_ms(),
            host_id=f"host-{self.name}",
            log_id=self.image.log_id,
            state_id=self.image.state_id,
            prepared=self.image.requests.resizing(),
        )
        for driver in self.world.drivers:
            self.world.network.send(self, driver, driver.on_ack, ack)
        self.after(HEARTBEAT_S, self._heartbeat)

    # --- replica

    def serve_write(self, write: WriteCell, reply: Reply) -> None:
        self.spawn(self._serve_write(write, reply))

    async def _serve_write(self, write: WriteCell, reply: Reply) -> None:
        if not await self._knows(write) or not self._passes(write):
            reply(False)
            return
        self._flushing.append(write)
        await self.sleep(FLUSH_S)
        self._flushing.remove(write)
        if not self._passes_again(write):  # the fence may have moved while the disk worked
            reply(False)
            return
        self.world.witness.nodes.accepts(self, write)
        self.world.witness.nodes.serves(self, write.sender)
        self.store(write.key, write.cell)
        self.world.failpoint(self, "after_store")
        reply(True)

    def serve_read(self, read: ReadCell, reply: Reply) -> None:
        self.spawn(self._serve_read(read, reply))

    async def _serve_read(self, read: ReadCell, reply: Reply) -> None:
        if await self._knows(read) and self._passes(read):
            self.world.witness.nodes.serves(self, read.sender)
            reply(ReadResult(True, self.cells.get(self.partitions_of(read.key)[0])))
        else:
            reply(ReadResult(False))

    async def _knows(self, request: WriteCell | ReadCell) -> bool:
        """Whoever asks by a newer version, or for a keyspace that is news here, is judged once it is read."""
        image = self.image
        newer = request.version > image.topology.version
        if newer or (image.schema.of_data(request.key[0]) is None and request.epoch > image.epoch):
            return await self.epoch_reached(request.epoch, EPOCH_WAIT_S)
        return self.serving

    def _passes(self, request: WriteCell | ReadCell) -> bool:
        if self.is_excluded() or not self.knows_as_member(request.sender):
            return False
        return check_token(self.image, request.key[0], request.token, request.version) is None

    def is_excluded(self) -> bool:
        """It was declared dead, as far as it knows."""
        node = self.image.node(self.name)
        return node is not None and node.excluded

    def knows_as_member(self, sender: str) -> bool:
        return takes_part(self.image, sender)

    def _passes_again(self, write: WriteCell) -> bool:
        return self._passes(write)

    def flushes_older(self, range_: Range, version: int) -> bool:
        """Does a write of a range, routed by an older version, still wait for the disk?"""
        return any(w.version < version and contains(range_, w.token) for w in self._flushing)

    def store(self, key: Key, cell: Cell) -> None:
        self.world.witness.data.truncations.keeps(self.name, self.image, key)
        for place in self.partitions_of(key):
            self.world.witness.tablets.stores(self.name, self.image, place)
            known = self.cells.get(place)
            if known is None or cell.timestamp > known.timestamp:
                self.cells[place] = cell

    # --- coordinator of clients' requests

    def serve_client_write(
        self, keyspace: str, key: str, token: int, cell: Cell, reply: Reply
    ) -> None:
        """Answers with the id of the data that was written to, or None."""
        if not self.coordinates:
            reply(None)
        else:
            self.spawn(self._write(keyspace, key, token, cell, reply))

    async def _write(self, keyspace: str, key: str, token: int, cell: Cell, reply: Reply) -> None:
        known = self.image.schema.serving(keyspace)
        if known is None:
            reply(None)
            return
        row = self.image.ring.placements[known.placement].row_for(token)
        version = self.image.topology.version
        hold = self.versions.hold(version, known.data_id, token)
        held = self.world.witness.nodes.coordinates(self, known.data_id, token, row)
        epoch = self.image.epoch
        write = WriteCell((known.data_id, key), token, cell, version, epoch, self.name)
        self.world.witness.data.routes(cell, known.data_id)
        answers, settled = self._ask_replicas(row.writes, lambda node: node.serve_write, write)
        accepted = set[str]()
        while not settled.done:
            node_id, answer = await answers.get()
            if answer:
                accepted.add(node_id)
            if write_satisfied(accepted, row):
                break
        if write_satisfied(accepted, row):
            self.world.witness.data.acknowledges(write)
            reply(known.data_id)
        else:
            reply(None)
        await settled.wait()
        self.world.witness.nodes.has_ended(self, held)
        self.versions.release(hold)

    def serve_client_read(self, keyspace: str, key: str, token: int, reply: Reply) -> None:
        if not self.coordinates:
            reply(None)
        else:
            self.spawn(self._read(keyspace, key, token, reply))

    async def _read(self, keyspace: str, key: str, token: int, reply: Reply) -> None:
        known = self.image.schema.serving(keyspace)
        if known is None:
            reply(None)
            return
        row = self.image.ring.placements[known.placement].row_for(token)
        version = self.image.topology.version
        hold = self.versions.hold(version, known.data_id, token)
        held = self.world.witness.nodes.coordinates(self, known.data_id, token, row)
        epoch = self.image.epoch
        read = ReadCell((known.data_id, key), token, version, epoch, self.name)
        answers, settled = self._ask_replicas(row.reads, lambda node: node.serve_read, read)
        found = dict[str, Cell | None]()
        while not settled.done and not read_satisfied(found.keys(), row):
            node_id, answer = await answers.get()
            if isinstance(answer, ReadResult) and answer.ok:
                found[node_id] = answer.cell
        if read_satisfied(found.keys(), row):
            cells = [cell for cell in found.values() if cell is not None]
            newest = max(cells, key=lambda cell: cell.timestamp, default=None)
            have = {node_id for node_id, cell in found.items() if cell == newest}
            if newest is None or await self._settle(read, row, newest, have):
                reply(ReadResult(True, newest, known.data_id))
            else:
                reply(None)
        else:
            reply(None)
        await settled.wait()
        self.world.witness.nodes.has_ended(self, held)
        self.versions.release(hold)

    async def _settle(self, read: ReadCell, row: RangeReplicas, cell: Cell, have: set[str]) -> bool:
        """Put the cell where it lacks, so that no later read can find less than this one did."""
        if write_satisfied(have, row):
            return True
        write = WriteCell(read.key, read.token, cell, read.version, read.epoch, self.name)
        lacking = tuple(node_id for node_id in row.writes if node_id not in have)
        answers, settled = self._ask_replicas(lacking, lambda node: node.serve_write, write)
        accepted = set(have)
        while not settled.done and not write_satisfied(accepted, row):
            node_id, answer = await answers.get()
            if answer:
                accepted.add(node_id)
        return write_satisfied(accepted, row)

    def _ask_replicas(
        self,
        replicas: tuple[str, ...],
        serve: Callable[["Node"], Callable[..., None]],
        request: object,
    ) -> tuple["Answers", Future[None]]:
        """Ask all; ``settled`` comes when the last has answered or timed out."""
        answers, settled = Answers(), Future[None]()
        left = len(replicas)

        def arrived(node_id: str) -> Callable[[object], None]:
            def take(value: object) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    settled.set(None)
                answers.put(node_id, value)

            return take

        if not replicas:
            settled.set(None)
        for node_id in replicas:
            node = self.world.nodes[node_id]
            future = self.call(node, serve(node), request, timeout_s=REPLICA_TIMEOUT_S)
            future.then(arrived(node_id))
        return answers, settled


class Answers:
    """Replicas' answers in the order of their coming."""

    def __init__(self) -> None:
        self._ready: list[tuple[str, object]] = []
        self._wanted: Future[None] | None = None

    def put(self, node_id: str, value: object) -> None:
        self._ready.append((node_id, value))
        if self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            wanted.set(None)

    async def get(self) -> tuple[str, object]:
        if not self._ready:
            self._wanted = Future[None]()
            await self._wanted.wait()
        return self._ready.pop(0)
