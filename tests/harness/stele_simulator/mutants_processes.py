"""Known bugs of processes: services, the session guard and the router."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from stele import client
from stele.agent import identity
from stele.agent.agent import Agent
from stele.coordinator import rounds
from stele.coordinator.driver import Driver
from stele.coordinator.model import Observed, StepContext
from stele.coordinator.probes import ReplicaProbes
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.model.archive import Replica
from stele.domain.model.topology import ClaimCoordinator, Coordinator
from stele.domain.model.transitions import CoordinatorChanged
from stele.domain.registry import DECISIONS
from stele.domain.topology.barriers import Barrier
from stele.log.codec import decode_ack
from stele.router import over_http, router
from stele.router.over_http import ChangeEvent
from stele.router.router import Replicas, Router, StaleRoute
from stele.session_guard import guard
from stele.tablet_balancer.balancer import Balancer
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, planted

# Known bugs of the coordinator's and the balancer's shell, their questions, and nodes' acks, in
# whole processes.


@planted(RUN)
def resigned_leader_takes_the_newest_term_for_its_own(patch: Patch) -> None:
    """A former coordinator continues to send commands under the newest term of the log."""
    plain = Driver.seen

    def seen(self: Driver) -> Observed:
        term = self.image.topology.coordinator.term
        return msgspec.structs.replace(plain(self), term=term)

    patch.attribute(Driver, "seen", seen)
    patch.attribute(Driver, "active", property(lambda self: self.term > 0))
    patch.attribute(Driver, "_why_idle", lambda self: "")


@planted(RUN, rule="I5")
def silent_nodes_have_answered(patch: Patch) -> None:
    """A barrier is complete without the nodes that are silent, as if they were declared dead."""
    plain = rounds._barrier

    def counted(context: StepContext, epoch: int) -> Barrier:
        found = plain(context, epoch)
        awake = tuple(b for b in found.blockers if context.is_up(b.node_id))
        return msgspec.structs.replace(found, complete=not awake, blockers=awake)

    patch.function(plain, counted)


@planted(RUN, rule="I6")
def acks_come_before_the_disk(patch: Patch) -> None:
    """A node acknowledges a version before it is on its disk."""
    plain = Agent._sync

    async def later(self: Agent, image: Image) -> None:
        known, topology = self._directory.identity, image.topology
        told = msgspec.structs.replace(
            known.acknowledged, version=topology.version, fence_version=topology.fence_version
        )
        self._directory.identity = msgspec.structs.replace(known, acknowledged=told)
        self._ack()
        self._directory.identity = known
        await asyncio.sleep(0.01)
        await plain(self, image)

    patch.attribute(Agent, "_sync", later)


@planted(RUN, rule="I14")
def node_json_is_not_synced(patch: Patch) -> None:
    """An acknowledgement may be lost after a power failure."""
    patch.attribute(identity, "sync_file", lambda file: None)


@planted(RUN, rule="I10")
def replicas_are_always_heard(patch: Patch) -> None:
    """Silent replicas count as alive, so a dead member of the archive is never replaced."""

    async def epoch(self: ReplicaProbes, replica: Replica) -> int | None:
        return 1

    patch.attribute(ReplicaProbes, "_answer", epoch)


@planted(RUN, rule="13")
def balancers_hear_the_acks_of_the_log_before(patch: Patch) -> None:
    """A balancer takes acks for those of its log that are of the first one, whatever was recovered since."""
    plain = Balancer.on_ack
    first = list[bytes]()

    def on_ack(self: Balancer, value: bytes) -> None:
        ack = decode_ack(value)
        first.append(ack.log_id)
        if ack.log_id == first[0]:
            plain(self, value)

    patch.attribute(Balancer, "on_ack", on_ack)


@planted(RUN)
def term_is_claimed_twice(patch: Patch) -> None:
    """A claim of a term succeeds although another coordinator already holds it."""
    plain = DECISIONS[ClaimCoordinator]

    def claim_coordinator(context: Context, command: ClaimCoordinator) -> Decision:
        current = context.image.topology.coordinator
        if command.term == current.term and command.holder != current.holder:
            return (CoordinatorChanged(Coordinator(command.term, command.holder)),)
        found: Decision = plain(context, command)
        return found

    patch.item(DECISIONS, ClaimCoordinator, claim_coordinator)


# Known bugs of session guards and of those who ask them, in whole processes with a simulated
# Redis.


@planted(RUN)
def sessions_that_were_open_stay_so(patch: Patch) -> None:
    """A guard forgets no session."""
    plain, known = guard.open_sessions, set[str]()

    def ever(image: Image) -> tuple[str, ...]:
        known.update(plain(image))
        return tuple(sorted(known))

    patch.function(guard.open_sessions, ever)


# Planted bugs of the router, and of what a store's agent asks of the requests of clients.


@planted(RUN, rule="I10")
def requests_of_clients_are_not_held(patch: Patch) -> None:
    """A barrier passes while a client's request of the version before it is under way at the node."""
    patch.attribute(Agent, "hold", lambda self, version, data_id, token: None)
    patch.attribute(Agent, "release", lambda self, hold: None)


@planted(RUN)
def read_is_enough_by_one_answer(patch: Patch) -> None:
    """A client accepts the first answer to a read."""
    patch.attribute(Replicas, "read", lambda self, answers: bool(answers))


@planted(RUN)
def refusals_count_as_answers(patch: Patch) -> None:
    """A rejected write counts as an acknowledgement."""
    plain = router._call

    async def call(send: Any, place: Any, timeout_s: float) -> Any:
        try:
            return await plain(send, place, timeout_s)
        except StaleRoute:
            return b""

    patch.function(plain, call)


@planted(RUN, rule="I10")
def router_keeps_the_rows_it_has_met(patch: Patch) -> None:
    """Where a name's rows are is looked up once, and not again when the ring has changed."""

    def take(self: Router, image: Image) -> None:
        self._image = image
        self._wake()

    patch.attribute(Router, "take", take)


@planted(RUN, rule="I10")
def differences_bring_the_versions_alone(patch: Patch) -> None:
    """A router takes the newest version with the rows of before."""
    patch.function(over_http._ring, lambda ring, diff: ring)


@planted(RUN, rule="I10")
def router_steps_over_what_routes(patch: Patch) -> None:
    """No epoch is taken for one that may have moved a key."""
    patch.attribute(ChangeEvent, "routes", property(lambda self: False))


@planted(RUN, rule="I10")
def router_stays_with_a_log_that_was_given_up(patch: Patch) -> None:
    """A router whose state is of another history asks the next metadata-log instead."""
    patch.function(client.check, _away)


def _away(path: str, status: int, body: bytearray) -> None:
    if status != client.HTTP_OK:
        raise TimeoutError(path)
