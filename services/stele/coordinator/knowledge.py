"""What the coordinator knows, what it remembers, and what it says: the input and output of its steps."""

import sys
from collections.abc import Mapping

import msgspec
from immutables import Map

from stele.domain.acks import AckTable, Blocker, StateIdOf, unknown
from stele.domain.commands import Envelope, Rejection
from stele.domain.image import Image
from stele.domain.messages import Order, WorkKey
from stele.domain.names import RequestKind
from stele.domain.reports import ReportTable
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.planning import Planned
from stele.runtime.answers.coordinator import WaitKind

WaitingFor = tuple[tuple[str, ...], WaitKind, str]
"""Who waits, for what sort of thing, and for what exactly where nobody is named."""


class Limits(msgspec.Struct, frozen=True):
    """Patience, in seconds, and how often work is ordered again."""

    resend_s: float = 2.0
    """A command or order that had no visible effect is sent again after this."""
    barrier_patience_s: float = 10.0
    """A barrier waits this long for everybody before its level will do; the rest is fenced out."""
    down_after_s: float = 5.0
    """A node that was silent for longer counts as down: several heartbeats."""
    dead_node_patience_s: float = 30.0
    """What needs a node waits this long for it to come back; then a request is rejected, a transition
    undone.
    """
    silence_s: float = 60.0
    """Work without progress for longer has failed."""
    attempts: int = 3
    """Work that failed is ordered again until it was tried so often."""
    group: int = 8
    """So many nodes join as one transition at most."""
    replica_down_after_s: float = 10.0
    """A catch-up replica that was silent for longer counts as down: several questions."""
    company_s: float = 1.0
    """They wait this long for a node that has just asked for the same and was not heard yet."""

    def together(self, kind: RequestKind) -> int:
        """So many requests of a kind open as one transition at most. Of dead nodes all go together, since none
        can take over from another.
        """
        operation = OPERATIONS[kind]
        if not operation.grouped:
            return 1
        return self.group if operation.subjects_work else sys.maxsize


class ReplicaHeard(msgspec.Struct, frozen=True):
    """Since when a coordinator asks a catch-up replica for a sign of life, and when it heard one last; None:
    never. Seconds of its own clock. ``epoch`` is how far the replica had read the log then.
    """

    since_s: float
    heard_s: float | None = None
    epoch: int = 0


class Observed(msgspec.Struct, frozen=True):
    """What the coordinator of ``term`` knows at ``now_s`` (seconds of its own monotonic clock).

    ``refusals`` are the outcomes of its own commands that were refused, by request id.
    """

    image: Image
    acks: AckTable
    reports: ReportTable
    term: int
    now_s: float
    refusals: Mapping[str, Rejection] = {}
    state_id_of: StateIdOf = unknown
    wall_ms: int = (1 << 48) - 1
    """The time of day, in milliseconds since 1970; no id is made of a later one."""
    replicas: Mapping[str, ReplicaHeard] = {}
    """Those that are asked, by id."""


class SentOrder(msgspec.Struct, frozen=True):
    """The newest order of a piece of work, when the first one was sent, and how often it was tried."""

    index: int
    at_s: float
    first_at_s: float
    tries: int


class SentCommand(msgspec.Struct, frozen=True):
    """A command of the present round: its newest id, when it was sent, and how often it was refused."""

    request_id: str
    at_s: float
    refused: int


class Plans(msgspec.Struct, frozen=True, eq=False):
    """What groups of requests would open as on one image: a plan costs much, and is asked for at every look."""

    image: Image | None = None
    by_ids: Map[tuple[str, ...], Planned] = Map()


class Memory(msgspec.Struct, frozen=True):
    """What only spaces repetitions out and measures patience: whoever starts without it does no harm."""

    round: tuple[int, ...] = ()
    """Term, version and fence of the present wait."""
    since_s: float = 0.0
    """When it began."""
    left_out: frozenset[str] = frozenset()
    """Nodes that missed a barrier: nobody is patient with them again until they have acknowledged one."""
    looked_at_s: float = 0.0
    """The last look. After a longer pause the acks of the time in between may not have been read yet."""
    met: Map[WaitingFor, float] = Map()
    """Since when each wait of the last look has been there."""
    waits: Map[str, float] = Map()
    """Since when a request or a transition has waited for a node that is down, by its id."""
    next_index: int = 1
    commands: Map[str, SentCommand] = Map()
    """Those of the present round, by what they ask."""
    orders: Map[WorkKey, SentOrder] = Map()
    plans: Plans = Plans()
    """Those on the image of the last look."""


class Patience(msgspec.Struct, frozen=True):
    """A wait that began at ``since_s`` lasts ``limit_s`` by a setting of this name, and what happens then."""

    since_s: float
    limit_s: float
    setting: str
    then: str

    def until_s(self) -> float:
        return self.since_s + self.limit_s


def sooner(*given: Patience | None) -> Patience | None:
    """The one that is over first; None when there is none."""
    return min((p for p in given if p is not None), key=Patience.until_s, default=None)


class Wait(msgspec.Struct, frozen=True):
    """What one request waits for and on whom; ``request_ids`` is empty for what holds up everybody.

    ``other_request`` has what it waits for. Without ``patience`` it lasts until what is waited for comes.
    """

    request_ids: tuple[str, ...]
    what: str
    blockers: tuple[Blocker, ...] = ()
    kind: WaitKind = WaitKind.STANDBY
    patience: Patience | None = None
    other_request: str = ""
    since_s: float | None = None
    detail: str = ""
    """What is lacking, in words that may change while it is the same wait."""
    eta_s: float | None = None
    """In how many seconds it is over, as things go."""

    def key(self) -> WaitingFor:
        """The same wait at another look has the same: a request's own whatever nodes it waits for."""
        return self.request_ids, self.kind, "" if self.request_ids else self.what


class Steps(msgspec.Struct, frozen=True):
    """Commands for the log and orders for nodes, and in words what is being waited for, and on whom."""

    memory: Memory
    commands: tuple[Envelope, ...] = ()
    orders: tuple[Order, ...] = ()
    waits: tuple[Wait, ...] = ()

    @property
    def waiting_for(self) -> str:
        """The first wait in words; "requests" when there is nothing to do."""
        return self.waits[0].what if self.waits else "requests"

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        return tuple(dict.fromkeys(b for wait in self.waits for b in wait.blockers))
