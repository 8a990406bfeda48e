"""What must hold whatever is lost, checked from the bytes in the topic and what processes answer.

Two states are of one history when the one leads to the other by the state ids in the records. Nothing of
production's rules is asked: not who wins, not which history is chosen, not what is lost.
"""

import io
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from stele.agent.identity import Acknowledged, Identity
from stele.domain.commands import Outcome
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.messages import Ack
from stele.domain.names import BALANCER, COORDINATOR
from stele.domain.topology.image import TopologyImage
from stele.log.archive.container import Container, DamagedFileError
from stele.log.codec import decode_ack, decode_envelope, decode_epoch, decode_outcome
from stele.sim.kernel import us
from stele.sim.processes.disk import Disk
from stele.sim.processes.epochs import EpochWitness, epoch_line

if TYPE_CHECKING:
    from stele.sim.processes.guards import Work
    from stele.sim.processes.machine import Machine
    from stele.sim.processes.members import NodeMachine
    from stele.sim.processes.world import World

ZERO: Final = bytes(16)
HEAD: Final = Struct(">10x16s16s16s16sQQ")
"""The first 90 bytes of a record: ids before and after, of the log and of the witness; epoch and witness."""
NOTICED_S: Final = 14.0
"""Whoever runs has noticed by then that its log is gone: ten seconds without a look, and a slow one."""
WAKING_S: Final = 2.0
HOLDS: Final = "what anybody held is in the new history"
ONE_HISTORY: Final = "nobody serves an abandoned history"
ONE_OUTCOME: Final = "I2"
MAJORITY: Final = "nothing is deleted that no majority has"
ONE_TERM: Final = "one coordinator has effects"
BARRIER: Final = "I5"
PERMITTED: Final = "nothing stale is permitted"
PERMITTED_DRIFT: Final = 1.01
"""Clocks of those who prove, show and ask go up to a thousandth too fast or slow."""
PERMITTED_SLACK_S: Final = 0.1
HEADS_KEPT: Final = 2000
LINES_KEPT: Final = 8
CLAIM: Final = "claim_coordinator"


class Known(NamedTuple):
    """A record that was in the topic once."""

    previous: bytes
    epoch: int
    log_id: bytes
    value: bytes


class Held(NamedTuple):
    """What somebody said that it has, when it was asked: up to ``state_id``, from epoch ``first`` on."""

    state_id: bytes
    first: int
    is_archive: bool


class Promise(NamedTuple):
    """An outcome that a client was told."""

    outcome: Outcome
    at_us: int


class Asked:
    """What the operator was answered: who held what."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.taken = ""
        """The machine whose history the operator took, where there were two."""


class Witness:
    """Sees the topic, every answer, and the disks."""

    def __init__(self, world: "World") -> None:
        self.checks = 0
        self.records: dict[bytes, Known] = {}
        self.head = ZERO
        """The newest state of the history that the topic holds now."""
        self.promises: dict[str, Promise] = {}
        self.excused: set[str] = set()
        """Requests whose outcome nobody had any more who was asked."""
        self.asked: list[Asked] = []
        """Since the topic was hurt the last time."""
        self.recoveries: list[bytes] = []
        self.lost_epochs = 0
        self.recovered_us = -us(3600)
        self.served_held: dict[str, Held] = {}
        self.log = EpochWitness(world)
        self._world = world
        self._heads: list[bytes] = []
        """By place in the topic: the head after that record."""
        self._base = ZERO
        self._remembered: dict[str, tuple[int, bytes]] = {}
        """What processes had read when the topic was hurt, and how often they had been killed."""
        self._hurt_after: list[bytes] = []
        self._head_when_hurt = ZERO
        self._forgotten: set[bytes] = set()
        self._heads_since: deque[tuple[int, bytes]] = deque(maxlen=HEADS_KEPT)
        """From which time on the topic had which head."""
        self._lines: dict[bytes, dict[bytes, int]] = {}
        self._images: dict[bytes, Image] = {ZERO: EMPTY}
        """What follows from the records, by state."""
        self._senders: dict[str, set[str]] = {}
        """Which machines have sent a command, by its request."""
        self.balanced_us = -us(3600)
        """When the balancer had its last effect."""
        self.balancing = Counter[str]()
        """How often which of its commands had one."""
        self._buried: dict[str, Acknowledged] = {}
        """By node whose disk was thrown away: what that had noted."""
        self.on_step: Callable[[Image, Image], None] = lambda before, after: None
        """Called with the images before and after each winner."""
        self.permissions = 0
        self.passed = 0
        self._placed: dict[int, frozenset[str]] = {}
        """By version the placements that were there when it came."""
        """Barriers whose passing was checked."""

    @property
    def image(self) -> Image:
        """What follows from the history that the topic holds now."""
        return self._images[self.head]

    def image_at(self, state_id: bytes) -> Image | None:
        """What follows from the records up to this state, if it was ever the newest."""
        return self._images.get(state_id)

    def members(self) -> tuple[str, ...]:
        """Of the archive."""
        return tuple(self.image.archive.members())

    # -- the topic --

    def durable(self, offset: int, value: bytes) -> None:
        previous, state_id, log_id, _, epoch, _ = HEAD.unpack_from(value)
        self.records.setdefault(state_id, Known(previous, epoch, log_id, value))
        before, after = self.head, self._after(self.head, state_id)
        for each in self._unknown_up_to(after):
            self.head = each
            self._step(decode_epoch(self.records[each].value))
        self.head = after
        self._heads.append(self.head)
        self._head_changes()
        if self.head != before and self._is_recovery(state_id) and state_id not in self.recoveries:
            self._recovered(state_id)

    def _unknown_up_to(self, state_id: bytes) -> list[bytes]:
        """The states up to this one that were never the newest, in order. Several are those of a recovery: a
        reader goes on behind a winner that the topic has lost, when the next one lands where it reads.
        """
        found = list[bytes]()
        while state_id not in self._images:
            found.append(state_id)
            state_id = self.records[state_id].previous
        return found[::-1]

    def deleted_before(self, count: int) -> None:
        """So many records are gone from the topic's beginning."""
        if count:
            self._base = self._heads[count - 1]
            del self._heads[:count]

    def hurt(self, left: int, *, anew: bool) -> None:
        """Only the first ``left`` records are there."""
        self._head_when_hurt = self.head
        if anew:
            self._base = ZERO
        del self._heads[left:]
        self.head = self._heads[-1] if self._heads else self._base
        self._head_changes()
        self.asked = []
        self._hurt_after = [*self.recoveries]
        self._remembered = {
            machine.name: (machine.kills, machine.image.state_id)
            for machine in self._world.machines.values()
            if machine.alive and machine.image is not None
        }
        lost = self.line(self._head_when_hurt).keys() - self.line(self.head).keys()
        kernel = self._world.kernel
        kernel.at(kernel.now_us, None, self._who_is_left_with, lost)

    def _who_is_left_with(self, lost: Set[bytes]) -> None:
        """Whoever dies in the moment in which the topic is hurt is dead by now. What nobody has any more nobody
        can miss: the log goes on without it.
        """
        world, found = self._world, set[bytes]()
        for machine in world.machines.values():
            if machine.alive and machine.image is not None:
                found |= self.line(machine.image.state_id).keys()
        for replica in world.replicas:
            for content in _segments(replica.disk):
                found.update(_states_in(content).values())
        forgotten = lost - found
        if forgotten:
            world.trace(f"{len(forgotten)} epochs are lost, and nobody has them any more")
            world.ages_end()
            self._forgotten |= forgotten

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

    # -- recovery --

    def serves(self, machine: "Machine", path: str) -> None:
        """Somebody tells what it has."""
        if path == "/v1/history":
            keeper = getattr(machine, "keeper", None)
            states = keeper.archive.states(1) if keeper is not None else {}
            if states:
                self.served_held[machine.name] = Held(states[max(states)], 1, is_archive=True)
        elif path == "/v1/recent":
            image = machine.image
            if image is not None and image.epoch:
                first = machine.began_at + 1
                self.served_held[machine.name] = Held(image.state_id, first, is_archive=False)

    def _recovered(self, state_id: bytes) -> None:
        """The log goes on as another one: what of the old one was there to be had must be in it."""
        world = self._world
        self.recoveries.append(state_id)
        self.recovered_us = world.kernel.now_us
        line = self.line(state_id)
        known = self.records[state_id]
        world.trace(f"the log goes on as {known.log_id.hex()} with epoch {known.epoch}")
        if self._head_when_hurt not in line:
            world.ages_end()
        lost = [
            (request_id, promise)
            for request_id, promise in self.promises.items()
            if promise.outcome.state_id not in line and request_id not in self.excused
        ]
        world.trace(f"{len(lost)} outcomes that were told are not in it")
        for request_id, promise in lost:
            holders = [self._holders(asked, promise.outcome.state_id) for asked in self.asked]
            self.checks += 1
            self._world.demand(
                not self.asked or not all(holders),
                HOLDS,
                f"epoch {promise.outcome.epoch} of request {request_id}, which a client was told, is in"
                f" the log that goes on with epoch {known.epoch}",
                f"it is not, though {sorted({each for one in holders for each in one})} had it",
            )
            self.excused.add(request_id)
            self.lost_epochs += 1

    def _holders(self, asked: Asked, state_id: bytes) -> list[str]:
        """Who said that it has this state, of those whose history counts."""
        newest = max((self.log_of(each.state_id) for each in asked.held.values()), default=ZERO)
        lines = {
            name: self.line(held.state_id)
            for name, held in asked.held.items()
            if self.log_of(held.state_id) == newest and self._can_be_had(held, asked)
        }
        if asked.taken:
            lines = {name: line for name, line in lines.items() if name == asked.taken}
        return sorted(name for name, line in lines.items() if state_id in line)

    def answered(self, name: str, held: Held) -> None:
        """Whoever was not killed since the topic was hurt has what it had read; or the topic has it still."""
        kills, state_id = self._remembered.get(name, (-1, ZERO))
        machine = self._world.machines[name]
        if kills != machine.kills or state_id == ZERO or self.recoveries != self._hurt_after:
            return
        self.checks += 1
        self._world.demand(
            state_id in self.line(held.state_id) or state_id in self.line(self.head),
            HOLDS,
            f"{name}, which was not killed, has epoch {self.epoch_of(state_id)}, as when the topic was hurt",
            f"it tells of epoch {self.epoch_of(held.state_id)}",
        )

    def _can_be_had(self, held: Held, asked: Asked) -> bool:
        """An archive has the image; what a process has follows some archive's."""
        if held.is_archive:
            return True
        line = self.line(held.state_id)
        return any(
            each.is_archive and line.get(each.state_id, -1) >= held.first - 1
            for each in asked.held.values()
        )

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

    def told(self, outcome: Outcome) -> None:
        """A client has its answer."""
        before, line = self.promises.get(outcome.request_id), self.line(self.head)
        if before is not None and {before.outcome.state_id, outcome.state_id} <= line.keys():
            self.checks += 1
            same = (before.outcome.applied, before.outcome.epoch)
            self._world.demand(
                same == (outcome.applied, outcome.epoch),
                ONE_OUTCOME,
                f"request {outcome.request_id} has one outcome, {same}",
                f"({outcome.applied}, {outcome.epoch}) is told later",
            )
        self.promises[outcome.request_id] = Promise(outcome, self._world.kernel.now_us)
        if outcome.state_id in line:
            self.excused.discard(outcome.request_id)
        elif self._is_just_given_up(outcome.state_id):
            self.excused.add(outcome.request_id)

    def _is_just_given_up(self, state_id: bytes) -> bool:
        """It was on its way to the client when a recovery, which may be by force, went on without it."""
        now_us, topic = self._world.kernel.now_us, self._world.topic
        is_newest = self.recovered_us >= topic.faulted_us and bool(self.recoveries)
        log_id = self.log_of(state_id)
        return (
            is_newest
            and now_us - self.recovered_us <= us(NOTICED_S)
            and log_id < self.log_of(self.recoveries[-1])
        )

    def newest_promise(self) -> int:
        """The newest epoch of the log of now that any client was told."""
        line = self.line(self.head)
        return max((line.get(p.outcome.state_id, 0) for p in self.promises.values()), default=0)

    def quiet(self, seconds: float = NOTICED_S) -> bool:
        """Nothing has happened to the topic for so long."""
        last_us = max(self._world.topic.faulted_us, self.recovered_us)
        return self._world.kernel.now_us - last_us > us(seconds)

    def has_read(self, machine: "Machine", image: Image, least: int, began_us: int) -> None:
        """I2: whatever was durable when it was asked for is in a read at level barrier or linearizable."""
        if not self.quiet((self._world.kernel.now_us - began_us) / 1e6):
            return
        self.checks += 1
        self._world.demand(
            image.epoch >= least,
            ONE_OUTCOME,
            f"{machine.name} shows epoch {least} by what was durable when it was asked",
            f"it shows epoch {image.epoch}",
        )

    def _is_not_abandoned(
        self, machine: "Machine", state_id: bytes, what: str, *, noticed: bool
    ) -> None:
        self.checks += 1
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
            state_id in line,
            ONE_HISTORY,
            f"what {machine.name} gives is of the history that the topic holds, up to epoch"
            f" {self.epoch_of(self.head)}",
            f"{what} of epoch {self.epoch_of(state_id)}, {state_id.hex()}, is not in it",
        )

    def acknowledged(self, machine: "Machine", ack: Ack) -> None:
        """A node says what it has applied: it is on its platter, and of a history that is not abandoned."""
        self._is_not_abandoned(machine, ack.state_id, "an ack", noticed=False)
        told = _noted(machine)
        self.checks += 1
        self._world.demand(
            (told.version, told.fence_version) >= (ack.version, ack.fence_version),
            "I6",
            f"{machine.name} has version {ack.version} and fence {ack.fence_version} on its disk before it"
            " tells them",
            f"it has {told.version} and {told.fence_version}",
        )

    # -- what goes by the other topics --

    def sent(self, machine: "Machine", topic: str, key: str, value: bytes) -> None:
        """A process says something."""
        self._world.releases.sent(machine, topic, value)
        if topic.endswith(".acks"):
            ack = decode_ack(value)
            self.acknowledged(machine, ack)
            self._world.releases.acknowledged(machine, ack)
            self._world.streams.acknowledged(ack)
            self._world.holds.acknowledged(machine, ack)
        elif topic.endswith(".commands"):
            self._senders.setdefault(key, set()).add(machine.name)
            envelope = decode_envelope(value)
            self.log.asks(envelope)
            self._world.releases.asks(machine, envelope)

    def landed(self, _: "Machine", topic: str, key: str, value: bytes) -> None:
        """Everybody may read it from now on."""
        if topic.endswith(".outcomes"):
            outcome = decode_outcome(value)
            self.log.answered(outcome)
            if outcome.taken and outcome.state_id in self.line(self.head):
                self.told(outcome)

    # -- what coordinators do --

    def _step(self, epoch: Epoch) -> None:
        """One more winner."""
        before = self._images[self.records[self.head].previous]
        after = self._images[self.head] = evolve(before, epoch)
        self._world.trace(epoch_line(epoch, after))
        if self._world.kernel.now_us == 0:
            return
        is_part = not epoch.request_id  # the commit of a decision has its request's id
        if epoch.actor == COORDINATOR and epoch.command != CLAIM and not is_part:
            self._is_of_the_holder(before, epoch)
        if epoch.actor == BALANCER and not is_part:
            self.balanced_us = self._world.kernel.now_us
            self.balancing[epoch.command] += 1
        self._passes(before.topology, after.topology, before)
        self._world.releases.changed(before, after, epoch)
        self._world.backups.changed(before, after)
        self._world.traps.changed(before, after)
        self._world.tablet_rows.changed(before, after)
        self._world.truncations.changed(before, after)
        self.on_step(before, after)
        self.checks += 1
        self.log.check(before, after, epoch)

    def _is_of_the_holder(self, before: Image, epoch: Epoch) -> None:
        """Whatever a coordinator has an effect with, it sent as the holder of the newest term."""
        holder, senders = before.topology.coordinator.holder, self._senders.get(epoch.request_id)
        self.checks += 1
        self._world.demand(
            bool(senders) and holder in (senders or ()),
            ONE_TERM,
            f"epoch {epoch.epoch}, {epoch.command}, was sent by {holder}, who holds the term",
            f"it was sent by {sorted(senders or ())}",
        )

    def _passes(self, old: TopologyImage, new: TopologyImage, before: Image) -> None:
        """A version, or its fence, was passed: so many nodes have it on their disks as that takes. Where all
        have the version nobody needs its fence.
        """
        is_fenced, version = new.fence_version > old.fence_version, old.version
        if new.version != version:
            self._placed[new.version] = frozenset(before.ring.placements)
        if new.version == version and not is_fenced:
            return
        lacking = [
            node_id
            for node_id in before.membership.taking_part()
            if not self._has_noted(node_id, version, 0)
        ]
        self.passed += 1
        if is_fenced and new.version != version:
            self._world.holds.drained(before.membership.taking_part().keys(), version)
        if not lacking:
            return
        self.checks += 1
        self._world.demand(
            new.version == version or not is_fenced,
            BARRIER,
            f"everybody has version {version} on the disk when the next one comes with its fence",
            f"{', '.join(lacking)} have not",
        )
        self._demand_quorums(before, version, 0 if is_fenced else version)

    def _demand_quorums(self, before: Image, version: int, fence: int) -> None:
        """Of each range that moves by this version: no quorum of those who have it is left without it, and none
        of those who get it. Who routes by a placement that came later knows this version.
        """
        excluded = before.membership.excluded()
        for transition in before.topology.open():
            if transition.entered_version != version or transition.mark:
                continue  # what is being undone was read from the replicas before all the time
            placed = self._placed.get(version, transition.plans.keys())
            plans = (plan for name, plan in transition.plans.items() if name in placed)
            for row in (row for plan in plans for row in plan.rows):
                for replicas in (row.old, row.new):
                    if excluded.isdisjoint(replicas):
                        self._demand_quorum(replicas, version, fence)

    def _demand_quorum(self, replicas: Sequence[str], version: int, fence: int) -> None:
        having = [each for each in replicas if self._has_noted(each, version, fence)]
        self.checks += 1
        self._world.demand(
            2 * (len(replicas) - len(having)) <= len(replicas),
            BARRIER,
            f"no quorum of {', '.join(replicas)} is without version {version} and fence {fence} on its disks"
            " when that barrier is passed",
            f"{having or 'none of them'} have them",
        )

    def _has_noted(self, node_id: str, version: int, fence: int) -> bool:
        machine = next((each for each in self._world.nodes if each.node_id == node_id), None)
        told = self._buried.get(node_id) if machine is None else _noted(machine)
        if told is None:
            return False
        has = (told.version, told.fence_version)
        state_id, line = bytes.fromhex(told.state_id), self.line(self.head)
        while state_id in self.records and state_id not in line:
            # It has acknowledged what was lost meanwhile, and before that what is not.
            state_id = self.records[state_id].previous
            topology = self._images[state_id].topology
            has = (min(has[0], topology.version), min(has[1], topology.fence_version))
        return state_id in line and has[0] >= version and has[1] >= fence

    def buries(self, machine: "NodeMachine") -> None:
        """Its disk is thrown away. What it had acknowledged until then was true."""
        self._buried[machine.node_id] = _noted(machine)

    # -- what is permitted --

    def _head_changes(self) -> None:
        self._heads_since.append((self._world.kernel.now_us, self.head))

    def permitted(self, machine: "Machine", work: "Work", began_us: int, limit_s: float) -> None:
        """Somebody was told that his work may go on: so it was by some state of the log within the limit before
        he asked, or since.
        """
        if not self.quiet():
            return
        since_us = began_us - us(limit_s * PERMITTED_DRIFT + PERMITTED_SLACK_S)
        self.permissions += 1
        self.checks += 1
        states = list[bytes]()
        for at_us, head in reversed(self._heads_since):
            states.append(head)
            if at_us <= since_us:
                break
        self._world.demand(
            any(self._permits(head, work) for head in states),
            PERMITTED,
            f"work of version {work.version} and session '{work.session}' of log {work.log_id}, which"
            f" {machine.name} was permitted, could go on by a state of the last {limit_s} s",
            f"none of {len(states)} states up to epoch {self.epoch_of(self.head)} permits it",
        )

    def _permits(self, head: bytes, work: "Work") -> bool:
        if self.log_of(head).hex() != work.log_id:
            return False
        topology = self._images[head].topology
        if 0 <= work.version < topology.fence_version:
            return False
        return not work.session or any(t.session == work.session for t in topology.open())

    # -- what is deleted --

    def truncates(self, machine: "Machine", offset: int) -> None:
        """Records before ``offset`` go: most members have their epochs on the disk."""
        topic = self._world.topic
        count = min(offset, topic.high) - topic.begin
        if count <= 0:
            return
        kept = self.line(self.head)
        there = self.line(self._heads[count - 1])
        gone = self.line(self._base)
        line = {
            epoch: state_id
            for state_id, epoch in there.items()
            if state_id in kept and state_id not in gone
        }
        self.deleted_before(count)
        members = [each for each in self._world.replicas if each.name in self.members()]
        having = [
            each.name for each in members if not each.lost_its_disk and self._has(each.disk, line)
        ]
        needed = len(members) // 2 + 1 - sum(each.lost_its_disk for each in members)
        self.checks += 1
        self._world.demand(
            len(having) >= needed,
            MAJORITY,
            f"{needed} of {len(members)} members have epochs {min(line, default=0)} to"
            f" {max(line, default=0)} on"
            f" their disks when {machine.name} deletes them",
            f"{having} have",
        )

    def _has(self, disk: Disk, line: dict[int, bytes]) -> bool:
        """All of these epochs are in files that a power failure leaves."""
        found: dict[int, bytes] = {}
        for content in _segments(disk):
            found |= _states_in(content)
        return all(found.get(epoch) == state_id for epoch, state_id in line.items())

    # -- the end --

    def winners(self) -> dict[int, Known]:
        """The history at the end, by epoch."""
        return {
            self.records[state_id].epoch: self.records[state_id]
            for state_id in self.line(self.head)
        }

    def check_promises(self) -> None:
        """What clients were told is in the history at the end, but for what nobody had any more."""
        winners, line = self.winners(), self.line(self.head)
        applied: dict[str, int] = {}
        for number, known in sorted(winners.items()):
            epoch = decode_epoch(known.value)
            if epoch.request_id:
                self.checks += 1
                self._world.demand(
                    epoch.request_id not in applied,
                    ONE_OUTCOME,
                    f"request {epoch.request_id} is applied once, in epoch"
                    f" {applied.get(epoch.request_id)}",
                    f"it is in epoch {number} too",
                )
                applied[epoch.request_id] = number
        for request_id, promise in self.promises.items():
            outcome = promise.outcome
            if outcome.state_id not in line:
                self._world.demand(
                    request_id in self.excused or outcome.state_id in self._forgotten,
                    HOLDS,
                    f"the outcome of request {request_id}, told as epoch {outcome.epoch}, is in the"
                    " history at the end",
                    "it is not, and no recovery lost it",
                )
                continue
            self.checks += 1
            told = outcome.epoch if outcome.applied else None
            rewritten = applied.get(request_id) != told and (
                not outcome.applied or applied.get(request_id) is not None
            )
            self._world.demand(
                not rewritten,
                ONE_OUTCOME,
                f"request {request_id} was {'applied' if outcome.applied else 'refused'} in epoch"
                f" {outcome.epoch}, as its client was told",
                f"it is applied in epoch {applied.get(request_id)}",
            )


def _noted(machine: "Machine") -> Acknowledged:
    """What a node has acknowledged, as its disk would tell after a power failure."""
    kept = machine.disk.on_platter.get("/data/node.json")
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(b"" if kept is None else kept.synced, type=Identity).acknowledged
    return Acknowledged()


def _segments(disk: Disk) -> Iterator[bytes]:
    """An archive's files, as a power failure leaves them."""
    for name, content in disk.on_platter.items():
        if name.startswith("/data/segments/") and name.endswith(".avro"):
            yield content.synced


@lru_cache(maxsize=512)
def _states_in(content: bytes) -> dict[int, bytes]:
    """State ids by epoch that a segment's file tells, up to where it is damaged."""
    found: dict[int, bytes] = {}
    with suppress(DamagedFileError):
        container = Container(io.BytesIO(content), "ArchivedRecord")
        for record in container.records(container.blocks()):
            _, state_id, _, _, epoch, _ = HEAD.unpack_from(record["value"])
            found[epoch] = state_id
    return found
