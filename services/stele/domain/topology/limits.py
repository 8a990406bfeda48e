"""How much a topology operation may take: settings of the log, read anew while it runs."""

from typing import Final

from stele.domain.features.counts import Count

STREAM_MIB_PER_S: Final = Count(
    name="stream_mib_per_s",
    counts="MiB a second that a node pulls at most while it streams",
    default=1_000_000,
    most=1_000_000,
)
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
LIMITS: Final = (STREAM_MIB_PER_S, STREAM_CONCURRENCY, STEP_TIME_LIMIT_S)
