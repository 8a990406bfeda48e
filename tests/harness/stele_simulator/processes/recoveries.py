"""Losses of the topic's records: the recovered log has everything that a process reported."""

from collections.abc import Set
from typing import TYPE_CHECKING, Final, NamedTuple

from stele.log.archive.archive import Archive
from stele.runtime.recent import EPOCHS as RECENT_EPOCHS
from stele_simulator.kernel import us
from stele_simulator.processes.records import ZERO, segments, states_in

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.witness import Witness
    from stele_simulator.processes.world import World

HOLDS: Final = "what anybody held is in the new history"
NOTICED_S: Final = 14.0
"""Time until every running process notices the loss of its log: ten seconds without a look, and a slow one.
"""


class Held(NamedTuple):
    """The history that a process reported: up to ``state_id``, from epoch ``first`` on."""

    state_id: bytes
    first: int
    is_archive: bool


def _whole(archive: Archive) -> bytes | None:
    """Return the newest state of which an archive can build an image. States behind a damaged file cannot be
    used until another replica repairs it.
    """
    snapshots = {kept.head.epoch: kept for kept in archive.snapshots.all()}
    images, spans = {0, *snapshots}, archive.segments.spans()
    ends = {span.last for span in spans if images & {*range(span.first - 1, span.last + 1)}}
    newest = max(images | ends)
    if newest in ends:
        return next(record.links[1] for record in archive.segments.read(newest))
    return bytes.fromhex(snapshots[newest].head.state_id) if newest else None


def _has_hole(machine: "Machine") -> bool:
    keeper = getattr(machine, "keeper", None)
    if keeper is None or not machine.disk.flipped:
        return False
    return len(keeper.archive.segments.spans()) > 1


class Asked:
    """The answers to the operator: holders and their histories."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.taken = ""
        """The machine whose history the operator took, where there were two."""


class RecoveryWitness:
    """Records losses of the topic, reports about the remains, and the recovered log."""

    def __init__(self, world: "World", witness: "Witness") -> None:
        self.first_states: list[bytes] = []
        """First states of the recovered logs."""
        self.newest_us = -us(3600)
        self.begun_us = -us(3600)
        """Time when the newest of these had been read and extended. No process can start from it before its
        first snapshot: if the replica that makes it dies, the log is recovered again.
        """
        self.taken = list[bytes]()
        """Ends of the histories chosen by the operator, while there were two."""
        self.lost_epochs = 0
        self.asked: list[Asked] = []
        """Since the topic was hurt the last time."""
        self.served_held: dict[str, Held] = {}
        self.forgotten: set[bytes] = set()
        """States that no process has any more."""
        self._world = world
        self._witness = witness
        self._remembered: dict[str, tuple[int, bytes]] = {}
        """What processes had read when the topic lost records, and the number of their kills."""
        self._hurt_after: list[bytes] = []
        self._head_when_hurt = ZERO
        self._head_left = ZERO
        self._lost: Set[bytes] = frozenset()
        """When the topic was hurt the last time."""
        self._kept_by: dict[bytes, dict[str, int]] = {}
        """Holders of the lost records at that time, and the number of their kills."""
        self._passed_over: set[bytes] = set()
        """In whose place others came at once, without a recovery: of who had not read them."""

    def hurt(self, before: bytes) -> None:
        """The topic has lost records, and had this head before."""
        self._head_when_hurt = before
        self.asked = []
        self._hurt_after = [*self.first_states]
        self._remembered = {
            machine.name: (machine.kills, machine.image.state_id)
            for machine in self._world.machines.values()
            if machine.alive and machine.image is not None
        }
        lost = (
            self._witness.line(self._head_when_hurt).keys()
            - self._witness.line(self._witness.head).keys()
        )
        self._head_left, self._lost = self._witness.head, lost
        kernel = self._world.kernel
        kernel.at(kernel.now_us, None, self._who_is_left_with, lost)

    def _who_is_left_with(self, lost: Set[bytes]) -> None:
        """Update holders after a loss. Processes that died at that moment are gone, and the log continues
        without the states that no process has.
        """
        world = self._world
        for each in lost:
            self._kept_by.pop(each, None)
        for machine in world.machines.values():
            if machine.alive and machine.image is not None:
                self._keeps(machine, lost & self._witness.line(machine.image.state_id).keys())
        for replica in world.replicas:
            for content in segments(replica.disk):
                self._keeps(replica, lost & {*states_in(content).values()})
        forgotten = lost - self._kept_by.keys()
        if forgotten:
            world.trace(f"{len(forgotten)} epochs are lost, and nobody has them any more")
            world.ages_end()
            self.forgotten |= forgotten

    def _keeps(self, machine: "Machine", states: Set[bytes]) -> None:
        for each in states:
            self._kept_by.setdefault(each, {})[machine.name] = machine.kills

    def serves(self, machine: "Machine", path: str) -> None:
        """Somebody tells what it has."""
        if path == "/v1/history":
            keeper = getattr(machine, "keeper", None)
            whole = None if keeper is None else _whole(keeper.archive)
            if whole is not None:
                self.served_held[machine.name] = Held(whole, 1, is_archive=True)
        elif path == "/v1/recent":
            image = machine.image
            if image is not None and image.epoch:
                writer = getattr(machine, "writer", None)
                told = [] if writer is None else writer.history.newest_winners(RECENT_EPOCHS)
                first = told[0].epoch if told else machine.began_at + 1
                self.served_held[machine.name] = Held(image.state_id, first, is_archive=False)

    def goes_on(self, state_id: bytes) -> None:
        """The log does, as another one: what of the old one was there to be had must be in it."""
        if state_id in self.first_states:
            return
        world, promises = self._world, self._witness.promises
        self.first_states.append(state_id)
        self.newest_us = world.kernel.now_us
        line = self._witness.line(state_id)
        known = self._witness.records[state_id]
        world.trace(f"the log goes on as {known.log_id.hex()} with epoch {known.epoch}")
        if self._head_when_hurt not in line:
            world.ages_end()
        lost = [
            (request_id, outcome)
            for request_id, outcome in promises.told.items()
            if outcome.state_id not in line and request_id not in promises.excused
        ]
        world.trace(f"{len(lost)} outcomes that were told are not in it")
        for request_id, outcome in lost:
            holders = [self._holders(asked, outcome.state_id) for asked in self.asked]
            self._world.demand(
                not self.asked or not all(holders),
                HOLDS,
                f"epoch {outcome.epoch} of request {request_id}, which a client was told, is in"
                f" the log that goes on with epoch {known.epoch}",
                f"it is not, though {sorted({each for one in holders for each in one})} had it",
            )
            promises.excused.add(request_id)
            self.lost_epochs += 1

    def wins(self, before: bytes) -> None:
        """A winner follows this state."""
        since_us = self._world.kernel.now_us - self._world.topic.faulted_us
        if before == self._head_left and since_us <= us(NOTICED_S):
            self._passed_over |= self._lost
        if self.first_states and before == self.first_states[-1]:
            self.begun_us = self._world.kernel.now_us

    def asks(self, asked: Asked) -> None:
        """Record the operator's answers, from which the recovery continues."""
        self.asked.append(asked)
        if asked.taken in asked.held:
            self.taken.append(asked.held[asked.taken].state_id)

    def gave_up(self, state_id: bytes, line: Set[bytes]) -> bool:
        """Return whether a history without this state was chosen, and the log of this ``line`` continues from
        it. The replica that has it may have read it in the topic, where no recovery began.
        """
        witness = self._witness
        return any(each in line and state_id not in witness.line(each) for each in self.taken)

    def was_passed_over(self, state_id: bytes) -> bool:
        """Return whether the topic lost this state, and processes without it continued at once. A process
        that has it stops and reports that, until the log is recovered. A replica that restarts earlier starts
        with the state that others read in the topic, and keeps its own copy aside.
        """
        return state_id in self._passed_over and all(
            self._world.machines[name].kills > kills
            for name, kills in self._kept_by.get(state_id, {}).items()
        )

    def _holders(self, asked: Asked, state_id: bytes) -> list[str]:
        """Return the processes that reported this state, of those whose history counts."""
        newest = max(
            (self._witness.log_of(each.state_id) for each in asked.held.values()), default=ZERO
        )
        lines = {
            name: self._witness.line(held.state_id)
            for name, held in asked.held.items()
            if self._witness.log_of(held.state_id) == newest and self._can_be_had(held, asked)
        }
        if asked.taken:
            lines = {name: line for name, line in lines.items() if name == asked.taken}
        return sorted(name for name, line in lines.items() if state_id in line)

    def answered(self, name: str, held: Held) -> None:
        """Check the answers: a process that was not killed since the loss has what it had read, or the topic
        still has it. A replica whose disk lost a file reports the rest once others have repaired it.
        """
        kills, state_id = self._remembered.get(name, (-1, ZERO))
        machine = self._world.machines[name]
        if kills != machine.kills or state_id == ZERO or self.first_states != self._hurt_after:
            return
        if _has_hole(machine):
            return
        witness = self._witness
        self._world.demand(
            state_id in witness.line(held.state_id) or state_id in witness.line(witness.head),
            HOLDS,
            f"{name}, which was not killed, has epoch {witness.epoch_of(state_id)}, as when the topic was hurt",
            f"it tells of epoch {witness.epoch_of(held.state_id)}",
        )

    def _can_be_had(self, held: Held, asked: Asked) -> bool:
        """An archive has the image; what a process has follows some archive's."""
        if held.is_archive:
            return True
        line = self._witness.line(held.state_id)
        return any(
            each.is_archive and line.get(each.state_id, -1) >= held.first - 1
            for each in asked.held.values()
        )
