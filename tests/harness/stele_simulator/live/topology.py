"""Changes of the topology: nodes join, leave, move, are rebuilt, die, and are removed or replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Final

from stele.domain.commands import AnyCommand, Cancel, Leave, MoveNode, Rebuild, Remove
from stele.domain.image import Image
from stele.domain.model.membership import Node
from stele.domain.names import NodeState
from stele_simulator.live.admin import Admin
from stele_simulator.live.command_sender import CommandSender, holds_within, see_finished
from stele_simulator.live.history import History
from stele_simulator.live.site import Site

PAUSE_S: Final = 2.0
SEEN_WITHIN_S: Final = 60.0
MOST_MEMBERS: Final = 5
LEAST_MEMBERS: Final = 3
RACKS: Final = 3
"""As many as the data has replicas: two nodes of one rack have no range in common."""
DEATHS: Final = 0.3
"""Share of deaths among the changes of the topology."""
TWO_DIE: Final = 0.8
"""Share of double deaths among these, where a rack has two nodes."""
MOVES: Final = 0.3
REBUILDS: Final = 0.15
CANCELLED: Final = 0.25
DEAD_TRIES: Final = 5
"""Attempts to remove or replace dead nodes. Requests that fail under the current faults are repeated."""


class TopologyAdmin(Admin):
    """Random changes of the topology, one after the other."""

    def __init__(
        self,
        sender: CommandSender,
        image: Callable[[], Image],
        site: Site,
        history: History,
        seed: int,
    ) -> None:
        super().__init__(sender, image, seed, PAUSE_S)
        self._site = site
        self._history = history

    async def _change(self) -> None:
        members = self._members()
        if len(members) > LEAST_MEMBERS and self._chance.random() < DEATHS:
            await self._die(self._who_dies(members))
            return
        request_id = await self._operate(members)
        if request_id and self._chance.random() < CANCELLED:
            await asyncio.sleep(self._chance.random() * 3)
            await self._sender.ask(Cancel(target=request_id), "changed my mind")
        if request_id:
            await see_finished(self._image, request_id)

    def _members(self) -> list[Node]:
        nodes = sorted(self._image().membership.nodes.items())
        return [node for _, node in nodes if node.state is NodeState.NORMAL]

    async def _operate(self, members: list[Node]) -> str:
        """Ask for a join, a leave, a move or a rebuild; the request's id, empty when it was refused."""
        dice, name = self._chance.random(), self._chance.choice(members).node_id
        if dice < MOVES:
            return await self._ask(f"{name} is to move", MoveNode(node_id=name))
        if dice < MOVES + REBUILDS:
            return await self._ask(f"{name} is to be rebuilt", Rebuild(node_id=name))
        few, many = len(members) <= LEAST_MEMBERS, len(members) >= MOST_MEMBERS
        if few or (not many and self._chance.random() < 0.6):
            return await self._join()
        return await self._ask(f"{name} is asked to leave", Leave(node_id=name))

    def _who_dies(self, members: Sequence[Node]) -> list[Node]:
        """One, or two of a rack."""
        pairs = [
            [one, two]
            for one, two in combinations(members, 2)
            if one.rack == two.rack and len({node.rack for node in members}) >= RACKS
        ]
        if pairs and len(members) - 2 >= RACKS and self._chance.random() < TWO_DIE:
            return self._chance.choice(pairs)
        return [self._chance.choice(members)]

    async def _die(self, dead: list[Node]) -> None:
        """Kill nodes permanently. Until they are removed or replaced no other node joins or leaves."""
        for node in dead:
            self._history.event(f"{node.node_id} dies for good")
            await self._site.kill_for_good(node.node_id)
        for _ in range(DEAD_TRIES):
            copies = [min(r.values()) for r in self._image().schema.replications().values()]
            if len(dead) == 1 and min(copies) > 1 and self._chance.random() < 0.5:
                asked = [await self._replace(dead[0].node_id, dead[0].rack)]
            else:
                asked = await asyncio.gather(*(self._remove(node, dead) for node in dead))
            for request_id in filter(None, asked):
                await see_finished(self._image, request_id)
            # A replaced node leaves by a removal, once its tablets are rebuilt.
            names = {node.node_id for node in dead}
            for request in self._image().requests.unfinished():
                if request.removes_node and request.node_id in names:
                    await see_finished(self._image, request.request_id)
            found = [self._image().node(node.node_id) for node in dead]
            if all(node is not None and node.state is NodeState.LEFT for node in found):
                return
            await asyncio.sleep(PAUSE_S)
            dead = [node for node in found if node is not None and node.state is not NodeState.LEFT]

    async def _join(self) -> str:
        name = await self._site.add_node()
        self._history.event(f"{name} starts and asks to join")
        return await self._request_of(name)

    async def _replace(self, dead: str, rack: str) -> str:
        name = await self._site.replace_node(dead, rack)
        self._history.event(f"{name} starts and asks to replace {dead}")
        return await self._request_of(name)

    async def _remove(self, node: Node, dead: Sequence[Node]) -> str:
        """By force, since some keyspaces have one copy; what is written has more, and never two in a rack."""
        others = tuple(other.node_id for other in dead if other is not node)
        command = Remove(node_id=node.node_id, ignore_nodes=others, force=True)
        return await self._ask(f"{node.node_id} is to be removed", command)

    async def _ask(self, event: str, command: AnyCommand) -> str:
        self._history.event(event)
        outcome = await self._sender.ask(command, event)
        return outcome.request_id if outcome is not None and outcome.applied else ""

    async def _request_of(self, name: str) -> str:
        if not await holds_within(lambda: self._image().node(name) is not None, SEEN_WITHIN_S):
            return ""
        node = self._image().node(name)
        assert node is not None
        return node.request_id
