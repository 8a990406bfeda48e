"""Acknowledgements of nodes are on their disks, and coordinators act on them correctly: as holders of the
newest term, and passing a barrier only when enough nodes have recorded the version or its fence.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from stele.agent.identity import Acknowledged, Identity
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.messages import Ack
from stele.domain.model.topology import Coordinator
from stele.domain.model.transitions import CoordinatorChanged, TopologyImage
from stele.domain.names import COORDINATOR, RequestKind

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.members import NodeMachine
    from stele_simulator.processes.witness import Witness
    from stele_simulator.processes.world import World

ONE_TERM: Final = "one coordinator has effects"
BARRIER: Final = "I5"
CLAIM: Final = "claim_coordinator"
OF_A_STATE: Final = "reconfigure_catch_up"
"""Requests that are rejected unless the archive is unchanged. They may arrive late, and the holder of the
term decides what follows.
"""

MOVES_NOTHING: Final = frozenset({RequestKind.REBUILD, RequestKind.TABLET_REPAIR})


class BarrierWitness:
    """Sees acks, who sends commands, and each winner; and looks at the disks of nodes."""

    def __init__(self, world: "World", witness: "Witness") -> None:
        self.passed = 0
        """Barriers whose passing was checked."""
        self._world = world
        self._witness = witness
        self._senders: dict[str, set[str]] = {}
        """Which machines have sent a command, by its request."""
        self._buried: dict[str, Acknowledged] = {}
        """By node whose disk was thrown away: what that had noted."""
        self._placed: dict[int, frozenset[str]] = {}
        """By version the placements that were there when it came."""
        self._claims = defaultdict[int, dict[bytes, str]](dict)
        """By term the states in which it began, with who holds it."""

    def sends(self, machine: "Machine", request_id: str) -> None:
        """A command."""
        self._senders.setdefault(request_id, set()).add(machine.name)

    def acknowledged(self, machine: "Machine", ack: Ack) -> None:
        """A node says what it has applied: it is on its platter."""
        told = _noted(machine)
        self._world.demand(
            (told.version, told.fence_version) >= (ack.version, ack.fence_version),
            "I6",
            f"{machine.name} has version {ack.version} and fence {ack.fence_version} on its disk before it"
            " tells them",
            f"it has {told.version} and {told.fence_version}",
        )
        image = self._witness.image_at(ack.state_id)
        rows = image.membership.nodes.values() if image is not None else ()
        excluded = max((row.excluded_since for row in rows), default=0)
        self._world.demand(
            told.epoch >= excluded,
            "I6",
            f"{machine.name} has the exclusion of epoch {excluded} on its disk before it acknowledges that",
            f"it has epoch {told.epoch}",
        )

    def buries(self, machine: "NodeMachine") -> None:
        """Forget the disk of a node. Its earlier acknowledgements stay true."""
        self._buried[machine.node_id] = _noted(machine)

    def changed(self, before: Image, after: Image, epoch: Epoch) -> None:
        """One more winner."""
        is_part = not epoch.request_id  # the commit of a decision has its request's id
        if epoch.actor == COORDINATOR and epoch.command != CLAIM and not is_part:
            self._is_of_the_holder(before, epoch)
        for fact in epoch.facts:
            if isinstance(fact, CoordinatorChanged):
                self._is_a_new_term(fact.coordinator, epoch)
        self._passes(before.topology, after.topology, before)

    def _is_a_new_term(self, claimed: Coordinator, epoch: Epoch) -> None:
        """Check that a term is claimed once in a history. Its holder keeps it."""
        head = self._witness.head
        line, claims = self._witness.line(head), self._claims[claimed.term]
        others = [f"{holder} in epoch {line[at]}" for at, holder in claims.items() if at in line]
        claims[head] = claimed.holder
        self._world.demand(
            not others,
            ONE_TERM,
            f"term {claimed.term} has one holder for good, {', '.join(others)}",
            f"epoch {epoch.epoch} gives it to {claimed.holder}",
        )

    def _is_of_the_holder(self, before: Image, epoch: Epoch) -> None:
        """Check that an effective command of a coordinator came from the holder of the newest term, or was
        bound to a state.
        """
        holder, senders = before.topology.coordinator.holder, self._senders.get(epoch.request_id)
        self._world.demand(
            bool(senders) and (holder in (senders or ()) or epoch.command == OF_A_STATE),
            ONE_TERM,
            f"epoch {epoch.epoch}, {epoch.command}, was sent by {holder}, who holds the term",
            f"it was sent by {sorted(senders or ())}",
        )

    def _passes(self, old: TopologyImage, new: TopologyImage, before: Image) -> None:
        """Check that a version, or its fence, passed with enough nodes that have it on disk. Where all nodes
        have the version its fence is not needed.
        """
        is_fenced, version = new.fence_version > old.fence_version, old.version
        if new.version != version:
            self._placed[new.version] = frozenset(before.ring.placements)
        if new.version == version and not is_fenced:
            return
        lacking = [
            node_id
            for node_id in before.membership.taking_part()
            if not self._has_noted(node_id, before, version, 0)
        ]
        self.passed += 1
        if is_fenced and new.version != version:
            self._world.holds.drained(before.membership.taking_part().keys(), version)
        if not lacking:
            return
        self._world.demand(
            new.version == version or not is_fenced,
            BARRIER,
            f"everybody has version {version} on the disk when the next one comes with its fence",
            f"{', '.join(lacking)} have not",
        )
        self._demand_quorums(before, version, 0 if is_fenced else version)

    def _demand_quorums(self, before: Image, version: int, fence: int) -> None:
        """Check that for each moving range no quorum of old or new replicas is without this version.
        Processes that route by a later placement know this version.
        """
        excluded = before.membership.excluded()
        for transition in before.topology.open():
            if transition.entered_version != version or transition.mark:
                continue  # what is being undone was read from the replicas before all the time
            if transition.kind in MOVES_NOTHING:
                continue  # rows keep their replicas, and so do processes that route by them
            placed = self._placed.get(version, transition.plans.keys())
            plans = (plan for name, plan in transition.plans.items() if name in placed)
            for row in (row for plan in plans for row in plan.rows):
                for replicas in (row.old, row.new):
                    if excluded.isdisjoint(replicas):
                        self._demand_quorum(replicas, before, version, fence)

    def _demand_quorum(
        self, replicas: Sequence[str], before: Image, version: int, fence: int
    ) -> None:
        having = [each for each in replicas if self._has_noted(each, before, version, fence)]
        self._world.demand(
            2 * (len(replicas) - len(having)) <= len(replicas),
            BARRIER,
            f"no quorum of {', '.join(replicas)} is without version {version} and fence {fence} on its disks"
            " when that barrier is passed",
            f"{having or 'none of them'} have them",
        )

    def _has_noted(self, node_id: str, before: Image, version: int, fence: int) -> bool:
        """In the history of ``before``; or in one that was lost, where this version was the same one."""
        machine = next((each for each in self._world.nodes if each.node_id == node_id), None)
        told = self._buried.get(node_id) if machine is None else _noted(machine)
        if told is None:
            return False
        has = (told.version, told.fence_version)
        state_id, line = bytes.fromhex(told.state_id), self._witness.line(self._witness.head)
        while state_id in self._witness.records and state_id not in line:
            # It has acknowledged what was lost meanwhile, and before that what is not.
            # A creation is noted at its own epoch, which was never the newest if more came with it.
            image = self._witness.image_at(state_id)
            if image is not None and _is_same(image, before):
                break
            state_id = self._witness.records[state_id].previous
            if earlier := self._witness.image_at(state_id):
                topology = earlier.topology
                has = (min(has[0], topology.version), min(has[1], topology.fence_version))
        return state_id in self._witness.records and has[0] >= version and has[1] >= fence


def _is_same(one: Image, other: Image) -> bool:
    """Return whether moves, progress and acknowledgements of one version are the same."""
    if one.topology.version != other.topology.version:
        return False
    moving = [
        [(each.transition_id, each.state, bool(each.mark)) for each in image.topology.open()]
        for image in (one, other)
    ]
    return moving[0] == moving[1] and one.ring == other.ring


def _noted(machine: "Machine") -> Acknowledged:
    """Return the acknowledged state of a node as its disk has it after a power failure."""
    kept = machine.disk.on_platter.get("/data/node.json")
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(b"" if kept is None else kept.synced, type=Identity).acknowledged
    return Acknowledged()
