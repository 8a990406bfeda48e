"""Traps: a process dies, pauses or loses the brokers at the very beginning of a step.

Traps wait for the next epoch of the durable log in which a transition enters a state or ends.
``states_entered`` compares two images of the log without any rule of production.
"""

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Final

from stele.domain.image import Image
from stele.domain.model.transitions import Transition
from stele_simulator.kernel import us
from stele_simulator.processes.broker import BROKER
from stele_simulator.scenario import Action, seconds_within, times

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

TRAPS_SHARE: Final = 0.4
TRAP_EVERY_S: Final = 8.0
TRUNCATED_EVERY_S: Final = 12.0
LATER_S: Final = 0.3
"""About the time between a step's two barriers."""
CUT_S: Final = (10.0, 25.0)
"""Cuts shorter than a barrier's patience only delay it."""
KINDS: Final = ("crash_on", "crash_on", "power_on", "pause_on", "cut_on")
ROLES: Final = ("coordinator", "operation_node", "operation_node", "member", "metadata_log")
IDLE: Final = "idle"
"""A transition ends."""
STATES: Final = (
    "join_group0",
    *("write_both_read_old",) * 4,
    *("write_both_read_new",) * 3,
    *("finishing",) * 2,
    "left_token_ring",
    "rollback_to_normal",
    "rebuilding",
    IDLE,
)
STAGES: Final = (
    "allow_write_both_read_old",
    *("write_both_read_old",) * 2,
    *("streaming",) * 2,
    *("write_both_read_new",) * 2,
    "use_new",
    *("cleanup",) * 2,
    "cleanup_target",
    "revert_migration",
    "end_migration",
    "repair",
    "truncate",
    "snapshot",
    "restore",
    "tablet_resize_finalization",
    IDLE,
)
"""Of tablets."""
_FIRST_KEY: Final = -1_000_000_000
"""Other cuts count up from 0, or down from it by milliseconds."""


def make_step_faults(random: Random, length_s: float, *, tablets: bool) -> list[Action]:
    """``text`` is the state, ``number`` chooses among several, and whether a step's time passes before."""
    if random.random() >= TRAPS_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, TRAP_EVERY_S, length_s):
        kind, who = random.choice(KINDS), random.choice(ROLES)
        state = random.choice(STAGES if tablets and random.random() < 0.6 else STATES)
        seconds = 0.1 + 8 * random.random() ** 2
        if kind == "cut_on":
            seconds = seconds_within(random, CUT_S)
        number = random.randrange(1000)
        found.append(Action(at_s, kind, who, round(seconds, 3), number, state))
    return found


def late_to_truncate(random: Random, length_s: float) -> list[Action]:
    """Hide a truncation from a member, while clients still request older data from it."""
    found = list[Action]()
    for at_s in times(random, TRUNCATED_EVERY_S, length_s):
        seconds, number = CUT_S[0] * (0.5 + random.random()), 3 * random.randrange(300) + 1
        found.append(Action(at_s, "cut_on", "member", round(seconds, 3), number, "truncate"))
    return found


def states_entered(before: Image, after: Image) -> Iterator[tuple[str, Transition]]:
    """Each state that a transition enters by this epoch, and ``idle`` for each that ends."""
    one, two = before.topology.transitions, after.topology.transitions
    if one is two:
        return
    for transition in after.topology.open():
        known = one.get(transition.transition_id)
        if known is None or known.state is not transition.state:
            yield transition.state, transition
    for transition in before.topology.open():
        if transition.transition_id not in two:
            yield IDLE, transition


class StepFaults:
    """Traps that have not been triggered."""

    def __init__(self, world: "World") -> None:
        self.sprung = 0
        self._world = world
        self._waiting = list[Action]()

    def wait_for(self, action: Action) -> None:
        self._waiting.append(action)

    def leave(self) -> None:
        """No fault from now on."""
        self._waiting = []

    def changed(self, before: Image, after: Image) -> None:
        """Handle one more durable epoch that no process has read yet."""
        if not self._waiting:
            return
        for state, transition in states_entered(before, after):
            for action in [each for each in self._waiting if each.text == state]:
                self._waiting.remove(action)
                later_us = us(LATER_S) if action.number % 3 == 0 else 0
                at_us = self._world.kernel.now_us + later_us
                self._world.kernel.at(at_us, None, self._strike, action, transition)

    def _strike(self, action: Action, transition: Transition) -> None:
        victim = self._victim(action, transition)
        if victim is None or not victim.alive:
            return
        world = self._world
        self.sprung += 1
        world.faults += 1
        world.trace(
            f"trap at {action.text} of {transition.transition_id}: {action.kind} {victim.name}"
        )
        if action.kind in ("crash_on", "power_on"):
            victim.crash(power=action.kind == "power_on")
            victim.start_later(action.seconds)
        elif action.kind == "pause_on":
            victim.pause(action.seconds)
        else:
            self._cut(victim, action.seconds)

    def _cut(self, victim: "Machine", seconds: float) -> None:
        world, key = self._world, _FIRST_KEY - self.sprung
        pairs = {(victim.name, BROKER.name), (BROKER.name, victim.name)}
        world.cut(key, pairs, seconds)

    def _victim(self, action: Action, transition: Transition) -> "Machine | None":
        world, number = self._world, action.number
        image = world.witness.image
        if action.target == "coordinator":
            return world.holder()
        if action.target == "metadata_log":
            return world.logs[number % len(world.logs)]
        names = _at_work(transition) if action.target == "operation_node" else set[str]()
        there = {node.node_id: node for node in world.nodes}
        chosen = sorted(names & there.keys()) or sorted(image.membership.taking_part())
        return there.get(chosen[number % len(chosen)]) if chosen else None


def _at_work(transition: Transition) -> set[str]:
    """The nodes that it is about, and those whose ranges move."""
    rows = [row for plan in transition.plans.values() for row in plan.rows]
    moving = {name for row in rows for name in {*row.old} ^ {*row.new}}
    return moving or {*transition.nodes()} or {name for row in rows for name in row.new}
