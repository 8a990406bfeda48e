"""Long silences while no process is dead: unreachable brokers and stopped processes must fail nothing.

No other fault is left by then. So a coordinator that undoes an operation, or excludes a node, has taken silence
for death. It cannot tell a stopped node from a dead one. While some nodes are silent, it may undo or reject
requests of the kinds in ``ENDS_BY_SILENCE``, and all requests where the settings say so.
"""

from collections.abc import Iterable
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Final

from stele.domain import commands
from stele.domain.commands import AnyCommand
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.settings import ON_UNRESPONSIVE, UNDO
from stele.domain.names import RequestKind
from stele_simulator.kernel import us
from stele_simulator.processes.broker import BROKER
from stele_simulator.processes.data import DC, KEYSPACE, TABLE
from stele_simulator.processes.disaster import (
    ALTER,
    COORDINATORS,
    EVERYBODY,
    EXCLUDE,
    HOLDER,
    LEAVE,
    MOVE,
    REBUILD,
    SNAPSHOT,
    STOPPED,
)
from stele_simulator.processes.requester import moved, some_move
from stele_simulator.scenario import Action

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

SILENCE: Final = "silence alone fails nothing"
MOST_STEPS: Final = 6
STEPS_S: Final = 20.0
"""A silence begins after this time at the latest, whatever the step is."""
UNDO_SHARE: Final = 0.5
"""The share of silences under which silent nodes may have an operation undone."""
APART_SHARE: Final = 0.7
"""The share of silences in which nodes do not reach each other either, so that streams are still under way
when the coordinators look again.
"""
APART_S: Final = 10.0
"""So much longer than the silence. While a coordinator is there nodes reach each other after this time: streams
that fail too often are undone with reason.
"""
JUDGED_S: Final = 20.0
"""Decisions are checked until this time after a silence."""
DEAD_NODES: Final = "dead nodes"
"""Words of each rejection for silent nodes."""
NOT_SUPPORTED: Final = "this store does not"
"""Words of a node whose store cannot do what is ordered, as simulated stores cannot snapshot.

Three such answers end an operation, and are no silence.
"""
ENDS_BY_SILENCE: Final = frozenset(
    {
        RequestKind.TABLET_MIGRATION,
        RequestKind.INTRANODE_MIGRATION,
        RequestKind.TABLET_REPAIR,
        RequestKind.TABLET_RESTORE,
        RequestKind.TRUNCATE,
    }
)
"""Kinds that silent nodes may end (docs/concepts/failure_modes.md, "Silent nodes")."""
HELD_S: Final = 3.0
"""A silence begins within this time after a step whose streams are held."""
LOOK_S: Final = 0.01
ADVANCE: Final = "advance"
ROLLBACK: Final = "rollback"
REJECT: Final = "reject_request"
_FIRST_KEY: Final = 2_000_000_000
"""Keys of other cuts are lower."""


class Silences:
    """Makes the silences of a run, and checks every epoch until they are over."""

    def __init__(self, world: "World") -> None:
        self.times = 0
        self._world = world
        self._silent = frozenset[str]()
        """Nodes that are stopped or cannot reach the brokers, while others can."""
        self._steps = 0
        """So many more steps the silence waits for."""
        self._is_due = False
        self._cuts = 0
        self._kills: dict[str, int] | None = None
        """How often each member had been killed when the silence began; None while nothing is judged."""

    def pass_by(self, action: Action) -> None:
        """Request a change, silence processes, and wait until it is checked. All processes are well."""
        world = self._world
        chance = Random(f"{action.kind}/{action.number}")
        self._steps, self._is_due = chance.randrange(1, MOST_STEPS), False
        members = world.witness.image.membership.normal()
        self._kills = {n.node_id: n.kills for n in world.nodes if n.node_id in members}
        is_apart = chance.random() < APART_SHARE
        if chance.random() < UNDO_SHARE:
            self._ask(commands.SetSetting(ON_UNRESPONSIVE.name, UNDO))
        self._ask(_command(world, action.text, chance))
        latest_us = world.kernel.now_us + us(STEPS_S)
        while not self._is_due and world.kernel.now_us < latest_us:
            world.run_until(world.kernel.now_us + us(LOOK_S))
        if is_apart:
            self._keep_apart(action)
        later_s = HELD_S * chance.random() if is_apart else action.at_s
        world.run_until(world.kernel.now_us + us(later_s))
        self._begin(action)
        world.run_until(world.kernel.now_us + us(action.seconds + JUDGED_S))
        self._kills, self._silent = None, frozenset()

    def _keep_apart(self, action: Action) -> None:
        """Cut the nodes from each other, so that streams that have begun are under way in the silence."""
        nobody_coordinates = action.target in (EVERYBODY, COORDINATORS)
        silent_s = action.seconds if nobody_coordinates else 0.0
        self._cut(permutations([n.name for n in self._world.nodes], 2), silent_s + APART_S)

    def _begin(self, action: Action) -> None:
        world, machines = self._world, self._silenced(action.target)
        self._silent = frozenset() if action.target == EVERYBODY else _nodes_of(world, machines)
        self.times += 1
        world.faults += 1
        told = ", ".join(machine.name for machine in machines)
        world.trace(f"silence: {action.kind}, {told}, for {action.seconds:g} s")
        if action.kind == STOPPED:
            for machine in machines:
                machine.pause(action.seconds)
        else:
            names, brokers = [machine.name for machine in machines], BROKER.name
            self._cut([p for n in names for p in ((n, brokers), (brokers, n))], action.seconds)

    def _cut(self, pairs: Iterable[tuple[str, str]], seconds: float) -> None:
        self._cuts += 1
        self._world.cut(_FIRST_KEY + self._cuts, pairs, seconds)

    def changed(self, before: Image, after: Image, epoch: Epoch) -> None:
        """One more epoch is durable."""
        if self._kills is None:
            return
        if epoch.command == ADVANCE:
            self._steps -= 1
            self._is_due |= self._steps <= 0 and bool(after.topology.open())
        if before.membership.excluded() or self._is_any_dead(before):
            return
        excluded = after.membership.excluded() - self._silent
        self._world.demand(
            not excluded,
            SILENCE,
            "no node that runs and reaches the brokers is excluded",
            f"epoch {after.epoch} excludes {sorted(excluded)}",
        )
        if epoch.command == ROLLBACK:
            self._check_undoing(before, after)
        elif epoch.command == REJECT:
            self._check_rejection(before, after)

    def _may_end(self, image: Image, kind: RequestKind) -> bool:
        """Return whether the silence may end requests of this kind."""
        may_undo = ON_UNRESPONSIVE.of(image.features.settings) == UNDO
        return bool(self._silent) and (may_undo or kind in ENDS_BY_SILENCE)

    def _check_undoing(self, before: Image, after: Image) -> None:
        for transition in after.topology.open():
            was = before.topology.transitions.get(transition.transition_id)
            is_marked = was is not None and transition.mark != was.mark
            self._world.demand(
                not is_marked
                or NOT_SUPPORTED in transition.mark
                or self._may_end(after, transition.kind),
                SILENCE,
                f"{transition.kind} {transition.transition_id} goes on, since no node is dead",
                f"epoch {after.epoch} undoes it: {transition.mark}",
            )

    def _check_rejection(self, before: Image, after: Image) -> None:
        for request in after.requests.requests.values():
            is_new = before.request(request.request_id) != request
            self._world.demand(
                not is_new
                or DEAD_NODES not in request.error.lower()
                or self._may_end(after, request.kind),
                SILENCE,
                f"{request.kind} {request.request_id} waits, since no node is dead",
                f"epoch {after.epoch} rejects it: {request.error}",
            )

    def _is_any_dead(self, image: Image) -> bool:
        """Return whether a member was killed since. Nodes that have left are stopped in good order."""
        assert self._kills is not None
        now = {node.node_id: node.kills for node in self._world.nodes}
        members = image.membership.normal()
        return any(now.get(n, -1) != kills for n, kills in self._kills.items() if n in members)

    def _silenced(self, target: str) -> "list[Machine]":
        world = self._world
        if target == EVERYBODY:
            return [*world.machines.values()]
        if target == COORDINATORS:
            return [*world.coordinators]
        machine = world.holder() if target == HOLDER else world.machines.get(target)
        return [] if machine is None else [machine]

    def _ask(self, command: AnyCommand | None) -> None:
        mover = self._world.mover
        if command is not None:
            mover.spawn(mover.ask(mover.envelope(command)))


def _nodes_of(world: "World", machines: "Iterable[Machine]") -> frozenset[str]:
    names = {machine.name for machine in machines}
    return frozenset(node.node_id for node in world.nodes if node.name in names)


def _command(world: "World", kind: str, chance: Random) -> AnyCommand | None:
    image = world.witness.image
    members = sorted(image.membership.normal())
    if not members:
        return None
    node_id = chance.choice(members)
    if kind == LEAVE:
        return commands.Leave(node_id=node_id)
    if kind == MOVE:
        return commands.MoveNode(node_id=node_id)
    if kind == REBUILD:
        return commands.Rebuild(node_id=node_id)
    if kind == EXCLUDE:
        return commands.Exclude((node_id,))
    if kind == ALTER:
        keyspace = image.schema.named(KEYSPACE)
        rf = 0 if keyspace is None else keyspace.replication.get(DC, 0)
        most = sum(node.dc == DC for node in image.membership.normal().values())
        return commands.KeyspaceRfChange(KEYSPACE, {DC: rf + 1 if rf < most else rf - 1})
    if kind == SNAPSHOT:
        return commands.SnapshotTable(name=TABLE, snapshot=f"silence{chance.randrange(1_000_000)}")
    return moved(some_move(image, chance, TABLE))
