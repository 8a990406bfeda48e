"""Agreement on the schema (A1): "agreed" is answered when every live member has acknowledged the epoch.

The check takes members from the log's images, and liveness and progress from the acks that nodes
sent. It does not use the guards' fold of these.
"""

from collections import defaultdict, deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from stele.domain.image import Image
from stele.domain.messages import Ack
from stele.runtime.answers.session_guard import SchemaAgreement
from stele.session_guard.settings import SessionGuardSettings
from stele_simulator.kernel import us
from stele_simulator.processes.callers import Caller

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

AGREED: Final = "A1"
TIMEOUT_S: Final = SessionGuardSettings(cluster="sim").heartbeat_timeout_s
LIVE_SHARE: Final = 0.6
"""A node is live without doubt if its acks have no longer gap than this share of the time-out."""
OBSERVED: Final = 2
"""Number of time-outs that the acks are looked at."""
ACKS_KEPT: Final = 200
THINK_S: Final = 0.4
LONGEST_S: Final = 3
ANSWER_S: Final = 8.0
OK: Final = 200


class AgreementWitness:
    """Records acks, and checks answers of guards."""

    def __init__(self, world: "World") -> None:
        self.agreed = 0
        """Number of positive answers."""
        self.newest = 0
        """The newest epoch of these."""
        self._world = world
        self._landed_us: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=ACKS_KEPT))
        self._applied: dict[str, dict[bytes, int]] = defaultdict(dict)
        """By host id of a node: the states that it acknowledged, with their epochs."""

    def sent(self, ack: Ack) -> None:
        self._applied[ack.host_id][ack.state_id] = ack.epoch

    def landed(self, ack: Ack) -> None:
        self._landed_us[ack.node_id].append(self._world.kernel.now_us)

    def answered(self, guard: str, found: SchemaAgreement) -> None:
        """Check an answer, unless epochs were lost lately."""
        witness = self._world.witness
        image = witness.image_of_epoch(found.epoch)
        if not found.agreed or not witness.quiet() or image is None:
            return
        self.agreed += 1
        self.newest = max(self.newest, found.epoch)
        behind = [
            node_id
            for node_id in self._members(image)
            if self._is_live(node_id) and not self._has_applied(node_id, found.epoch)
        ]
        self._world.demand(
            not behind,
            AGREED,
            f"{guard} says that all live members have applied epoch {found.epoch}, and they have",
            f"{behind} acknowledged no such epoch: {found}",
        )

    def _members(self, then: Image) -> list[str]:
        """Return the members of an epoch that still are members."""
        now = self._world.witness.image.membership.taking_part()
        return [name for name in then.membership.taking_part() if name in now]

    def _is_live(self, node_id: str) -> bool:
        """Return whether its acks came without a gap, so that no guard may call it down."""
        now_us = self._world.kernel.now_us
        since_us = now_us - us(OBSERVED * TIMEOUT_S)
        came_us = [since_us, *(at for at in self._landed_us[node_id] if at >= since_us), now_us]
        return all(two - one < us(LIVE_SHARE * TIMEOUT_S) for one, two in pairwise(came_us))

    def _has_applied(self, node_id: str, epoch: int) -> bool:
        witness = self._world.witness
        row, line = witness.image.node(node_id), witness.line(witness.head)
        found = {} if row is None else self._applied[row.host_id]
        return any(at >= epoch and state_id in line for state_id, at in found.items())


class AgreementClient(Caller):
    """Asks guards whether the members agree on the schema, at once or with a wait."""

    async def _work(self) -> None:
        while self.world.callers_work:
            await self.sleep(2 * THINK_S * self.chance.random())
            version = self.world.witness.image.schema.version.epoch
            epoch = self.chance.choice((0, version, self.world.witness.image.epoch))
            await self.ask_guard(epoch, self.chance.choice((0, 1, LONGEST_S)))

    async def ask_guard(self, epoch: int, timeout_s: int) -> bool:
        """Return whether a guard answers that all agree."""
        guard = self.chance.choice(self.world.guards)
        params = {"epoch": str(epoch), "timeout_s": str(timeout_s)}
        url = f"{guard.url}/v1/schema/agreement"
        status, content = await self.fetch(url, ANSWER_S, params)
        if status != OK:
            return False
        found = msgspec.json.decode(content, type=SchemaAgreement)
        self.world.agreement.answered(guard.name, found)
        return found.agreed
