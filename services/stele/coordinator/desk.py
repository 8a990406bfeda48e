"""One look of the coordinator: what it sees, and what it says so far."""

from hashlib import blake2b

import msgspec
from immutables import Map

from stele.coordinator.knowledge import (
    Limits,
    Memory,
    Observed,
    Patience,
    Plans,
    SentCommand,
    Steps,
    Wait,
)
from stele.domain.acks import Barrier, Blocker, barrier
from stele.domain.commands import AnyCommand, Envelope, Rejection, command_name
from stele.domain.commits.restricted import restricted_text, takes_from
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.names import COORDINATOR
from stele.domain.requests.facts import Request
from stele.domain.requests.ids import asking_ms, uuid8
from stele.domain.requests.not_taken import OF_THE_ID, horizon_of
from stele.domain.topology.planning import Planned, plan_group
from stele.runtime.answers.coordinator import WaitKind

replace = msgspec.structs.replace


class Desk:
    """Collects commands, orders and waits; ``memory`` is what the next look starts from."""

    def __init__(self, memory: Memory, seen: Observed, limits: Limits) -> None:
        self.memory = memory
        self.seen = seen
        self.limits = limits
        self.commands: list[Envelope] = []
        self.orders: list[Order] = []
        self.waits: list[Wait] = []
        self.counted_at = ""
        """The level at which the present version's barrier was passed; empty when everybody had answered."""
        if memory.plans.image is not seen.image:
            self.remember(plans=Plans(seen.image))

    def steps(self) -> Steps:
        """What was said, each wait with since when it has been there."""
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
        """How often the log refused this command in this round; 0 where its id alone was not taken."""
        sent = self.memory.commands.get(repr(command))
        refusal = _refusal(sent, self.seen)
        is_of_the_id = refusal is not None and refusal.code in OF_THE_ID
        return 0 if is_of_the_id else _refused(sent, self.seen)

    def refusal(self, command: AnyCommand) -> Rejection | None:
        """The log's newest refusal of this command in this round; None where its id alone was not taken."""
        refusal = _refusal(self.memory.commands.get(repr(command)), self.seen)
        return None if refusal is None or refusal.code in OF_THE_ID else refusal

    def why_refused(self, command: AnyCommand) -> str:
        """The same to end a sentence; empty when there is none."""
        return _why(self.memory.commands.get(repr(command)), self.seen)

    def submit(self, command: AnyCommand, requests: tuple[str, ...] = (), why: str = "") -> None:
        """Send a command, again with the same id until the log shows its effect or its refusal. While the log
        does not take it nothing is sent, and all else goes on.

        What was refused stays refused under its id, so the next attempt has another one.
        """
        seen, memory, key = self.seen, self.memory, repr(command)
        sent = memory.commands.get(key)
        name = command_name(command)
        if not takes_from(seen.image.commits, COORDINATOR):
            restricted = restricted_text(seen.image.commits)
            self.wait(WaitKind.RESTRICTED, f"{name} to be taken", (), requests, detail=restricted)
            return
        sent_s = seen.now_s if sent is None else sent.at_s
        patience = Patience(sent_s, self.limits.resend_s, "STELE_RESEND_S", "it is sent again")
        what = f"{name} to be applied{_why(sent, seen)}"
        self.wait(WaitKind.LOG, what, requests=requests, patience=patience)
        if sent is not None and seen.now_s - sent.at_s < self.limits.resend_s:
            return
        refused = _refused(sent, seen)
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
        """The time of the state that is decided on, and a hash of that state and of what is sent.

        Where the log forgot ids that were ahead of its newest state, all of that state's time are too old, as
        the refusal of one says, and it tells the horizon.
        """
        image: Image = self.seen.image
        unique = f"{image.cluster_id}/{self.memory.round}/{refused}/{key}".encode()
        digest = blake2b(image.state_id + unique, digest_size=16).digest()
        horizon_ms = max(map(horizon_of, self.seen.refusals.values()), default=-1)
        return uuid8(asking_ms(image.state_id, self.seen.wall_ms, horizon_ms), digest)

    def planned(self, requests: list[Request]) -> Planned:
        """``plan_group`` of these on what is seen, made once for an image."""
        ids = tuple(request.request_id for request in requests)
        plans = self.memory.plans
        planned = plans.by_ids.get(ids)
        if planned is None:
            planned = plan_group(self.seen.image, requests)
            self.remember(plans=Plans(plans.image, plans.by_ids.set(ids, planned)))
        return planned

    def is_up(self, node_id: str) -> bool:
        return self.silent_for_s(node_id) <= self.limits.down_after_s

    def silent_for_s(self, node_id: str) -> float:
        return self.seen.acks.silent_for_s(node_id, self.seen.now_s)

    def down(self, nodes: list[str]) -> tuple[Blocker, ...]:
        """Those of the nodes that are down, as blockers."""
        return tuple(
            Blocker(n, "is down", self.silent_for_s(n)) for n in nodes if not self.is_up(n)
        )

    def answered(self, epoch: int) -> Barrier:
        """Has everybody who takes part applied an epoch? Nothing is asked of the requests that they hold."""
        seen = self.seen
        return barrier(seen.image, seen.acks, epoch, 0, seen.now_s, seen.state_id_of)

    def dead(self, nodes: list[str], since_s: float) -> list[str]:
        """Nodes that were silent for so long, all of it within a wait that began then, that nobody waits on."""
        patience_s = self.limits.dead_node_patience_s
        if self.seen.now_s - since_s <= patience_s:
            return []
        return [n for n in nodes if self.silent_for_s(n) > patience_s]

    def patience_with_dead(self, since_s: float, then: str = "the request is rejected") -> Patience:
        """How long what needs nodes that are down waits for them."""
        limit_s = self.limits.dead_node_patience_s
        return Patience(since_s, limit_s, "STELE_DEAD_NODE_PATIENCE_S", then)

    def waiting_since(self, what: str) -> float:
        """When the wait of a request or transition began: now, when this is its first look."""
        since_s = self.memory.waits.get(what)
        if since_s is None:
            since_s = self.seen.now_s
            self.remember(waits=self.memory.waits.set(what, since_s))
        return since_s

    def waits_no_more(self, what: str) -> None:
        if what in self.memory.waits:
            self.remember(waits=self.memory.waits.delete(what))


def _refused(sent: SentCommand | None, seen: Observed) -> int:
    return 0 if sent is None else sent.refused + (sent.request_id in seen.refusals)


def _refusal(sent: SentCommand | None, seen: Observed) -> Rejection | None:
    return None if sent is None else seen.refusals.get(sent.request_id)


def _why(sent: SentCommand | None, seen: Observed) -> str:
    refusal = _refusal(sent, seen)
    return "" if refusal is None else f"; refused as {refusal.code}: {refusal.message}"
