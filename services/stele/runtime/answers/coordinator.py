"""Answers of the coordinator: how far each transition is, and what is waited for."""

from enum import StrEnum
from typing import Final

import msgspec

from stele.domain.names import BarrierLevel


class WaitKind(StrEnum):
    """What sort of thing is waited for."""

    LOG = "log"
    """A command of the coordinator's that the log does not show yet."""
    RESTRICTED = "restricted"
    """The log takes no commands of the coordinator's: it is frozen, or of one actor."""
    STANDBY = "standby"
    """This coordinator does not act."""
    COMPANY = "company"
    """Others that have just asked for the same, and may go with it."""
    MEMBERS = "members"
    """Nodes without which it does not start."""
    SILENCE = "silence"
    """A sign of life of nodes that are said to be dead."""
    LIVES = "lives"
    """Nodes that are said to be dead, and are heard."""
    PREPARED = "prepared"
    """Nodes that must prepare their storage for it; what else they have goes on meanwhile."""
    ROOM = "room"
    """Ranges that another request is moving."""
    APPLIED = "applied"
    """Nodes that must have applied a version."""
    FENCED = "fenced"
    """Nodes that must know that the older versions are fenced."""
    RECEIVERS = "receivers"
    """Nodes to which reads are about to move."""
    STREAM = "stream"
    WORK = "work"
    """Nodes each of which must do a piece of work and report it."""
    REST = "rest"
    """What goes on anyway, and is soon over."""
    CLEANUP = "cleanup"
    """Deletion of data, which holds up nobody."""
    ARCHIVE = "archive"
    """Catch-up replicas that are down, or that there are too few of; it holds up nothing else."""


ASIDE = (WaitKind.CLEANUP, WaitKind.ARCHIVE)
"""Waits that hold up no request but their own."""


class BlockerAnswer(msgspec.Struct, frozen=True):
    """A node that something waits for; ``silent_for_s`` is None when it was never heard.

    It ``is_down`` when it was silent for longer than the coordinator's limit.
    """

    node_id: str
    why: str
    silent_for_s: float | None = None
    is_down: bool = False


class NodeProgress(msgspec.Struct, frozen=True):
    """One node's newest report of the work of a session; ``still_for_s``: so long it has not got on.
    ``bytes_compared`` were not streamed, since the node has the same.
    """

    kind: str
    status: str
    bytes_done: int
    bytes_total: int
    keys_done: int
    error: str
    still_for_s: float | None = None
    bytes_compared: int = 0


class TransitionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One open transition. ``eta_s`` is None while the rate is unknown; with ``eta_at_least`` it is by the
    limit ``stream_mib_per_s`` alone. Sums are over the nodes that have reported.
    """

    transition_id: str
    request_ids: tuple[str, ...]
    kind: str
    state: str
    session: str
    going_back: str
    waiting_for: str
    blockers: tuple[BlockerAnswer, ...]
    nodes: dict[str, NodeProgress]
    bytes_done: int
    bytes_total: int
    bytes_per_s: float | None
    eta_s: float | None
    eta_at_least: bool = False


SILENCE: Final = "STELE_SILENCE_S"
"""The setting that ends waits of which nothing comes."""


class WaitLimit(msgspec.Struct, frozen=True):
    """A wait ends in ``left_s``, by a setting of the coordinator's (empty: fixed), and what happens then."""

    left_s: float
    limit_s: float
    setting: str
    then: str


class WaitProgress(msgspec.Struct, frozen=True):
    """What is waited for, and on whom; ``request_ids`` is empty for what holds up everybody.

    ``cause`` is the node without which nobody would wait, empty when there is none or it is not known; it is
    the first of the blockers. ``other_request`` has what is waited for. ``waited_s`` counts from when the
    coordinator that answers met the wait. Without a ``limit`` no setting ends it. ``detail``: what is lacking.
    ``eta_s``: in how many seconds it is over, as things go; none where nobody can tell.
    """

    request_ids: tuple[str, ...]
    waiting_for: str
    blockers: tuple[BlockerAnswer, ...]
    kind: WaitKind = WaitKind.STANDBY
    waited_s: float | None = None
    limit: WaitLimit | None = None
    cause: str = ""
    other_request: str = ""
    detail: str = ""
    eta_s: float | None = None


class ReplicaProgress(msgspec.Struct, frozen=True):
    """A catch-up replica that the coordinator asks for a sign of life. ``silent_for_s`` is None when it was
    never heard; ``epoch`` is how far it had read the log when it was.
    """

    silent_for_s: float | None
    is_down: bool
    epoch: int


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """All that the coordinator works on. ``barrier_level`` is what the present version's barrier asks for, and
    ``barrier_relaxed`` that it had waited in vain for a higher level.
    """

    term: int
    active: bool
    version: int
    fence_version: int
    barrier_level: BarrierLevel = BarrierLevel.EACH_QUORUM
    barrier_relaxed: bool = False
    waits: tuple[WaitProgress, ...]
    transitions: tuple[TransitionProgress, ...]
    cleanups: dict[str, NodeProgress]
    replicas: dict[str, ReplicaProgress] = {}
    """By id; none on standby."""

    def of_request(self, request_id: str) -> TransitionProgress | None:
        """The open transition that carries a request out."""
        return next((t for t in self.transitions if request_id in t.request_ids), None)

    def wait_of(self, request_id: str) -> WaitProgress | None:
        """What a request waits for: its own wait, or else what holds up everybody."""
        own = (wait for wait in self.waits if request_id in wait.request_ids)
        everybody = (wait for wait in self.waits if not wait.request_ids)
        common = (wait for wait in everybody if wait.kind not in ASIDE)
        return next(own, None) or next(common, None)
