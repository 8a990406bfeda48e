"""Clients of the data, who write and read by quorum, and the administrator, who asks for changes."""

from math import inf
from typing import Final

from msgspec.structs import replace

from stele.domain.commands import Envelope, Outcome
from stele.sim.kernel import Future
from stele.sim.messages import Cell, KvOp, ReadResult, token_of_key
from stele.sim.process import Process
from stele.sim.writer import Caller

REQUEST_TIMEOUT_S: Final = 2.5
THINK_S: Final = 0.25
KEYSPACE: Final = "data"
OTHERS: Final = ("k1", "k2", "k3")
"""Keyspaces that come and go."""
OTHERS_SHARE: Final = 0.25
OTHER_KEYS: Final = 5
WRITE_SHARE: Final = 0.5


class KvClient(Process):
    """Writes and reads at any node, one request after the other."""

    def start(self) -> None:
        self.spawn(self._work())

    async def _work(self) -> None:
        while self.world.clients_work:
            await self.sleep(THINK_S * 2 * self.random())
            keyspace, keys = KEYSPACE, self.world.scenario.keys
            if self.random() < OTHERS_SHARE:
                keyspace, keys = OTHERS[int(self.random() * len(OTHERS))], OTHER_KEYS
            key = f"key{int(self.random() * keys)}"
            if self.random() < WRITE_SHARE:
                await self._write(keyspace, key)
            else:
                await self.read(keyspace, key)

    def _node(self) -> str:
        names = sorted(self.world.nodes)
        return names[int(self.random() * len(names))]

    async def _write(self, keyspace: str, key: str) -> bool:
        """True when it was acknowledged."""
        timestamp, data = self.world.next_timestamp(), self.world.witness.data
        cell = Cell(timestamp, f"{self.name}:{timestamp}")
        data.issues(cell)
        node = self.world.nodes[self._node()]
        pending = self._begun(node.name, "", write=True, value=cell.value)
        number = data.begins(pending, cell, key)
        args = (keyspace, key, token_of_key((keyspace, key)), cell)
        answer = self.call(node, node.serve_client_write, *args, timeout_s=REQUEST_TIMEOUT_S)
        data_id: str | None = await answer.wait()
        if data_id:
            data.answers(data_id, key, pending.began)
            ended, name = self.world.kernel.now_s, f"{data_id}/{key}"
            data.ends(number, replace(pending, key=name, ended=ended, done=True))
        return bool(data_id)

    async def read(self, keyspace: str, key: str) -> bool:
        """True when a quorum answered; the witness has then checked the answer."""
        data = self.world.witness.data
        floors = data.floors(keyspace, key)
        node = self.world.nodes[self._node()]
        pending = self._begun(node.name, "", write=False, value=None)
        args = (keyspace, key, token_of_key((keyspace, key)))
        answer = self.call(node, node.serve_client_read, *args, timeout_s=REQUEST_TIMEOUT_S)
        result: ReadResult | None = await answer.wait()
        if result is not None:
            data.answers(result.data_id, key, pending.began)
            found = (result.data_id, key)
            data.read(found, floors.get(result.data_id, 0), result.cell, pending.began)
            ended, value = self.world.kernel.now_s, result.cell and result.cell.value
            done = replace(
                pending, key="/".join(found), ended=ended, value=value, done=True, known=True
            )
            data.begins(done)
        return result is not None

    def _begun(self, node: str, key: str, *, write: bool, value: str | None) -> KvOp:
        return KvOp(
            began=self.world.kernel.now_s,
            ended=inf,
            node=node,
            write=write,
            key=key,
            value=value,
            done=False,
            known=False,
        )


class AttachedClient(KvClient):
    """Writes through one node alone, and knows no other."""

    node_name = ""
    written = KEYSPACE
    """Keyspace or table."""
    tries = 0
    acknowledged = 0

    async def _work(self) -> None:
        while self.world.clients_work:
            await self.sleep(THINK_S * 2 * self.random())
            key = f"key{int(self.random() * self.world.scenario.keys)}"
            self.tries += 1
            self.acknowledged += await self._write(self.written, key)

    def _node(self) -> str:
        return self.node_name


class TableClient(KvClient):
    """Writes and reads in whatever tables there are, or in one, at any node."""

    table = ""

    async def _work(self) -> None:
        while self.world.clients_work:
            await self.sleep(THINK_S * 2 * self.random())
            names = (
                [self.table] if self.table else sorted(self.world.witness.image.schema.table_ids)
            )
            if not names:
                continue
            name = names[int(self.random() * len(names))]
            key = f"key{int(self.random() * self.world.scenario.keys)}"
            if self.random() < WRITE_SHARE:
                await self._write(name, key)
            else:
                await self.read(name, key)


class Admin(Caller):
    """Asks, and asks again under the same request id until it is told what became of it."""

    def start(self) -> None:
        self.waiting = 0
        self.outcomes: list[Outcome] = []

    def request(self, envelope: Envelope) -> None:
        self.waiting += 1
        self.spawn(self._see_through(envelope))

    async def _see_through(self, envelope: Envelope) -> None:
        outcome = await self.submit(envelope, attempts=1000)
        self.waiting -= 1
        if outcome is not None:
            self.outcomes.append(outcome)
            refused = outcome.rejection.code if outcome.rejection else ""
            self.world.trace(f"{envelope.request_id[:8]} {refused or f'applied {outcome.epoch}'}")

    def read_barrier(self) -> None:
        """A linearizable read; one that is not answered is given up."""
        writer = self.world.writers[int(self.random() * len(self.world.writers))]
        durable = self.world.witness.image.epoch
        answer: Future[Outcome | None] = self.call(writer, writer.serve_barrier, timeout_s=5.0)

        def told(outcome: Outcome | None) -> None:
            if outcome is not None:
                self.world.witness.commands.barrier_answered(durable, outcome.epoch)

        answer.then(told)
