"""State of one call of ``next_steps``: its input, and its output so far."""

from functools import cached_property
from hashlib import blake2b

import msgspec
from immutables import Map

from stele.coordinator.knowledge import (
    Limits,
    Memory,
    Observed,
    Patience,
    Plans,
    Prospect,
    SentCommand,
    Steps,
    Wait,
)
from stele.domain.acks import Barrier, Blocker, barrier
from stele.domain.commands import AnyCommand, Envelope, Rejection, command_name
from stele.domain.commits.restricted import restricted_text, takes_from
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.names import COORDINATOR, RequestKind
from stele.domain.requests.ids import asking_ms, uuid8
from stele.domain.requests.model import Request
from stele.domain.requests.not_taken import OF_THE_ID, horizon_of
from stele.domain.topology.limits import ON_UNRESPONSIVE, WAIT
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import Planned, locks, needs, plan_group
from stele.domain.topology.waits import WaitKind

replace = msgspec.structs.replace


class Desk:
    """Collects commands, orders and waits; ``memory`` is the input of the next call."""

    def __init__(self, memory: Memory, seen: Observed, limits: Limits) -> None:
        self.memory = memory
        self.seen = seen
        self.limits = limits
        self.commands: list[Envelope] = []
        self.orders: list[Order] = []
        self.waits: list[Wait] = []
        self.counted_at = ""
        """The level at which the present version's barrier was passed; empty if all members had
        answered.
        """
        if memory.plans.image is not seen.image:
            self.remember(plans=Plans(seen.image))

    def steps(self) -> Steps:
        """Return the collected steps, each wait with its start."""
        now_s, met = self.seen.now_s, self.memory.met
        waits = tuple(replace(w, since_s=met.get(w.key(), now_s)) for w in self.waits)
        self.remember(met=Map({wait.key(): wait.since_s for wait in waits}))
        return Steps(self.memory, tuple(self.commands), tuple(self.orders), waits)

    def remember(self, **changes: object) -> None:
        self.memory = replace(self.memory, **changes)

    def wait(
        self,
        kind: WaitKind,
        what: str,
        blockers: tuple[Blocker, ...] = (),
        requests: tuple[str, ...] = (),
        patience: Patience | None = None,
        other_request: str = "",
        detail: str = "",
        eta_s: float | None = None,
    ) -> None:
        wait = Wait(
            requests, what, blockers, kind, patience, other_request, detail=detail, eta_s=eta_s
        )
        self.waits.append(wait)

    def refused(self, command: AnyCommand) -> int:
        """Return how often the log refused this command in this round; 0 if only its id was not
        taken.
        """
        sent = self.memory.commands.get(repr(command))
        refusal = _refusal(sent, self.seen)
        is_of_the_id = refusal is not None and refusal.code in OF_THE_ID
        return 0 if is_of_the_id else _refused(sent, self.seen)

    def refusal(self, command: AnyCommand) -> Rejection | None:
        """Return the log's newest refusal of this command in this round; None if only its id was
        not taken.
        """
        refusal = _refusal(self.memory.commands.get(repr(command)), self.seen)
        return None if refusal is None or refusal.code in OF_THE_ID else refusal

    def why_refused(self, command: AnyCommand) -> str:
        """Return the newest refusal as the end of a sentence; empty if there is none."""
        return _why(self.memory.commands.get(repr(command)), self.seen)

    def submit(self, command: AnyCommand, requests: tuple[str, ...] = (), why: str = "") -> None:
        """Send a command, again with the same id until the log shows its effect or its refusal.

        While the log does not take it nothing is sent, and all other work continues. A refusal is
        final for its id, so the next attempt has another one (docs/design.md, rule 4).
        """
        seen, memory, key = self.seen, self.memory, repr(command)
        sent = memory.commands.get(key)
        name = command_name(command)
        if not takes_from(seen.image.commits, COORDINATOR):
            restricted = restricted_text(seen.image.commits)
            self.wait(WaitKind.RESTRICTED, f"{name} to be taken", (), requests, detail=restricted)
            return
        # The wait is recorded even if nothing is sent now: the command still lacks its effect.
        sent_s = seen.now_s if sent is None else sent.at_s
        patience = Patience(sent_s, self.limits.resend_s, "STELE_RESEND_S", "it is sent again")
        what = f"{name} to be applied{_why(sent, seen)}"
        self.wait(WaitKind.LOG, what, requests=requests, patience=patience)
        if sent is not None and seen.now_s - sent.at_s < self.limits.resend_s:
            return
        refused = _refused(sent, seen)
        # A repeat keeps its id, so the log applies it once. A refused id would return the same
        # refusal.
        again = sent is not None and sent.refused == refused
        envelope = Envelope(
            request_id=sent.request_id
            if sent is not None and again
            else self._new_id(refused, key),
            command=command,
            actor=COORDINATOR,
            reason=why or f"term {seen.term}",
        )
        newest = SentCommand(envelope.request_id, seen.now_s, refused)
        self.remember(commands=memory.commands.set(key, newest))
        self.commands.append(envelope)

    def _new_id(self, refused: int, key: str) -> str:
        """Return a UUIDv8 from the time of the image's state, and a hash of that state and of the
        command.

        If the log forgot ids that were ahead of its newest state, all ids with that state's time
        are too old. The refusal of such an id contains the horizon, and the new id is later than
        that.
        """
        image: Image = self.seen.image
        unique = f"{image.cluster_id}/{self.memory.round}/{refused}/{key}".encode()
        # No randomness: after a crash the next coordinator must compute the same id (rule 4).
        digest = blake2b(image.state_id + unique, digest_size=16).digest()
        horizon_ms = max(map(horizon_of, self.seen.refusals.values()), default=-1)
        return uuid8(asking_ms(image.state_id, self.seen.wall_ms, horizon_ms), digest)

    def planned(self, requests: list[Request]) -> Planned:
        """Return ``plan_group`` of these requests on the image of this call."""
        return self.prospect(requests).planned

    def prospect(self, requests: list[Request]) -> Prospect:
        """Return what the image decides about these requests. It is computed once for an image."""
        ids = tuple(request.request_id for request in requests)
        plans = self.memory.plans
        found = plans.by_ids.get(ids)
        if found is None:
            found = _prospect(self.seen.image, requests)
            self.remember(plans=Plans(plans.image, plans.by_ids.set(ids, found)))
        return found

    def is_up(self, node_id: str) -> bool:
        return self.silent_for_s(node_id) <= self.limits.down_after_s

    def is_known_down(self, node_id: str) -> bool:
        """Return whether the node was silent for too long while acknowledgements were read."""
        last_s = self.seen.now_s - self.silent_for_s(node_id)
        return self.seen.now_s - self.counted_since(last_s) > self.limits.down_after_s

    def silent_for_s(self, node_id: str) -> float:
        return self.seen.acks.silent_for_s(node_id, self.seen.now_s)

    def down(self, nodes: list[str]) -> tuple[Blocker, ...]:
        """Return those of the nodes that are down, as blockers."""
        return tuple(
            Blocker(n, "is down", self.silent_for_s(n)) for n in nodes if not self.is_up(n)
        )

    @cached_property
    def members_down(self) -> tuple[Blocker, ...]:
        """The members that are down, as blockers. Computed once, because every pending request uses
        it.
        """
        return self.down([*self.seen.image.membership.taking_part()])

    def outlasts_silence(self, kind: RequestKind) -> bool:
        """Return whether requests of this kind wait for silent nodes until an operator cancels them.

        Liveness alone undoes nothing that people asked for (CEP-21, in-progress sequences).
        """
        waits = ON_UNRESPONSIVE.of(self.seen.image.features.settings) == WAIT
        return waits and not OPERATIONS[kind].ends_by_silence

    def answered(self, epoch: int) -> Barrier:
        """Return the barrier of all participants on an epoch, regardless of the requests that they
        hold.
        """
        seen = self.seen
        return barrier(seen.image, seen.acks, epoch, 0, seen.now_s, seen.state_id_of)

    def counted_since(self, from_s: float) -> float:
        """Return the time from which a wait that began at ``from_s`` counts: not before the last
        gap in reading.
        """
        return self.seen.reading.counted_since(from_s, self.seen.now_s)

    def round_since_s(self) -> float:
        """Return the time from which the wait of the present round counts."""
        return self.counted_since(self.memory.since_s)

    def dead(self, nodes: list[str], since_s: float) -> list[str]:
        """Return the nodes that have been silent for longer than ``dead_node_patience_s``.

        All of the silence lies within a wait that counts from ``since_s``.
        """
        now_s, patience_s = self.seen.now_s, self.limits.dead_node_patience_s
        if now_s - self.counted_since(since_s) <= patience_s:
            return []
        return [n for n in nodes if self.silent_for_s(n) > patience_s]

    def patience_with_dead(self, since_s: float, then: str = "the request is rejected") -> Patience:
        """Return how long a wait for needed nodes that are down lasts."""
        limit_s = self.limits.dead_node_patience_s
        return Patience(since_s, limit_s, "STELE_DEAD_NODE_PATIENCE_S", then)

    def waiting_since(self, what: str) -> float:
        """Return the time from which the wait of a request or transition counts: now, at its first
        call.
        """
        since_s = self.memory.waits.get(what)
        if since_s is None:
            since_s = self.seen.now_s
            self.remember(waits=self.memory.waits.set(what, since_s))
        return self.counted_since(since_s)

    def waits_no_more(self, what: str) -> None:
        if what in self.memory.waits:
            self.remember(waits=self.memory.waits.delete(what))


def _prospect(image: Image, requests: list[Request]) -> Prospect:
    planned = plan_group(image, requests)
    transition = planned.transition
    mine = {} if transition is None else locks(transition)
    want = {} if transition is None else needs(image, transition)
    needed = OPERATIONS[requests[0].kind].needed(image, requests)
    return Prospect(planned, mine, want, tuple(needed))


def _refused(sent: SentCommand | None, seen: Observed) -> int:
    return 0 if sent is None else sent.refused + (sent.request_id in seen.refusals)


def _refusal(sent: SentCommand | None, seen: Observed) -> Rejection | None:
    return None if sent is None else seen.refusals.get(sent.request_id)


def _why(sent: SentCommand | None, seen: Observed) -> str:
    refusal = _refusal(sent, seen)
    return "" if refusal is None else f"; refused as {refusal.code}: {refusal.message}"
