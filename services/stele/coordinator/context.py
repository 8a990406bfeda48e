"""The context of one call of ``next_steps``: its input, and values that several rules derive from it.

A context never changes. Rules read it, and return actions (``coordinator.actions``).
"""

from functools import cached_property

import msgspec

from stele.coordinator.model import (
    Limits,
    Memory,
    Observed,
    Patience,
    PlanCache,
    Prospect,
    SentCommand,
)
from stele.domain.commands import AnyCommand, Rejection
from stele.domain.image import Image
from stele.domain.model.requests import Request
from stele.domain.model.settings import ON_UNRESPONSIVE, WAIT
from stele.domain.names import RequestKind
from stele.domain.not_taken import OF_THE_ID
from stele.domain.topology.barriers import Barrier, Blocker, barrier
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import GroupPlan


class StepContext:
    """The memory, the observations and the limits of one call.

    All rules of a call see the memory from its start. No rule depends on the actions of another
    rule, except by their results.
    """

    def __init__(self, memory: Memory, seen: Observed, limits: Limits) -> None:
        if memory.plans.image is not seen.image:
            memory = msgspec.structs.replace(memory, plans=PlanCache(seen.image))
        self.memory = memory
        self.seen = seen
        self.limits = limits

    @property
    def image(self) -> Image:
        return self.seen.image

    @property
    def term(self) -> int:
        return self.seen.term

    # --- plans

    def prospect(self, requests: list[Request]) -> Prospect:
        """Return what the image decides about these requests as one group."""
        return self.memory.plans.prospect(self.image, requests)

    def planned(self, requests: list[Request]) -> GroupPlan:
        """Return ``plan_group`` of these requests on the image."""
        return self.prospect(requests).planned

    # --- commands of this round

    def refusals(self, command: AnyCommand) -> int:
        """Return how often the log refused this command in this round; 0 if only its id was not
        taken.
        """
        sent = self.memory.commands.get(repr(command))
        refusal = refusal_of(sent, self.seen)
        is_of_the_id = refusal is not None and refusal.code in OF_THE_ID
        return 0 if is_of_the_id else count_refusals(sent, self.seen)

    def refusal(self, command: AnyCommand) -> Rejection | None:
        """Return the log's newest refusal of this command in this round; None if only its id was
        not taken.
        """
        refusal = refusal_of(self.memory.commands.get(repr(command)), self.seen)
        return None if refusal is None or refusal.code in OF_THE_ID else refusal

    # --- liveness

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
        return self.down([*self.image.membership.taking_part()])

    def dead(self, nodes: list[str], since_s: float) -> list[str]:
        """Return the nodes that have been silent for longer than ``dead_node_patience_s``.

        All of the silence lies within a wait that counts from ``since_s``.
        """
        now_s, patience_s = self.seen.now_s, self.limits.dead_node_patience_s
        if now_s - self.counted_since(since_s) <= patience_s:
            return []
        return [n for n in nodes if self.silent_for_s(n) > patience_s]

    def answered(self, epoch: int) -> Barrier:
        """Return the barrier of all participants on an epoch, regardless of the requests that they
        hold.
        """
        seen = self.seen
        return barrier(seen.image, seen.acks, epoch, 0, seen.now_s, seen.state_id_of)

    # --- time limits

    def outlasts_silence(self, kind: RequestKind) -> bool:
        """Return whether requests of this kind wait for silent nodes until an operator cancels them.

        Liveness alone undoes nothing that people asked for (CEP-21, in-progress sequences).
        """
        waits = ON_UNRESPONSIVE.of(self.image.features.settings) == WAIT
        return waits and not OPERATIONS[kind].ends_by_silence

    def patience_with_dead(self, since_s: float, then: str = "the request is rejected") -> Patience:
        """Return how long a wait for needed nodes that are down lasts."""
        limit_s = self.limits.dead_node_patience_s
        return Patience(since_s, limit_s, "STELE_DEAD_NODE_PATIENCE_S", then)

    def counted_since(self, from_s: float) -> float:
        """Return the time from which a wait that began at ``from_s`` counts: not before the last
        gap in reading.
        """
        return self.seen.reading.counted_since(from_s, self.seen.now_s)

    def round_since_s(self) -> float:
        """Return the time from which the wait of the present round counts."""
        return self.counted_since(self.memory.since_s)

    def timer_since_s(self, key: str) -> float:
        """Return the time from which a timer counts: now, if it does not run yet.

        A rule that reads a timer also returns a ``TimerStart``.
        """
        return self.counted_since(self.memory.timers.get(key, self.seen.now_s))


def refusal_of(sent: SentCommand | None, seen: Observed) -> Rejection | None:
    """Return the refusal of a command's newest id; None without one."""
    return None if sent is None else seen.refusals.get(sent.request_id)


def count_refusals(sent: SentCommand | None, seen: Observed) -> int:
    """Return how often a command was refused in this round."""
    return 0 if sent is None else sent.refused + (sent.request_id in seen.refusals)


def refusal_text(sent: SentCommand | None, seen: Observed) -> str:
    """Return the newest refusal as the end of a sentence; empty without one."""
    refusal = refusal_of(sent, seen)
    return "" if refusal is None else f"; refused as {refusal.code}: {refusal.message}"
