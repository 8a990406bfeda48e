"""Somebody who asks for all that changes the topology, as a program does it: by the commands topic.

What it asks may be refused, come to nothing, or be in the way of what others ask.
"""

import asyncio
from collections.abc import Callable, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from stele.domain import commands
from stele.domain.commands import AnyCommand, Envelope, Outcome
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.topology.operations.commands import TabletMove
from stele.log.commander import Commander, NotTakenError
from stele.runtime.request_ids import new_request_id
from stele.sim.kernel import us
from stele.sim.processes.data import TABLE, TABLETS
from stele.sim.processes.machine import Machine
from stele.sim.processes.members import BROKERS, CLUSTER, DC

if TYPE_CHECKING:
    from stele.sim.processes.world import World

THINK_S: Final = 5.0
SUBMIT_S: Final = 20.0
BURY_EVERY_S: Final = 40.0
REMOVED_S: Final = 60.0
"""So long it is waited until a dead node has left."""
REPLACED_SHARE: Final = 0.5
LOOK_S: Final = 0.5
MOST_TABLETS: Final = 16
LEAST_TABLETS: Final = 2
MADE: Final = ("q0", "q1")
"""Keyspaces that it makes and drops; each has one table."""


class RequesterMachine(Machine):
    """Whoever asks. Its process is never hurt: what it does not know it asks anew."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world)
        self.applied = 0
        self._buried_us = 0
        self._kinds: tuple[Callable[[Image], AnyCommand | None], ...] = (
            self._migrate,
            self._migrate,
            self._resize,
            self._copies,
            self._keyspace,
            self._keyspace,
            self._table,
            self._table,
            self._truncate,
            self._move,
            self._cancel,
            lambda _: commands.RepairTable(TABLE),
            lambda _: commands.Cleanup(),
        )

    @property
    def image(self) -> Image | None:
        return None

    @property
    def failure(self) -> Exception | None:
        return None

    async def main(self) -> None:
        async with Commander(BROKERS, CLUSTER) as commander:
            while self.world.callers_work:
                await asyncio.sleep(2 * THINK_S * self.chance.random())
                if self._may_bury():
                    await self._bury(commander)
                command = self.chance.choice(self._kinds)(self.world.witness.image)
                if command is not None:
                    await self._submit(commander, command)
        await asyncio.get_running_loop().create_future()

    async def _submit(self, commander: Commander, command: AnyCommand) -> Outcome | None:
        log_id = self.world.witness.image.log_id.hex()
        envelope = Envelope(
            request_id=new_request_id(), command=command, actor=self.name, log_id=log_id
        )
        with suppress(TimeoutError, NotTakenError, KafkaException):
            outcome = await commander.submit(envelope, SUBMIT_S)
            self.applied += outcome.applied
            said = "applied" if outcome.rejection is None else outcome.rejection.code
            self.world.trace(f"{self.name} asks for {command}: {said}"[:300])
            return outcome
        return None

    # -- tables and tablets

    def _migrate(self, image: Image) -> AnyCommand | None:
        data, members = image.schema.serving(TABLE), sorted(image.membership.normal())
        if data is None or not members:
            return None
        rows = image.ring.placements[data.placement].rows
        tablet = self.chance.randrange(len(rows))
        from_node = self.chance.choice(sorted(rows[tablet].reads))
        to_node = self.chance.choice(members)
        move = TabletMove(table=TABLE, tablet=tablet, from_node=from_node, to_node=to_node)
        return commands.MoveTablets((move,))

    def _resize(self, image: Image) -> AnyCommand | None:
        data = image.schema.serving(TABLE)
        if data is None:
            return None
        count = len(image.ring.placements[data.placement].rows)
        wanted = self.chance.choice((2 * count, count // 2))
        return commands.ResizeTable(TABLE, min(MOST_TABLETS, max(LEAST_TABLETS, wanted)))

    def _copies(self, _: Image) -> AnyCommand:
        name = self.chance.choice((TABLETS, *MADE))
        return commands.KeyspaceRfChange(name, {DC: self.chance.choice((2, 3))})

    def _keyspace(self, image: Image) -> AnyCommand:
        name = self.chance.choice(MADE)
        if image.schema.named(name) is None:
            copies = {DC: self.chance.choice((1, 2))}
            return commands.CreateKeyspace(name, copies, tablets=True, initial_tablets=2)
        return commands.DropKeyspace(name)

    def _table(self, image: Image) -> AnyCommand:
        name = f"{self.chance.choice(MADE)}.t"
        if image.schema.serving(name) is None:
            return commands.CreateTable(name)
        return commands.DropTable(name)

    def _truncate(self, _: Image) -> AnyCommand:
        return commands.Truncate(f"{self.chance.choice(MADE)}.t")

    def _cancel(self, image: Image) -> AnyCommand | None:
        unfinished = image.requests.unfinished()
        return commands.Cancel(self.chance.choice(unfinished).request_id) if unfinished else None

    # -- nodes

    def _move(self, image: Image) -> AnyCommand | None:
        members = sorted(image.membership.normal())
        return commands.MoveNode(node_id=self.chance.choice(members)) if members else None

    def _may_bury(self) -> bool:
        """Now and then a node dies for good, while all others are well and each row has another copy."""
        world, members = self.world, self.world.witness.image.membership.normal()
        if world.kernel.now_us - self._buried_us < us(BURY_EVERY_S):
            return False
        copies = [
            sum(each.replication.values()) for each in world.witness.image.schema.by_id.values()
        ]
        is_well = all(node.alive and node.node_id in members for node in world.nodes)
        return is_well and len(members) > max(copies, default=0) and world.scenario.copies > 1

    async def _bury(self, commander: Commander) -> None:
        world = self.world
        self._buried_us = world.kernel.now_us
        node = self.chance.choice(world.nodes)
        dead, replaced = node.node_id, self.chance.random() < REPLACED_SHARE
        world.trace(f"{dead} is dead for good, to be {'replaced' if replaced else 'removed'}")
        world.faults += 1
        node.is_off = True
        node.crash(power=True)
        if replaced:
            await asyncio.sleep(2 * THINK_S * self.chance.random())
            node.is_off = False
            node.renew(replaces=dead)
            await self._until(lambda: node.is_refused or node.node_id in self._members())
            if node.is_wanted_back(world.witness.image):
                node.put_back()
            return
        asking = asyncio.create_task(self._remove(commander, dead))
        await self._until(lambda: self._has_left(dead))
        asking.cancel()
        node.is_off = False
        if self._has_left(dead):
            node.renew()
        else:
            node.boot()

    async def _remove(self, commander: Commander, dead: str) -> None:
        while True:
            row = self.world.witness.image.node(dead)
            if row is not None and not row.excluded_since:
                await self._submit(commander, commands.Remove(node_id=dead))
            await asyncio.sleep(LOOK_S + THINK_S * self.chance.random())

    async def _until(self, found: Callable[[], bool]) -> None:
        """Not longer than somebody waits, nor than the faults last."""
        for _ in range(int(REMOVED_S / LOOK_S)):
            if found() or not self.world.callers_work:
                return
            await asyncio.sleep(LOOK_S)

    def _members(self) -> Set[str]:
        return self.world.witness.image.membership.normal().keys()

    def _has_left(self, node_id: str) -> bool:
        row = self.world.witness.image.node(node_id)
        return row is not None and row.state is NodeState.LEFT
