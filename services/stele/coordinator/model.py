"""Input, memory and output of ``next_steps``, the coordinator's rules, and the context of a call."""

import sys
from collections.abc import Mapping
from functools import cached_property

import msgspec
from immutables import Map

from stele.domain.commands import AnyCommand, Envelope, Rejection
from stele.domain.image import Image
from stele.domain.messages import Order, ReportTable, WorkKey
from stele.domain.model.requests import Request
from stele.domain.model.settings import ON_UNRESPONSIVE, WAIT
from stele.domain.names import RequestKind, WaitKind
from stele.domain.not_taken import OF_THE_ID
from stele.domain.observed_time import ALWAYS, ObservedTime
from stele.domain.topology.barriers import AckTable, Barrier, Blocker, StateIdOf, barrier, unknown
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import GroupPlan, Locks, locks, needs, plan_group

WaitKey = tuple[tuple[str, ...], WaitKind, str]
"""Key of a wait: its requests, its kind, and its text if it names no request."""


class Limits(msgspec.Struct, frozen=True):
    """Time limits in seconds, and limits of attempts."""

    resend_s: float = 2.0
    """A command or order without a visible effect is sent again after this time."""
    barrier_patience_s: float = 10.0
    """A barrier waits this long for all nodes before its level suffices. The others are then fenced
    out.
    """
    down_after_s: float = 5.0
    """A node that was silent for longer counts as down: several heartbeats."""
    dead_node_patience_s: float = 30.0
    """Time to wait for a node that is down and needed. Then a request is rejected and a transition
    is undone.
    """
    silence_s: float = 60.0
    """Work without progress for longer has failed."""
    attempts: int = 3
    """Work that failed is ordered again until it was tried this often."""
    group: int = 8
    """Largest number of nodes that join as one transition."""
    replica_down_after_s: float = 10.0
    """A catch-up replica that was silent for longer counts as down: several probes."""
    company_s: float = 1.0
    """A group of requests waits this long for a node that has just asked for the same and has sent
    no ack yet.
    """

    def together(self, kind: RequestKind) -> int:
        """Return the largest number of requests of a kind that open as one transition.

        Requests about dead nodes have no limit: no dead node can take over from another.
        """
        operation = OPERATIONS[kind]
        if not operation.grouped:
            return 1
        return self.group if operation.subjects_work else sys.maxsize


class ReplicaLiveness(msgspec.Struct, frozen=True):
    """Liveness of a catch-up replica, in seconds of the coordinator's monotonic clock.

    ``since_s`` is the time of the first probe; ``answered_s`` is that of the last answer, None without
    one. ``epoch`` is the epoch that the replica had read at its last answer.
    """

    since_s: float
    answered_s: float | None = None
    epoch: int = 0


class Observed(msgspec.Struct, frozen=True):
    """All that the coordinator of ``term`` has observed at ``now_s``, in seconds of its monotonic
    clock.

    ``refusals`` holds the rejections of this coordinator's commands, by request id.
    """

    image: Image
    acks: AckTable
    reports: ReportTable
    term: int
    now_s: float
    refusals: Mapping[str, Rejection] = {}
    state_id_of: StateIdOf = unknown
    wall_ms: int = (1 << 48) - 1
    """The time of day, in milliseconds since 1970; no id is made with a later time."""
    replicas: Mapping[str, ReplicaLiveness] = {}
    """The catch-up replicas that are probed, by id."""
    reading: ObservedTime = ALWAYS
    """Times at which acknowledgements were read. No other time counts as a node's silence."""


class SentOrder(msgspec.Struct, frozen=True):
    """The newest order of a piece of work: its index, its time, the first order's time, and the
    tries.
    """

    index: int
    at_s: float
    first_at_s: float
    tries: int
    excused: int = 0
    """Restarts of the work that do not count, because sources were down."""


class SentCommand(msgspec.Struct, frozen=True):
    """A command of the present round: its newest id, the time of its send, and its number of
    refusals.
    """

    request_id: str
    at_s: float
    refused: int


class Prospect(msgspec.Struct, frozen=True, eq=False):
    """All that the image alone decides about a group of pending requests that may open.

    ``planned`` is its plan, ``locks`` and ``needs`` are those of the planned transition.
    ``needed_nodes`` are the nodes that must be up.
    """

    planned: GroupPlan
    locks: Locks
    needs: Locks
    needed_nodes: tuple[str, ...]


class PlanCache:
    """Prospects of groups of requests on one image.

    A plan is expensive, and each call needs it until the image changes. The entries follow from the
    image alone, so a call that runs in another thread may share the cache.
    """

    def __init__(self, image: Image | None = None) -> None:
        self.image = image
        self.by_ids = dict[tuple[str, ...], Prospect]()
        """By the request ids of the group."""

    def prospect(self, image: Image, requests: list[Request]) -> Prospect:
        """Return what ``image``, the one of this cache, decides about a group."""
        assert image is self.image, "a plan holds for one image"
        ids = tuple(request.request_id for request in requests)
        found = self.by_ids.get(ids)
        if found is None:
            planned = plan_group(image, requests)
            transition = planned.transition
            found = self.by_ids[ids] = Prospect(
                planned,
                {} if transition is None else locks(transition),
                {} if transition is None else needs(image, transition),
                tuple(OPERATIONS[requests[0].kind].needed(image, requests)),
            )
        return found


class Memory(msgspec.Struct, frozen=True):
    """State that only spaces repetitions and measures patience. To start without it is safe."""

    round: tuple[int, ...] = ()
    """Term, version and fence of the present wait."""
    since_s: float = 0.0
    """Start of the present wait, in monotonic seconds."""
    left_out: frozenset[str] = frozenset()
    """Nodes that missed a barrier. They get no patience until they have acknowledged one (rule 27).
    """
    wait_starts: Map[WaitKey, float] = Map()
    """Start of each wait of the last call, in monotonic seconds."""
    timers: Map[str, float] = Map()
    """Start of each running timer, in monotonic seconds, by key.

    A key is a request or transition id, alone or with a suffix, or ``barrier`` with a level.
    """
    next_index: int = 1
    commands: Map[str, SentCommand] = Map()
    """Commands of the present round, by their content."""
    orders: Map[WorkKey, SentOrder] = Map()
    plans: PlanCache = msgspec.field(default_factory=PlanCache)
    """Plans on the image of the last call."""


class Patience(msgspec.Struct, frozen=True):
    """A limit on a wait: it began at ``since_s`` and ends after ``limit_s`` seconds.

    ``setting`` names the setting of the limit; ``then`` states the result of its end.
    """

    since_s: float
    limit_s: float
    setting: str
    then: str

    def until_s(self) -> float:
        return self.since_s + self.limit_s


def earliest(*given: Patience | None) -> Patience | None:
    """Return the limit that ends first; None if none is given."""
    return min((p for p in given if p is not None), key=Patience.until_s, default=None)


class Wait(msgspec.Struct, frozen=True):
    """One wait: the missing condition, and the nodes that block it.

    ``request_ids`` are the requests that wait; it is empty for a wait that blocks all transitions.
    ``other_request`` is the request that must end first. Without ``patience`` the wait has no time
    limit.
    """

    kind: WaitKind
    what: str
    blockers: tuple[Blocker, ...] = ()
    request_ids: tuple[str, ...] = ()
    patience: Patience | None = None
    other_request: str = ""
    detail: str = ""
    """The missing replicas or limits, in words that may change during the same wait."""
    eta_s: float | None = None
    """Expected seconds until its end, at the present rate."""
    since_s: float | None = None
    """Its start in monotonic seconds. Rules leave it out; ``carried_out`` adds it."""

    def key(self) -> WaitKey:
        """Return the key under which the next call finds the start of this wait.

        The nodes that block a request do not change its key.
        """
        return self.request_ids, self.kind, "" if self.request_ids else self.what


class Steps(msgspec.Struct, frozen=True):
    """The result of one call: commands for the log, orders for nodes, and waits.

    The driver sends them, and passes ``memory`` to the next call. Each may be lost: the next call
    repeats what had no effect.
    """

    memory: Memory
    commands: tuple[Envelope, ...] = ()
    orders: tuple[Order, ...] = ()
    waits: tuple[Wait, ...] = ()


# The context of one call of ``next_steps``: its input, and values that several rules derive from
# it.
#
# A context never changes. Rules read it, and return actions (``coordinator.actions``).


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

    def barrier_on(self, epoch: int) -> Barrier:
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
