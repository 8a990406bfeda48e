"""Requests of one kind that follow one another without a gap: who came before them is served all the same.

Nothing fails meanwhile, so whoever still waits at the end was overtaken again and again.
"""

from collections.abc import Iterable
from typing import Final

from stele.domain import commands
from stele.domain.commands import AnyCommand
from stele.domain.image import Image
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.requests.ids import named
from stele.domain.topology.operations.commands import TabletMove
from stele.domain.topology.operations.table import OPERATIONS
from stele.sim.declared import is_open
from stele.sim.kernel import us
from stele.sim.violation import require
from stele.sim.world import DC, World, join_command

TICK_S: Final = 0.2
BEGINS_WITHIN_S: Final = 30.0
"""If none of its requests has begun by then, the newcomer comes all the same."""
KEYSPACES: Final = tuple(f"crowd{number}" for number in range(1, 7))
PATIENCE: Final = 0.6
"""Of those whose request is over so many ask again at the next tick: they do not end together."""
KINDS: Final = {
    "alter": RequestKind.KEYSPACE_RF_CHANGE,
    "truncate": RequestKind.TRUNCATE,
    "move": RequestKind.MOVE,
    "rebuild": RequestKind.REBUILD,
    "migrate": RequestKind.TABLET_MIGRATION,
}
TABLE_KEYSPACE: Final = "crowded"
TABLE: Final = "crowded.table"
TABLETS: Final = 4


class Crowd:
    """Asks for ``kind`` of every node, keyspace or tablet as soon as its last request is done."""

    def __init__(self, world: World, kind: str, seconds: float, newcomer: str) -> None:
        self._world = world
        self._kind = kind
        self._priority = OPERATIONS[KINDS[kind]].priority
        self._random = world.kernel.random("crowd").random
        self._began_us = world.kernel.now_us
        self._seconds = seconds
        self._newcomer = newcomer
        self._asked: dict[str, str] = {}
        """By node, keyspace or tablet, its newest request."""
        self._waiting: dict[str, str] = {}
        """Requests that come before those of the crowd, in words."""

    def begin(self) -> None:
        world = self._world
        world.crowds += 1
        for name in KEYSPACES:
            world.request(commands.CreateKeyspace(name, {DC: 1}))
        if self._kind == "migrate":
            world.request(
                commands.CreateKeyspace(
                    TABLE_KEYSPACE, {DC: 1}, tablets=True, initial_tablets=TABLETS
                )
            )
        for request in world.witness.image.requests.pending():
            if OPERATIONS[request.kind].priority <= self._priority:
                self._waiting[request.request_id] = f"{request.kind} {request.request_id}"
        self._tick()

    def _join(self) -> None:
        """The newcomer comes when the crowd is there."""
        name = self._newcomer
        self._world.add_node(name, join_command(name, "r1", 1))
        self._waiting[named(f"join {name}")] = f"join {name}"

    def _tick(self) -> None:
        image, kernel = self._world.witness.image, self._world.kernel
        going = any(t.kind is KINDS[self._kind] for t in image.topology.open())
        late = kernel.now_us > self._began_us + us(BEGINS_WITHIN_S)
        if (going or late) and self._newcomer not in self._world.nodes:
            self._join()
        still = [what for request_id, what in self._waiting.items() if self._waits(request_id)]
        if not still and self._newcomer in self._world.nodes:
            self._world.crowds -= 1
            return
        require(
            not still or kernel.now_us < self._began_us + us(self._seconds),
            "I10",
            "whoever came before them is served while others ask again and again",
            f"{', '.join(still)} waits after {self._seconds:g} s of requests to {self._kind}",
        )
        for target, command in self._commands(image):
            if self._may_ask(self._asked.get(target, "")) and self._random() < PATIENCE:
                self._asked[target] = self._world.request(command)
        kernel.at(kernel.now_us + us(TICK_S), None, self._tick)

    def _may_ask(self, last: str) -> bool:
        """What was refused or has failed once would be again; but a tablet that others had moved may move."""
        request = self._world.witness.image.request(last)
        if self._kind == "migrate" and last:
            return not is_open(self._world, last)
        return not last or (request is not None and request.status is RequestStatus.DONE)

    def _waits(self, request_id: str) -> bool:
        request = self._world.witness.image.request(request_id)
        if request is not None:
            return request.status is RequestStatus.PENDING
        newcomer = request_id == named(
            f"join {self._newcomer}"
        )  # others were there, and are forgotten
        return newcomer and is_open(self._world, request_id)

    def _commands(self, image: Image) -> Iterable[tuple[str, AnyCommand]]:
        """What is asked for next, by whom it is about."""
        for node_id, node in image.membership.normal().items():
            if node.tokens and self._kind == "move":
                yield node_id, commands.MoveNode(node_id=node_id)
            elif node.tokens and self._kind == "rebuild":
                yield node_id, commands.Rebuild(node_id=node_id)
        for name in KEYSPACES:
            keyspace = image.schema.named(name)
            if keyspace is not None and self._kind == "alter":
                copies = 3 - keyspace.replication[DC]
                yield name, commands.KeyspaceRfChange(name, {DC: copies})
            elif keyspace is not None and self._kind == "truncate":
                yield name, commands.Truncate(name)
        if self._kind == "migrate":
            yield from self._migrations(image)

    def _migrations(self, image: Image) -> Iterable[tuple[str, AnyCommand]]:
        """Each tablet goes from node to node."""
        data = image.schema.serving(TABLE)
        if data is None:
            yield "the table", commands.CreateTable(TABLE)
            return
        members = sorted(n for n, node in image.membership.normal().items() if node.tokens)
        for tablet, row in enumerate(image.ring.placements[data.placement].rows):
            others = [n for n in members if n not in row.writes]
            if others:
                to_node = others[int(self._random() * len(others))]
                move = TabletMove(
                    table=TABLE, tablet=tablet, from_node=row.reads[0], to_node=to_node
                )
                yield f"tablet {tablet}", commands.MoveTablets((move,))
