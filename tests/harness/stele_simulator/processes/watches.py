"""Followers of the log through a metadata-log: every epoch once, in order, from any of them.

They use the server-sent stream of ``/v1/epochs`` as documented, with the first epoch and the state id of the
previous one. A follower whose state is of another history, or whose next epochs are not kept, reads the state
again and continues from there.
"""

import json
from typing import TYPE_CHECKING, Any, Final

from stele_simulator.kernel import Future, us
from stele_simulator.processes.simulated_client import SimulatedClient
from stele_simulator.processes.web import Stream

if TYPE_CHECKING:
    from stele_simulator.processes.members import LogMachine
    from stele_simulator.processes.world import World

TOLD: Final = "I9"
ASKS_AGAIN_S: Final = 1.0
PATIENCE_S: Final = (1.0, 9.0)
"""Without an epoch for so long it asks another one; a stream that is quiet may be one that is dead."""
STATE_S: Final = 5.0
OK: Final = 200
OTHER_HISTORY: Final = 410
NOT_FOUND: Final = 404
DATA: Final = "data: "
MOST_REFUSALS: Final = 3


class Watch(SimulatedClient):
    """Resumes after interruptions."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world, "watch")
        self.told = 0
        self.last = 0
        """The newest received epoch."""
        self.state_id = bytes(16)
        self._heard_us = 0
        self._refusals = 0

    async def _work(self) -> None:
        while True:
            log = self.chance.choice(self.world.logs)
            ended = Future[tuple[int, bytes]]()
            status, content = await self._follow(log, ended)
            if status == OTHER_HISTORY:
                self._is_of_another_history(log)
            self._refusals = self._refusals + 1 if status == NOT_FOUND else 0
            if status == OTHER_HISTORY or self._refusals >= MOST_REFUSALS:
                self.world.trace(f"{self.name} begins anew: {content.decode()}"[:200])
                await self._begin_anew(log)
            await self.sleep(2 * ASKS_AGAIN_S * self.chance.random())

    async def _follow(
        self, log: "LogMachine", ended: Future[tuple[int, bytes]]
    ) -> tuple[int, bytes]:
        """Until it ends, or is quiet for too long; then the status is 0."""
        least_s, most_s = PATIENCE_S
        patience_us = us(least_s + (most_s - least_s) * self.chance.random())
        params = {"from": str(self.last + 1)}
        if self.last:
            params["state_id"] = self.state_id.hex()
        self._heard_us = self.world.kernel.now_us
        stream = self.world.web.follow(
            self, f"{log.url}/v1/epochs", params, self._take, lambda *found: ended.set(found)
        )
        self._look(stream, patience_us, ended)
        found = await ended.wait()
        stream.is_over = True
        return found

    def _look(self, stream: Stream, patience_us: int, ended: Future[tuple[int, bytes]]) -> None:
        kernel = self.world.kernel
        if ended.done:
            return
        if kernel.now_us - self._heard_us >= patience_us:
            ended.set((0, b""))
            return
        kernel.at(self._heard_us + patience_us, self, self._look, stream, patience_us, ended)

    def _take(self, piece: bytes) -> None:
        """I9: the next epoch, as it is in the log, behind the one before."""
        found: dict[str, Any] = {}
        for line in piece.decode().splitlines():
            if line.startswith(DATA):
                found = json.loads(line[len(DATA) :])
        if not found:
            return
        world = self.world
        epoch, state_id = int(found["epoch"]), bytes.fromhex(found["state_id"])
        known = world.witness.records.get(state_id)
        world.demand(
            epoch == self.last + 1,
            TOLD,
            f"{self.name} is told epoch {self.last + 1}",
            f"it is told {epoch}",
        )
        world.demand(
            known is not None and (known.epoch, known.previous) == (epoch, self.state_id),
            TOLD,
            f"{self.name} is told epoch {epoch} as it is in the log, behind {self.state_id.hex()}",
            f"it is told {state_id.hex()}, which the log has {known and known.epoch}, behind"
            f" {known and known.previous.hex()}",
        )
        self.told, self.last, self.state_id = self.told + 1, epoch, state_id
        self._heard_us = world.kernel.now_us

    def _is_of_another_history(self, log: "LogMachine") -> None:
        """I9: a follower whose state is in the log gets no contrary answer."""
        witness = self.world.witness
        if not witness.quiet():
            return
        self.world.demand(
            self.state_id not in witness.line(witness.head),
            TOLD,
            f"{self.name} goes on behind epoch {self.last}, which is in the log",
            f"{log.name} tells it that it is of another history",
        )

    async def _begin_anew(self, log: "LogMachine") -> None:
        status, content = await self.fetch(f"{log.url}/v1/state", STATE_S)
        if status == OK:
            found = json.loads(content)
            self.last, self.state_id = found["epoch"], bytes.fromhex(found["state_id"])
            self._refusals = 0
