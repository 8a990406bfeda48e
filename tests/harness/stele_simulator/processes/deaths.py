"""Permanent deaths of one or several nodes, and the requests that follow."""

import asyncio
from collections.abc import Set
from random import Random
from typing import TYPE_CHECKING, Final

from stele.domain import commands
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.log.commander import Commander

if TYPE_CHECKING:
    from stele_simulator.processes.requester import RequesterMachine

THINK_S: Final = 5.0
LOOK_S: Final = 0.5
WELL_S: Final = 20.0
REMOVED_S: Final = 60.0
"""So long it is waited until a dead node has left."""
REPLACED_SHARE: Final = 0.5
FORCE_SHARE: Final = 0.4
EXCLUDED_SHARE: Final = 0.6
EXCLUDED_S: Final = 40.0
"""So long it is waited until dead nodes are excluded."""


class Deaths:
    """One after the other, of the requester ``asking``."""

    def __init__(self, asking: "RequesterMachine") -> None:
        self._asking = asking
        self._world = asking.world
        self._is_busy = False

    async def come(self, commander: Commander, chance: Random, *, together: bool) -> None:
        """Unless somebody is dead already, or too few are left. For several it is waited until all are well."""
        if self._is_busy:
            return
        self._is_busy = True
        if together:
            await self._asking.until(self._may_bury, WELL_S)
        if self._may_bury():
            await (self._declare if together else self._bury)(commander, chance)
        self._is_busy = False

    def _may_bury(self) -> bool:
        """Return whether a node may die permanently: all others are well and each row has another copy."""
        world, members = self._world, self._world.witness.image.membership.normal()
        is_well = all(node.alive and node.node_id in members for node in world.nodes)
        copies = _most_copies(world.witness.image)
        return is_well and len(members) > copies and world.scenario.copies > 1

    async def _bury(self, commander: Commander, chance: Random) -> None:
        world = self._world
        node = chance.choice(world.nodes)
        dead, replaced = node.node_id, chance.random() < REPLACED_SHARE
        world.trace(f"{dead} is dead for good, to be {'replaced' if replaced else 'removed'}")
        world.faults += 1
        node.is_off = True
        node.crash(power=True)
        if replaced:
            await asyncio.sleep(2 * THINK_S * chance.random())
            node.is_off = False
            node.renew(replaces=dead)
            await self._asking.until(
                lambda: node.is_refused or node.node_id in self._members(), REMOVED_S
            )
            if node.is_wanted_back(world.witness.image):
                node.put_back()
            return
        asking = asyncio.create_task(self._remove(commander, dead, chance))
        await self._asking.until(lambda: self._has_left(dead), REMOVED_S)
        asking.cancel()
        node.is_off = False
        if self._has_left(dead):
            node.renew()
        else:
            node.boot()

    async def _declare(self, commander: Commander, chance: Random) -> None:
        """Declare one or two nodes dead: exclude or remove them, with force or without."""
        world, image = self._world, self._world.witness.image
        room = len(image.membership.normal()) - max(_most_copies(image), 2)
        if room < 1:
            return
        dead = chance.sample(world.nodes, min(room, chance.choice((1, 2, 2))))
        names = tuple(node.node_id for node in dead)
        force, excludes = chance.random() < FORCE_SHARE, chance.random() < EXCLUDED_SHARE
        world.trace(f"{', '.join(names)} are dead for good, force: {force}")
        for node in dead:
            world.faults += 1
            node.is_off = True
            node.crash(power=True)
        if force:
            world.ages_end()
        if excludes:
            await self._asking.submit(commander, commands.Exclude(names, force=force))
            await self._asking.until(lambda: not self._is_served(names), EXCLUDED_S)
        asking = asyncio.create_task(self._remove_all(commander, names, chance, force=force))
        await self._asking.until(lambda: all(map(self._has_left, names)), REMOVED_S)
        asking.cancel()
        excluded = world.witness.image.membership.excluded()
        for node in dead:
            node.is_off = False
            if self._has_left(node.node_id):
                node.renew()
            elif node.node_id in excluded:  # it may be alone in its rack
                node.renew(replaces=node.node_id)
            else:
                node.boot()

    def _is_served(self, names: tuple[str, ...]) -> bool:
        """The request to exclude them is under way, or may be."""
        image = self._world.witness.image
        unfinished = [r for r in image.requests.unfinished() if r.dead_nodes]
        return bool(unfinished) and not image.membership.excluded().issuperset(names)

    async def _remove_all(
        self, commander: Commander, names: tuple[str, ...], chance: Random, *, force: bool
    ) -> None:
        while True:
            for name in names:
                others = tuple(each for each in names if each != name)
                if not self._has_left(name):
                    command = commands.Remove(node_id=name, ignore_nodes=others, force=force)
                    await self._asking.submit(commander, command)
            await asyncio.sleep(LOOK_S + THINK_S * chance.random())

    async def _remove(self, commander: Commander, dead: str, chance: Random) -> None:
        while True:
            row = self._world.witness.image.node(dead)
            if row is not None and not row.excluded_since:
                await self._asking.submit(commander, commands.Remove(node_id=dead))
            await asyncio.sleep(LOOK_S + THINK_S * chance.random())

    def _members(self) -> Set[str]:
        return self._world.witness.image.membership.normal().keys()

    def _has_left(self, node_id: str) -> bool:
        row = self._world.witness.image.node(node_id)
        return row is not None and row.state is NodeState.LEFT


def _most_copies(image: Image) -> int:
    copies = (sum(each.replication.values()) for each in image.schema.by_id.values())
    return max(copies, default=0)
