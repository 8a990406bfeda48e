"""Answers of the session guard: barriers and liveness. Times in seconds."""

import msgspec


class BlockerView(msgspec.Struct, frozen=True):
    """``silent_for_s`` is None when the node was never heard."""

    node_id: str
    why: str
    silent_for_s: float | None
    blocking_for_s: float


class BarrierView(msgspec.Struct, frozen=True):
    complete: bool
    quorum: bool
    blockers: tuple[BlockerView, ...]
    epoch: int
    version: int


class NodeLiveness(msgspec.Struct, frozen=True):
    """One node as people and Redis see it; ``lag`` in epochs; None where it was never heard."""

    node_id: str
    up: bool
    epoch: int
    lag: int | None
    version: int
    silent_for_s: float | None
