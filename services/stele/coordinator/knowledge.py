"""What the coordinator knows, what it remembers, and what it says: the input and output of its steps."""

import msgspec

from stele.domain.acks import AckTable, Blocker, StateIdOf, unknown
from stele.domain.commands import Envelope
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.reports import ReportTable


class Limits(msgspec.Struct, frozen=True):
    """Patience, in seconds, and how often work is ordered again."""

    resend_s: float = 2.0
    """A command or order that had no visible effect is sent again after this."""
    barrier_patience_s: float = 10.0
    """A barrier waits this long for everybody before a quorum will do; the rest is fenced out."""
    down_after_s: float = 5.0
    """A node that was silent for longer counts as down: several heartbeats."""
    dead_node_patience_s: float = 30.0
    """Requests wait this long for dead nodes to come back before they are turned down."""
    silence_s: float = 60.0
    """Work without progress for longer has failed."""
    attempts: int = 3
    """Work that failed is ordered again until it was tried so often."""


class Observed(msgspec.Struct, frozen=True):
    """What the coordinator of ``term`` knows at ``now_s`` (seconds of its own monotonic clock)."""

    image: Image
    acks: AckTable
    reports: ReportTable
    term: int
    now_s: float
    state_id_of: StateIdOf = unknown


class Sent(msgspec.Struct, frozen=True):
    """The newest order of a piece of work, when the first one was sent, and how often it was tried."""

    index: int
    at_s: float
    first_at_s: float
    tries: int


class Memory(msgspec.Struct, frozen=True):
    """When the present wait began and what was sent during it; forgotten at every change of state."""

    step: tuple[int, ...] = ()
    since_s: float = 0.0
    next_index: int = 1
    commands: dict[str, float] = {}
    """When each command was sent last, seconds."""
    orders: dict[str, Sent] = {}
    """The newest order by kind and node."""


class Steps(msgspec.Struct, frozen=True):
    """Commands for the log and orders for nodes, and in words what is being waited for, and on whom."""

    memory: Memory
    commands: tuple[Envelope, ...] = ()
    orders: tuple[Order, ...] = ()
    waiting_for: str = ""
    blockers: tuple[Blocker, ...] = ()
