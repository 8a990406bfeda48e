"""Limits of topology operations: settings of the log that running operations obey at once."""

from collections.abc import Mapping
from typing import Final

from stele.domain.features.model import Choice, Count
from stele.domain.names import BarrierLevel
from stele.domain.ring.quorum import LEVELS, is_unsafe

STREAM_MIB_PER_S: Final = Count(
    name="stream_mib_per_s",
    counts="MiB a second that a node pulls at most while it streams",
    default=1_000_000,
    most=1_000_000,
)
MIB: Final = 1024 * 1024
STREAM_CONCURRENCY: Final = Count(
    name="stream_concurrency",
    counts="groups of ranges that a node pulls at the same time",
    default=3,
    most=64,
)
STEP_TIME_LIMIT_S: Final = Count(
    name="step_time_limit_s",
    counts="seconds that data may take to move in one step before the operation is undone",
    default=31_536_000,
    most=31_536_000,
)
WAIT: Final = "wait"
UNDO: Final = "undo"
ON_UNRESPONSIVE: Final = Choice(
    name="on_unresponsive",
    counts="whether operations wait for silent nodes, or are undone; single tablets never wait",
    default=WAIT,
    options=(WAIT, UNDO),
)
UNSAFE_LEVELS: Final = frozenset(filter(is_unsafe, LEVELS))
BARRIER_LEVEL: Final = Choice(
    name="progress_barrier_level",
    counts="whose answers each step waits for",
    default=BarrierLevel.EACH_QUORUM,
    options=LEVELS,
    unsafe=UNSAFE_LEVELS,
)
LOWEST_BARRIER_LEVEL: Final = Choice(
    name="progress_barrier_min_level",
    counts="the lowest level that a barrier is relaxed to; ALL: it never is",
    default=BarrierLevel.ALL,
    options=LEVELS,
    unsafe=UNSAFE_LEVELS,
)
RELAX_AFTER_S: Final = Count(
    name="progress_barrier_relax_after_s",
    counts="seconds that a barrier waits at each level before it is relaxed by one",
    default=3600,
    most=31_536_000,
)
LIMITS: Final = (
    STREAM_MIB_PER_S,
    STREAM_CONCURRENCY,
    STEP_TIME_LIMIT_S,
    ON_UNRESPONSIVE,
    BARRIER_LEVEL,
    LOWEST_BARRIER_LEVEL,
    RELAX_AFTER_S,
)


def stream_bytes_per_s(settings: Mapping[str, str]) -> int:
    """Return the most bytes a second that a node receives, with or without a setting."""
    return STREAM_MIB_PER_S.of(settings) * MIB


def stream_limit_bytes_per_s(settings: Mapping[str, str]) -> int | None:
    """Return the same limit; None while none is set."""
    is_set = STREAM_MIB_PER_S.of(settings) != STREAM_MIB_PER_S.default
    return stream_bytes_per_s(settings) if is_set else None
