"""The balancer's process: the production planner of moves of tablets, and who asks for what it plans."""

from typing import Final

from stele.domain.commands import AnyCommand, Envelope
from stele.domain.names import BALANCER
from stele.domain.requests.ids import named
from stele.domain.tablets.conditions import Conditions
from stele.domain.tablets.load import NO_LOADS, LoadTable
from stele.domain.tablets.proposals import proposal
from stele.sim.loads import load_of
from stele.sim.process import Follower
from stele.sim.writer import Caller

BALANCE_S: Final = 1.0
"""Between two looks."""
ATTEMPTS: Final = 5


class Balancer(Caller, Follower):
    """Plans from what it has read, which may be late; the log refuses what cannot be any more."""

    def start(self) -> None:
        self.follow_log()
        self.spawn(self._work())

    async def _work(self) -> None:
        rounds, loads = 0, NO_LOADS
        while True:
            await self.sleep(BALANCE_S)
            loads = self._reported(loads, rounds)
            conditions = Conditions(self._down(), loads=loads, now_ms=self.clock.wall_ms())
            found = proposal(self.image, conditions)
            for number, (command, why) in enumerate(found.commands()):
                await self._ask(command, f"{rounds}/{number}", why)
            rounds += 1

    def _reported(self, loads: LoadTable, sequence: int) -> LoadTable:
        """With what the nodes that are heard report, each by what it has read of the log."""
        now_s, told = self.world.kernel.now_s, self.world.loads
        for name, node in self.world.nodes.items():
            if not told or not node.alive or node.paused_until_us > self.world.kernel.now_us:
                continue
            boot, at_ms = f"{node.disk['boot']:08d}", self.clock.wall_ms()
            load = load_of(node.image, name, told, boot, sequence, at_ms)
            if load is not None and load.epoch:
                assert not load.flaw(), load.flaw()
                loads = loads.with_load(load, now_s)
        return loads.current(self.image)

    def _down(self) -> frozenset[str]:
        """Members that nobody hears. Who is only cut off from some may be taken for up."""
        now_us, nodes = self.world.kernel.now_us, self.world.nodes
        members = self.image.membership.taking_part()
        return frozenset(
            n for n in members if not nodes[n].alive or nodes[n].paused_until_us > now_us
        )

    async def _ask(self, command: AnyCommand, which: str, why: str) -> None:
        name = f"{self.name}/{self.incarnation}/{which}"
        envelope = Envelope(request_id=named(name), command=command, actor=BALANCER, reason=why)
        await self.submit(envelope, ATTEMPTS)
