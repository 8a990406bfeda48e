"""Answers of the coordinator: progress of each transition, and its waits."""

import msgspec

from stele.domain.names import ASIDE, BarrierLevel, WaitKind


class BlockerAnswer(msgspec.Struct, frozen=True):
    """A node that delays something.

    ``silent_for_s`` is the time since its last heartbeat, None if it never sent one. ``is_down``: that
    time exceeds the coordinator's limit.
    """

    node_id: str
    why: str
    silent_for_s: float | None = None
    is_down: bool = False


class NodeProgress(msgspec.Struct, frozen=True):
    """One node's newest report of the work of a session.

    ``still_for_s`` is the time without progress. ``bytes_compared`` were equal on both sides and not
    streamed.
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
    """One open transition.

    ``eta_s`` is None while the rate is unknown. With ``eta_at_least`` it is a lower bound from the
    limit ``stream_mib_per_s``. That limit is ``limit_bytes_per_s`` of each receiver, None if it is
    not set. Sums are over the nodes that have reported.
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
    limit_bytes_per_s: int | None = None


class WaitLimit(msgspec.Struct, frozen=True):
    """The limit of a wait: it ends in ``left_s``, after ``limit_s`` in all.

    ``setting`` is the coordinator's setting, empty for a fixed limit. ``then`` is the consequence.
    """

    left_s: float
    limit_s: float
    setting: str
    then: str


class WaitProgress(msgspec.Struct, frozen=True):
    """A wait of the coordinator and its blockers; ``request_ids`` is empty if all requests wait.

    ``cause`` is the only node that causes the wait, and the first of the blockers. It is empty if
    there are several, or if it is unknown. ``other_request`` must end first. ``waited_s`` counts from
    the time at which the answering coordinator met the wait. Without a ``limit`` the wait has no time
    limit. ``detail`` names the missing condition. ``eta_s`` is the estimated rest in seconds, None if
    unknown. ``sole_copies`` are the ranges that may lose acknowledged writes if the blockers that are
    down are excluded.
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
    """A catch-up replica that the coordinator probes.

    ``silent_for_s`` is the time since its last answer, None without one. ``epoch`` is the newest that
    it had read then.
    """

    silent_for_s: float | None
    is_down: bool
    epoch: int


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """All work of the coordinator.

    ``barrier_level`` is the level that the barrier of the present version requires.
    ``barrier_relaxed``: a higher level had timed out.
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
        """Return the open transition that carries out a request."""
        return next((t for t in self.transitions if request_id in t.request_ids), None)

    def wait_of(self, request_id: str) -> WaitProgress | None:
        """Return the request's own wait, or else the wait that delays all requests."""
        own = (wait for wait in self.waits if request_id in wait.request_ids)
        return next(own, None) or self.common_wait()

    def common_wait(self) -> WaitProgress | None:
        """Return the wait that delays all requests, if there is one."""
        everybody = (wait for wait in self.waits if not wait.request_ids)
        return next((wait for wait in everybody if wait.kind not in ASIDE), None)
