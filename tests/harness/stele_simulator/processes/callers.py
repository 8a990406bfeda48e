"""Clients of the simulated cluster: what they ask for, again under one id; and who moves the topology."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from stele.domain import commands
from stele.domain.commands import AnyCommand, Envelope, Outcome
from stele.domain.image import Image
from stele.domain.model.requests import uuid7
from stele.domain.names import COORDINATOR, CommitMode, NodeState, RequestKind
from stele.domain.not_taken import horizon_of
from stele.domain.registry import KNOWN_FEATURES
from stele_simulator.kernel import Future, us
from stele_simulator.processes.data import DC
from stele_simulator.processes.simulated_client import SimulatedClient
from stele_simulator.scenario import Action

if TYPE_CHECKING:
    from stele_simulator.processes.members import LogMachine
    from stele_simulator.processes.world import World

ATTEMPTS: Final = 5
ANSWER_S: Final = 9.0
STEP_S: Final = 6.0
BUSY_S: Final = 0.8
MEMBERS: Final = 3
"""Least number of members for a leave: keyspaces have at most two replicas."""
ASKED_AGAIN: Final = 8
BESIDE: Final = 4
"""Number of commands sent at the moment of a freeze, and again a moment later."""


class Caller(SimulatedClient):
    """Asks one thing after the other while ``world.callers_work``."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world, "caller")
        self.asked: list[Envelope] = []
        self._horizon_ms = -1

    async def _work(self) -> None:
        while self.world.callers_work:
            draw = self.chance.random()
            if draw < 0.12:
                await self.read()
            elif draw < 0.25 and self.asked:
                await self.submit(self.chance.choice(self.asked))
            else:
                envelope = self.envelope(self._command())
                self.asked.append(envelope)
                await self.submit(envelope)
            await self.sleep(0.1 + BUSY_S * self.chance.random())

    def envelope(self, command: AnyCommand, reason: str = "") -> Envelope:
        asking_ms = max(self.clock.wall_ms(), self._horizon_ms + 1)
        request_id = uuid7(asking_ms, self.chance.getrandbits(74))
        return Envelope(request_id=request_id, command=command, actor=self.name, reason=reason)

    def _command(self) -> AnyCommand:
        number = self.chance.randrange(6)
        draw = self.chance.random()
        if draw < 0.15:
            copies = max(self.world.scenario.least_copies, 1 + number % 2)
            return commands.CreateKeyspace(f"k{number}", {DC: copies})
        if draw < 0.25:
            return commands.SetSetting("snapshot_epochs", "none at all")  # it is refused
        if draw < 0.3:
            return commands.AskSnapshot()
        return commands.SetSetting(f"s{number}", str(self.chance.randrange(1000)))

    async def submit(self, envelope: Envelope, first: "LogMachine | None" = None) -> Outcome | None:
        """Under one id until it is answered, or given up; of ``first`` at first."""
        for _ in range(ATTEMPTS):
            outcome, first = await self.ask_once(envelope, first), None
            if outcome is not None and outcome.taken:
                return outcome
            await self.sleep(0.2 + 2 * self.chance.random())
        return None

    async def ask_once(self, envelope: Envelope, of: "LogMachine | None" = None) -> Outcome | None:
        """Return the answer of one metadata-log; None for no answer."""
        target = of or self.chance.choice(self.world.logs)
        outcome: Outcome | None = await self._call(target, target.serve_command, envelope)
        if outcome is None:
            return None
        if outcome.taken:
            self.world.witness.promises.tells(outcome)
        else:
            self._horizon_ms = horizon_of(outcome.rejection)
        return outcome

    async def ask(self, envelope: Envelope, first: "LogMachine | None" = None) -> None:
        """Whatever comes of it."""
        await self.submit(envelope, first)

    async def ask_again(self) -> None:
        """Ask each metadata-log about some requests again. Answers must equal the earlier ones."""
        for envelope in self.chance.sample(self.asked, min(ASKED_AGAIN, len(self.asked))):
            for target in self.world.logs:
                await self.ask_once(envelope, target)

    async def read(self, of: "LogMachine | None" = None) -> None:
        """Read the state. The witness checks it where it is served."""
        target = of or self.chance.choice(self.world.logs)
        await self._call(target, target.serve_read)
        self.world.read_availability.look()

    async def _call(self, target: "LogMachine", serve: Callable[..., None], *args: object) -> Any:
        future = Future[Any]()
        network, kernel = self.world.network, self.world.kernel

        def answer(found: object) -> None:
            network.send(target, self, future.set, found)

        network.send(self, target, serve, *args, answer)
        kernel.at(kernel.now_us + us(ANSWER_S), self, future.set, None)
        return await future.wait()


class Freezer(Caller):
    """Freezes the log or leaves it to one actor, in the midst of other commands, and thaws it."""

    holds = False
    """It is to be restricted now."""

    async def _work(self) -> None:
        kernel = self.world.kernel
        for action in self.world.scenario.freezes:
            await self.sleep(max(0.0, action.at_s - kernel.now_s))
            if self.world.callers_work:
                await self._freeze(action)

    async def _freeze(self, action: Action) -> None:
        single = action.number % 3 == 0
        mode = CommitMode.SINGLE_USER if single else CommitMode.FROZEN
        actors = (COORDINATOR, self.world.callers[0].name)
        actor = actors[action.number // 3 % len(actors)] if single else ""
        target, self.holds = self.chance.choice(self.world.logs), True
        freeze = self.envelope(commands.RestrictCommits(mode=mode, actor=actor), "it is tried")
        for number in range(2 * BESIDE):
            if number == BESIDE:
                self.spawn(self.ask(freeze, target))
            setting = commands.SetSetting(f"beside{number}", str(action.number))
            self.spawn(self.ask(self.envelope(setting), target))
        await self.sleep(action.seconds)
        self.holds = False
        await self.thaw()

    async def thaw(self) -> None:
        """Until it is open, as far as the log shows it now."""
        while not self.holds and self.world.witness.image.commits.mode is not CommitMode.OPEN:
            await self.submit(self.envelope(commands.RestrictCommits(mode=CommitMode.OPEN)))
            await self.sleep(BUSY_S)


REPLACE_IT: Final = frozenset({"too_few_nodes", "last_of_rack"})
"""Why a dead node is not removed, where another in its place is what is left to do."""
NO_OTHER: Final = "no other node can take"
WAIT_FOR_IT: Final = frozenset({RequestKind.TABLE_RESTORE})
"""Requests that wait for tablets whose replicas are all dead, until these nodes are removed or replaced."""


class Mover(Caller):
    """Asks members to leave, and maintains the cluster: a node that has left gets an empty folder and joins
    as a new one, nodes without a machine are removed, and a log that stays frozen is thawed.
    """

    async def _work(self) -> None:
        while self.world.callers_work:
            await self.look_after()
            command = self._next()
            if command is not None:
                await self.submit(self.envelope(command))
            await self.sleep(STEP_S * (0.5 + self.chance.random()))

    async def look_after(self) -> None:
        """One round of it."""
        image = self.world.witness.image
        for node in self.world.nodes:
            row = image.node(node.node_id)
            if node.is_wanted_back(image):
                node.put_back()
            elif row is not None and row.state is NodeState.LEFT and node.is_up:
                self.world.trace(f"{node.node_id} has left: its folder is thrown away")
                node.renew()
            elif row is not None and row.excluded_since and not node.is_off and node.is_up:
                self.world.trace(f"{node.node_id} is declared dead: its folder is thrown away")
                node.renew()
            elif row is None and node.waits and node.alive and _has_left(image, node.replaces):
                self.world.trace(f"{node.node_id} waits for the place of who has left: it joins")
                node.renew()
        await self.world.freezer.thaw()
        names = {node.node_id for node in self.world.nodes}
        excluded = {
            name
            for name in image.membership.excluded() - names
            if image.membership.nodes[name].state is NodeState.NORMAL
        }
        gone = sorted(excluded.union(image.membership.normal()) - names)
        if gone and all(r.kind in WAIT_FOR_IT for r in image.requests.unfinished()):
            force = self.world.scenario.declares and bool(excluded)
            if force:
                self.world.ages_end()
            for name in gone:
                others = tuple(other for other in gone if other != name)
                if _nobody_can_take(image, name):
                    await self._replace(name, others, force=force)
                    continue
                command = commands.Remove(node_id=name, ignore_nodes=others, force=force)
                outcome = await self.submit(self.envelope(command))
                refused = None if outcome is None else outcome.rejection
                if refused is not None and refused.code in REPLACE_IT:
                    await self._replace(name, others, force=force)

    async def _replace(self, dead: str, others: tuple[str, ...], *, force: bool) -> None:
        """Replace a node that cannot leave by the one that waits for its address."""
        image = self.world.witness.image
        for node in self.world.nodes:
            if dead.partition("-")[0] != node.name:
                continue
            if node.replaces != dead:
                node.renew(replaces=dead, waits=force)
            elif node.waits and node.alive and image.node(node.node_id) is None:
                identity = node.disk_identity()
                command = commands.Replace(
                    node_id=identity.node_id,
                    replaced_id=dead,
                    cluster=identity.cluster,
                    address=node.url,
                    dc=node.dc,
                    rack=node.rack,
                    host_id=identity.host_id,
                    shards=node.shards,
                    supported_features=tuple(sorted(KNOWN_FEATURES)),
                    ignore_nodes=others,
                    force=True,
                )
                await self.submit(self.envelope(command))

    def _next(self) -> AnyCommand | None:
        image = self.world.witness.image
        members = sorted(image.membership.normal())
        if (
            len(members) <= max(MEMBERS - 1, self.world.scenario.copies)
            or image.requests.unfinished()
        ):
            return None
        return commands.Leave(node_id=self.chance.choice(members))


def _has_left(image: Image, node_id: str) -> bool:
    row = image.node(node_id)
    return row is not None and row.state is NodeState.LEFT


def _nobody_can_take(image: Image, dead: str) -> bool:
    """Return whether the balancer has no place for its tablets, as for the only node of its rack."""
    return any(
        request.kind is RequestKind.REMOVE and request.node_id == dead and NO_OTHER in request.error
        for request in image.requests.requests.values()
    )
