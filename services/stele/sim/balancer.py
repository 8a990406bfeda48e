"""The balancer's process: the production planner of moves of tablets, and who asks for what it plans."""

from typing import Final

from stele.domain.commands import AnyCommand, Envelope
from stele.domain.requests.ids import named
from stele.domain.tablets.heard import Heard
from stele.domain.tablets.proposals import proposal
from stele.domain.topology.operations.tablet_migration import BALANCER
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
        rounds = 0
        while True:
            await self.sleep(BALANCE_S)
            found = proposal(self.image, Heard(self._down()), self.clock.wall_ms())
            for number, (command, why) in enumerate(found.commands()):
                await self._ask(command, f"{rounds}/{number}", why)
            rounds += 1

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
