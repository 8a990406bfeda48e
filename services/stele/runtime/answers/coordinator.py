"""Answers of the coordinator: how far each transition is, what is waited for, and on whom."""

import msgspec


class BlockerAnswer(msgspec.Struct, frozen=True):
    """A node that something waits for; ``silent_for_s`` is None when it was never heard."""

    node_id: str
    why: str
    silent_for_s: float | None = None


class NodeProgress(msgspec.Struct, frozen=True):
    """One node's newest report of the work of a session."""

    kind: str
    status: str
    bytes_done: int
    bytes_total: int
    keys_done: int
    error: str


class TransitionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One open transition. ``eta_s`` is None while the rate is unknown; sums are over the nodes that have
    reported.
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


class WaitProgress(msgspec.Struct, frozen=True):
    """What is waited for, and on whom; ``request_ids`` is empty for what holds up everybody."""

    request_ids: tuple[str, ...]
    waiting_for: str
    blockers: tuple[BlockerAnswer, ...]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """All that the coordinator works on."""

    term: int
    active: bool
    version: int
    fence_version: int
    waits: tuple[WaitProgress, ...]
    transitions: tuple[TransitionProgress, ...]
    cleanups: dict[str, NodeProgress]

    def of_request(self, request_id: str) -> TransitionProgress | None:
        """The open transition that carries a request out."""
        return next((t for t in self.transitions if request_id in t.request_ids), None)

    def wait_of(self, request_id: str) -> WaitProgress | None:
        """What a request waits for: its own wait, or else what holds up everybody."""
        own = (wait for wait in self.waits if request_id in wait.request_ids)
        common = (wait for wait in self.waits if not wait.request_ids)
        return next(own, None) or next(common, None)
