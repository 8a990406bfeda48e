"""The result of a run."""

import msgspec


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The invariant that failed, what had to be, what is, and what happened before."""

    invariant: str
    expected: str
    found: str
    at_s: float
    before: tuple[str, ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run; two runs of one scenario differ in ``real_s`` alone."""

    seed: int
    profile: str
    failure: Failure | None
    trace_hash: str
    virtual_s: float
    real_s: float
    events: int
    epochs: int
    losers: int
    commands: int
    rejected: int
    barriers: int
    watched: int
    """Epochs sent to watches."""
    writes: int
    reads: int
    faults: int
    requests: int
    lost_messages: int
    truncated: int
    checks: int
    finished: dict[str, int]
    """Topology requests by how they ended."""

    @property
    def passed(self) -> bool:
        return self.failure is None
