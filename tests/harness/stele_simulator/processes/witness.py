"""Rules that hold whatever is lost, checked with the bytes in the topic and the answers of processes.

Two states are of one history when the state ids in the records lead from one to the other. The checks use
none of production's rules on winners, choice of history, or losses.

This module has the topic's history, and the check that no process serves another one. ``promises``,
``recoveries``, ``barriers``, ``permissions`` and ``records`` are separate modules.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from stele.domain.commands import Outcome
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.messages import Ack
from stele.domain.names import BALANCER
from stele.log.codec import decode_ack, decode_envelope, decode_epoch, decode_outcome
from stele_simulator.kernel import us
from stele_simulator.processes.barriers import BarrierWitness
from stele_simulator.processes.epochs import EpochWitness, epoch_line
from stele_simulator.processes.permissions import PermissionWitness
from stele_simulator.processes.promises import PromiseWitness
from stele_simulator.processes.records import HEAD, ZERO, Known
from stele_simulator.processes.recoveries import NOTICED_S, RecoveryWitness

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

WAKING_S: Final = 2.0
READ: Final = "I2"
ONE_HISTORY: Final = "nobody serves an abandoned history"
LINES_KEPT: Final = 8


class Witness:
    """Sees the topic and every answer, and tells the other witnesses."""

    def __init__(self, world: "World") -> None:
        self.records: dict[bytes, Known] = {}
        self.head = ZERO
        """The newest state of the history that the topic holds now."""
        self.log = EpochWitness(world)
        self.promises = PromiseWitness(world, self)
        self.recoveries = RecoveryWitness(world, self)
        self.barriers = BarrierWitness(world, self)
        self.permissions = PermissionWitness(world, self)
        self.balanced_us = -us(3600)
        """When the balancer had its last effect."""
        self.balancing = Counter[str]()
        """How often which of its commands had one."""
        self.on_step: Callable[[Image, Image], None] = lambda before, after: None
        """Called with the images before and after each winner."""
        self._world = world
        self._heads: list[bytes] = []
        """By place in the topic: the head after that record."""
        self._base = ZERO
        """The head before the topic's first record."""
        self._lines: dict[bytes, dict[bytes, int]] = {}
        self._images: dict[bytes, Image] = {ZERO: EMPTY}
        """Images of the records, by state."""
        self._by_epoch: dict[int, Image] = {}

    @property
    def image(self) -> Image:
        """Return the image of the topic's present history."""
        return self._images[self.head]

    def image_of(self, state_id: bytes) -> Image:
        """Return the image of the records up to this state, which was the newest once."""
        return self._images[state_id]

    def image_at(self, state_id: bytes) -> Image | None:
        """Return the image of the records up to this state, if it was ever the newest."""
        return self._images.get(state_id)

    def image_of_epoch(self, epoch: int) -> Image | None:
        """Return the newest image that had this number."""
        return self._by_epoch.get(epoch)

    def members(self) -> tuple[str, ...]:
        """Return the members of the archive."""
        return tuple(self.image.archive.members())

    # -- the topic --

    def durable(self, offset: int, value: bytes) -> None:
        previous, state_id, log_id, _, epoch, _ = HEAD.unpack_from(value)
        self.records.setdefault(state_id, Known(previous, epoch, log_id, value))
        before, after = self.head, self._after(self.head, state_id)
        fresh = self._unknown_up_to(after)
        for each in fresh:
            self.head = each
            self._step(decode_epoch(self.records[each].value))
        self.head = after
        self._heads.append(self.head)
        self.permissions.head_changes(self.head)
        if self.head != before and self._is_recovery(state_id):
            self.recoveries.goes_on(state_id)
        elif fresh:
            self.recoveries.wins(before)

    def _unknown_up_to(self, state_id: bytes) -> list[bytes]:
        """Return the states up to this one that were never the newest, in order. A recovery has several: a
        reader continues behind a winner that the topic lost, when the next one is stored at its position.
        """
        found = list[bytes]()
        while state_id not in self._images:
            found.append(state_id)
            state_id = self.records[state_id].previous
        return found[::-1]

    def deletes(self, count: int) -> dict[int, bytes]:
        """Delete this number of records, at least one, from the topic's beginning. Return their epochs in the
        present history; in a recreated topic none from before its first recovery.
        """
        kept, gone = self.line(self.head), {*self._heads[:count]}
        there = self.line(self._heads[count - 1])
        gone.discard(self._base)
        self._base = self._heads[count - 1]
        del self._heads[:count]
        return {
            epoch: state_id
            for state_id, epoch in there.items()
            if state_id in kept and state_id in gone
        }

    def hurt(self, left: int, *, anew: bool) -> None:
        """Only the first ``left`` records are there."""
        before = self.head
        if anew:
            self._base = ZERO
        del self._heads[left:]
        self.head = self._heads[-1] if self._heads else self._base
        self.permissions.head_changes(self.head)
        self.recoveries.hurt(before)

    def _after(self, head: bytes, state_id: bytes) -> bytes:
        """The head of a topic behind one more record."""
        known = self.records[state_id]
        if known.previous == head and (head == ZERO or known.log_id == self.log_of(head)):
            return state_id
        if self._is_recovery(state_id) and self.log_of(head) <= self.log_of(known.previous):
            return state_id
        return head

    def _is_recovery(self, state_id: bytes) -> bool:
        """It follows a state of another log."""
        known = self.records[state_id]
        return known.previous in self.records and self.log_of(known.previous) != known.log_id

    def log_of(self, state_id: bytes) -> bytes:
        return ZERO if state_id == ZERO else self.records[state_id].log_id

    def line(self, state_id: bytes) -> dict[bytes, int]:
        """All states that led to this one, with their epochs."""
        known_line = self._lines.get(state_id)
        if known_line is not None:
            return known_line
        rest, asked = dict[bytes, int](), state_id
        while state_id != ZERO and state_id in self.records and state_id not in self._lines:
            known = self.records[state_id]
            rest[state_id] = known.epoch
            state_id = known.previous
        found = {**self._lines.get(state_id, {}), **rest}
        if len(self._lines) >= LINES_KEPT:
            del self._lines[next(iter(self._lines))]
        self._lines[asked] = found
        return found

    def epoch_of(self, state_id: bytes) -> int:
        return 0 if state_id == ZERO else self.records[state_id].epoch

    def winners(self) -> dict[int, Known]:
        """The history that the topic holds now, by epoch."""
        return {
            self.records[state_id].epoch: self.records[state_id]
            for state_id in self.line(self.head)
        }

    # -- answers --

    def decided(self, machine: "Machine", outcome: Outcome, *, noticed: bool) -> None:
        """A process says what became of a command."""
        if outcome.taken:
            self._world.releases.acts(machine, outcome.state_id, "an outcome")
            self._is_not_abandoned(machine, outcome.state_id, "an outcome", noticed=noticed)
        self.log.answered(outcome)

    def served(self, machine: "Machine", image: Image, *, noticed: bool) -> None:
        self._is_not_abandoned(machine, image.state_id, "a read", noticed=noticed)
        self._world.releases.acts(machine, image.state_id, "a read")

    def quiet(self, seconds: float = NOTICED_S) -> bool:
        """Return whether the topic was undisturbed for this time."""
        last_us = max(self._world.topic.faulted_us, self.recoveries.newest_us)
        return self._world.kernel.now_us - last_us > us(seconds)

    def has_read(self, machine: "Machine", image: Image, least: int, began_us: int) -> None:
        """I2: whatever was durable when it was asked for is in a read at level barrier or linearizable."""
        if not self.quiet((self._world.kernel.now_us - began_us) / 1e6):
            return
        self._world.demand(
            image.epoch >= least,
            READ,
            f"{machine.name} shows epoch {least} by what was durable when it was asked",
            f"it shows epoch {image.epoch}",
        )

    def _is_not_abandoned(
        self, machine: "Machine", state_id: bytes, what: str, *, noticed: bool
    ) -> None:
        self._world.demand(
            not noticed,
            ONE_HISTORY,
            f"{machine.name}, which has noticed that its log is lost, says no more",
            f"it gives {what} at epoch {self.epoch_of(state_id)}",
        )
        awake = self._world.kernel.now_us - machine.paused_until_us > us(WAKING_S)
        if not self.quiet() or not awake:
            return
        line = self.line(self.head)
        self._world.demand(
            state_id in line or state_id == ZERO,  # nothing at all is the beginning of each
            ONE_HISTORY,
            f"what {machine.name} gives is of the history that the topic holds, up to epoch"
            f" {self.epoch_of(self.head)}",
            f"{what} of epoch {self.epoch_of(state_id)}, {state_id.hex()}, is not in it",
        )

    def acknowledged(self, machine: "Machine", ack: Ack) -> None:
        """A node says what it has applied: of a history that is not abandoned."""
        self._is_not_abandoned(machine, ack.state_id, "an ack", noticed=False)
        self._world.older_disk_copies.acknowledges(machine.name)
        self.barriers.acknowledged(machine, ack)

    # -- what goes by the other topics --

    def sent(self, machine: "Machine", topic: str, key: str, value: bytes) -> None:
        """A process says something."""
        self._world.releases.sent(machine, topic, value)
        if topic.endswith(".acks"):
            ack = decode_ack(value)
            self.acknowledged(machine, ack)
            self._world.releases.acknowledged(machine, ack)
            self._world.streams.acknowledged(ack)
            self._world.agreement.sent(ack)
            self._world.holds.acknowledged(machine, ack)
        elif topic.endswith(".commands"):
            self.barriers.sends(machine, key)
            envelope = decode_envelope(value)
            self.log.asks(envelope)
            self._world.releases.asks(machine, envelope)

    def landed(self, _: "Machine", topic: str, key: str, value: bytes) -> None:
        """Everybody may read it from now on."""
        if topic.endswith(".outcomes"):
            outcome = decode_outcome(value)
            self.log.answered(outcome)
            if outcome.taken and outcome.state_id in self.line(self.head):
                self.promises.tells(outcome)
        elif topic.endswith(".acks"):
            ack = decode_ack(value)
            self._world.older_disk_copies.lands(ack)
            self._world.agreement.landed(ack)

    # -- what wins --

    def _step(self, epoch: Epoch) -> None:
        """One more winner."""
        before = self.image_of(self.records[self.head].previous)
        after = self._images[self.head] = evolve(before, epoch)
        self._world.trace(epoch_line(epoch, after))
        self._by_epoch[after.epoch] = after
        self._world.columns.changed(after)
        if self._world.kernel.now_us == 0:
            return
        if epoch.actor == BALANCER and epoch.request_id:  # parts of a decision have no request's id
            self.balanced_us = self._world.kernel.now_us
            self.balancing[epoch.command] += 1
        self.barriers.changed(before, after, epoch)
        self._world.releases.changed(before, after, epoch)
        self._world.backups.changed(before, after)
        self._world.step_faults.changed(before, after)
        self._world.rivals.changed(epoch)
        self._world.silences.changed(before, after, epoch)
        self._world.tablet_rows.changed(before, after)
        self._world.truncations.changed(before, after)
        self.on_step(before, after)
        self.log.check(before, after, epoch)
