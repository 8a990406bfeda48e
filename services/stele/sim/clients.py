"""Clients of the data, who write and read by quorum, and the administrator, who asks for changes."""

from math import inf
from typing import Final

from msgspec.structs import replace

from stele.domain.commands import Envelope, Outcome
from stele.sim.kernel import Future
from stele.sim.messages import Cell, Key, KvOp, ReadResult, token_of_key
from stele.sim.process import Process
from stele.sim.writer import Caller

REQUEST_TIMEOUT_S: Final = 2.5
THINK_S: Final = 0.25
KEYSPACE: Final = "data"


class KvClient(Process):
    """Writes and reads at any node, one request after the other."""

    def start(self) -> None:
        self.spawn(self._work())

    async def _work(self) -> None:
        keys: list[Key] = [(KEYSPACE, f"key{i}") for i in range(self.world.scenario.keys)]
        while self.world.clients_work:
            await self.sleep(THINK_S * 2 * self.random())
            key = keys[int(self.random() * len(keys))]
            if self.random() < 0.5:
                await self._write(key)
            else:
                await self.read(key)

    def _node(self) -> str:
        names = sorted(self.world.nodes)
        return names[int(self.random() * len(names))]

    async def _write(self, key: Key) -> None:
        timestamp = self.world.next_timestamp()
        cell = Cell(timestamp, f"{self.name}:{timestamp}")
        self.world.witness.data.issues(key, cell)
        node = self.world.nodes[self._node()]
        pending = self._begun(node.name, key, write=True, value=cell.value)
        number = self.world.witness.data.begins(pending)
        args = (key, token_of_key(key), cell)
        answer = self.call(node, node.serve_client_write, *args, timeout_s=REQUEST_TIMEOUT_S)
        if await answer.wait():
            ended = self.world.kernel.now_s
            self.world.witness.data.ends(number, replace(pending, ended=ended, done=True))

    async def read(self, key: Key) -> bool:
        """True when a quorum answered; the witness has then checked the answer."""
        floor = self.world.witness.data.acked.get(key, 0)
        node = self.world.nodes[self._node()]
        pending = self._begun(node.name, key, write=False, value=None)
        args = (key, token_of_key(key))
        answer = self.call(node, node.serve_client_read, *args, timeout_s=REQUEST_TIMEOUT_S)
        result: ReadResult | None = await answer.wait()
        if result is not None:
            self.world.witness.data.read(key, floor, result.cell)
            ended, value = self.world.kernel.now_s, result.cell and result.cell.value
            done = replace(pending, ended=ended, value=value, done=True, known=True)
            self.world.witness.data.begins(done)
        return result is not None

    def _begun(self, node: str, key: Key, *, write: bool, value: str | None) -> KvOp:
        return KvOp(
            began=self.world.kernel.now_s,
            ended=inf,
            node=node,
            write=write,
            key="/".join(key),
            value=value,
            done=False,
            known=False,
        )


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
