"""A rolling upgrade: processes change to the newer release in turn, and its feature is enabled."""

from random import Random
from typing import TYPE_CHECKING, Final

from stele.domain.commands import EnableFeatures, Outcome
from stele.domain.names import RequestKind
from stele.domain.not_taken import MAX_AHEAD_MS
from stele_simulator.kernel import us
from stele_simulator.processes.callers import Caller
from stele_simulator.processes.releases import (
    ENABLE,
    FEATURE,
    MISTAKE,
    NEWER,
    OLDER,
    ROLL_BACK,
    UPGRADE,
    NewCommand,
    is_new,
)
from stele_simulator.scenario import Action

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

LOOK_S: Final = 1.0
PATIENCE_S: Final = 6.0
"""A process that has stopped for want of the feature is upgraded after that at the latest."""
KILLED_SHARE: Final = 0.3
"""Share of upgraded processes that are killed. The others are asked to end."""
TURNED_SHARE: Final = 0.4
"""Share of requests to enable the feature that a roll back follows."""
TURNED_S: Final = 1.0
LONGEST_S: Final = 10.0
"""So long a process stays rolled back."""
STOPPED_S: Final = 60.0
"""So long after the last fault the older release has met what it cannot read."""
ASK_AGAIN_S: Final = 5.0
ENABLED_S: Final = 300.0


class Roller(Caller):
    """Upgrades the processes of a run, and restarts those that have stopped."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world)
        self.stopped = set[str]()
        """Those of the older release that have stopped for want of the feature, and were not upgraded yet."""
        self.times_stopped = 0

    async def _work(self) -> None:
        world = self.world
        for action in world.scenario.upgrades:
            world.kernel.at(us(action.at_s), None, self._act, action)
        while world.scenario.upgrades:
            self.look()
            await self.sleep(LOOK_S)

    def _act(self, action: Action) -> None:
        if not self.world.callers_work:
            return
        chance, enabled = Random(f"{action.kind}/{action.number}"), self.world.releases.is_enabled()
        machine = self.world.machines.get(action.target)
        if action.kind == ENABLE:
            self.spawn(self._enable(chance))
        elif machine is None:
            self.spawn(self._use(chance))
        elif action.kind == UPGRADE:
            self.upgrade(machine, chance)
        elif (action.kind == ROLL_BACK and not enabled) or (action.kind == MISTAKE and enabled):
            self._turn_back(machine, chance)

    # -- processes --

    def upgrade(self, machine: "Machine", chance: Random) -> None:
        if not is_new(machine.installed):
            self.world.trace(f"{machine.name} is upgraded")
            self.stopped.discard(machine.name)
            machine.install(NEWER, in_order=chance.random() >= KILLED_SHARE)

    def _turn_back(self, machine: "Machine", chance: Random) -> None:
        """For a while."""
        if is_new(machine.installed):
            self.world.trace(f"{machine.name} is rolled back to the older release")
            machine.install(OLDER, in_order=chance.random() >= KILLED_SHARE)
            later_us = self.world.kernel.now_us + us(LONGEST_S * chance.random())
            self.world.kernel.at(later_us, None, self.upgrade, machine, chance)

    def look(self) -> None:
        """Upgrade processes that stopped because they lack the feature. Their message asks for that."""
        for machine in self.world.machines.values():
            if machine.name not in self.stopped and self.world.releases.has_stopped(machine):
                self.stopped.add(machine.name)
                self.times_stopped += 1
                self.world.trace(f"{machine.name} has stopped for want of {FEATURE}")
                later_us = self.world.kernel.now_us + us(PATIENCE_S * self.chance.random())
                self.world.kernel.at(later_us, None, self.upgrade, machine, self.chance)

    # -- requests --

    async def _enable(self, chance: Random) -> None:
        """Some asks are followed by a roll back, before or after all members have answered."""
        outcome = await self.enable()
        if outcome is None or not outcome.applied or chance.random() >= TURNED_SHARE:
            return
        machine = self.world.machines[chance.choice(sorted(self.world.machines))]
        await self.sleep(TURNED_S * chance.random())
        if not self.world.releases.is_enabled() and self.world.callers_work:
            self._turn_back(machine, chance)

    async def enable(self) -> Outcome | None:
        outcome = await self.submit(self.envelope(EnableFeatures((FEATURE,)), "all are upgraded"))
        self._told(outcome, "enable it")
        if outcome is not None:
            self.world.releases.answered(outcome)
        return outcome

    async def _use(self, chance: Random) -> None:
        """Whatever comes of it."""
        await self.use(chance)

    async def use(self, chance: Random) -> Outcome | None:
        """Use the newer release's additions."""
        services = sorted(self.world.witness.image.services.services)
        if not services:
            return None
        outcome = await self.submit(self.envelope(NewCommand(chance.choice(services))))
        self._told(outcome, "use it")
        if outcome is not None:
            self.world.releases.used(outcome)
        return outcome

    def _told(self, outcome: Outcome | None, what: str) -> None:
        refused = "" if outcome is None or outcome.rejection is None else outcome.rejection.message
        said = "no answer" if outcome is None else refused or f"epoch {outcome.epoch}"
        self.world.trace(f"{self.name} asks to {what}: {said}"[:300])

    # -- convergence at the end --

    def stop_the_old(self) -> None:
        """After the last fault, check that no process of the older release runs where the feature is enabled.
        Then upgrade the rest. Raises Violation.
        """
        world = self.world
        if world.releases.is_enabled():
            deadline_us = world.kernel.now_us + us(STOPPED_S)
            while (left := self._going_on()) and world.kernel.now_us < deadline_us:
                world.run_until(world.kernel.now_us + us(LOOK_S))
            world.releases.demand(
                not left,
                "the older release stops where the feature is enabled, and says so",
                f"{', '.join(left)} goes on, {STOPPED_S:g} s after the last fault",
            )
        for machine in world.machines.values():
            self.upgrade(machine, self.chance)
            if machine.clock.skew_ms > MAX_AHEAD_MS:
                world.trace(f"the clock of {machine.name} is set: its announcements are not taken")
                machine.clock.skew_ms = 0

    def _going_on(self) -> list[str]:
        machines = self.world.machines.values()
        return [
            m.name
            for m in machines
            if not is_new(m.build) and not self.world.releases.has_stopped(m)
        ]

    def enable_at_last(self) -> None:
        """All are upgraded: it is enabled, and what it brings is taken. Raises Violation."""
        world, is_done = self.world, list[bool]()
        self.spawn(self._see_through(is_done))
        deadline_us = world.kernel.now_us + us(ENABLED_S)
        while not is_done and world.kernel.now_us < deadline_us:
            world.run_until(world.kernel.now_us + us(LOOK_S))
        world.releases.demand(
            bool(is_done),
            f"once all are upgraded, {FEATURE} is enabled and used within {ENABLED_S:g} s",
            f"it is not: {world.lines[-1]}",
        )

    async def _see_through(self, is_done: list[bool]) -> None:
        while not self.world.releases.is_enabled():
            if not self._is_pending():
                await self.enable()
            await self.sleep(ASK_AGAIN_S)
        while True:
            outcome = await self.use(self.chance)
            if outcome is not None and outcome.applied:
                is_done.append(True)
                return
            await self.sleep(ASK_AGAIN_S)

    def _is_pending(self) -> bool:
        unfinished = self.world.witness.image.requests.unfinished()
        return any(each.kind is RequestKind.ENABLE_FEATURES for each in unfinished)
