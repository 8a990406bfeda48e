"""Answers of the coordinator: how far each transition is, and what is waited for."""

import msgspec

from stele.domain.names import BarrierLevel
from stele.domain.topology.waits import ASIDE, WaitKind


class BlockerAnswer(msgspec.Struct, frozen=True):
    """A node that something waits for; ``silent_for_s`` is None when it never sent a heartbeat.

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


class WaitLimit(msgspec.Struct, frozen=True):
    """A wait ends in ``left_s``, by a setting of the coordinator's (empty: fixed), and what happens then."""

    left_s: float
    limit_s: float
    setting: str
    then: str


class WaitProgress(msgspec.Struct, frozen=True):
    """A wait of the coordinator and its blockers; ``request_ids`` is empty if all requests wait.

    ``cause`` is the node that alone causes the wait, empty when there is none or it is not known; it is
    the first of the blockers. ``other_request`` has what is waited for. ``waited_s`` counts from when the
    coordinator that answers met the wait. Without a ``limit`` no setting ends it. ``detail``: what is lacking.
    ``eta_s``: in how many seconds it is over, as things go; none where nobody can tell. ``sole_copies``: ranges
    that may lose acknowledged writes if the blockers that are down were excluded; empty: none do.
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
    sole_copies: str = ""


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
        """Return the request's own wait, or else the wait that delays all requests."""
        own = (wait for wait in self.waits if request_id in wait.request_ids)
        return next(own, None) or self.common_wait()

    def common_wait(self) -> WaitProgress | None:
        """Return the wait that delays all requests, if there is one."""
        everybody = (wait for wait in self.waits if not wait.request_ids)
        return next((wait for wait in everybody if wait.kind not in ASIDE), None)
