"""Settings of the log: those of topology operations and of the balancer, and the table of all."""

from collections.abc import Mapping
from typing import Final

from stele.domain.model.archive import LIMITS as ARCHIVE
from stele.domain.model.cdc import CDC_MARGIN_S, CDC_RETENTION_S
from stele.domain.model.features import Choice, Count, Setting
from stele.domain.model.requests import FINISHED, GENERATIONS, HISTORY_S
from stele.domain.names import BarrierLevel
from stele.domain.planner import cluster
from stele.domain.planner.cluster import BalanceBy
from stele.domain.ring.quorum import LEVELS, is_unsafe

# Limits of topology operations: settings of the log that running operations obey at once.


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
    counts="replicas whose answers each step waits for",
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
TOPOLOGY: Final = (
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


# Settings of the log for the balancer. Each takes effect at the next look.


ON: Final = "on"
OFF: Final = "off"
MOST_THRESHOLD_S: Final = 10 * 365 * 86_400
"""Largest age of a repair that can be set, in seconds: ten years."""
READS: Final = Count(
    name="tablet_streaming_read_concurrency",
    counts="tablets that are streamed from a shard of a node at one time",
    default=2,
    most=1024,
)
WRITES: Final = Count(
    name="tablet_streaming_write_concurrency",
    counts="tablets that are streamed to a shard of a node at one time",
    default=2,
    most=1024,
)
BALANCE_BY: Final = Choice(
    name="tablet_balance_by",
    counts="whether nodes get bytes by their capacity, once all have reported, or replicas by count",
    default=BalanceBy.SIZE,
    options=(BalanceBy.SIZE, BalanceBy.COUNT),
)
TARGET_SIZE: Final = Count(
    name="target_tablet_size_in_bytes",
    counts="bytes that a tablet is to have: it is split above twice that, and merged below half of it",
    default=5 * 2**30,
    most=2**50,
)
MINIMAL_SIZE: Final = Count(
    name="minimal_tablet_size_for_balancing",
    counts="smaller tablets count as this many bytes, so that empty tablets are balanced too",
    default=TARGET_SIZE.default // 100,
    most=1 << 50,
)
TARGET_RATE: Final = Count(
    name="target_tablet_rate",
    counts="reads and writes a second of a tablet above which its table is split; 0: never for its rate",
    default=2500,  # CockroachDB splits a range above that (kv.range_split.load_qps_threshold)
    least=0,
    most=10**9,
)
RATE_WEIGHT: Final = Count(
    name="tablet_rate_weight",
    counts="percent of a tablet's load for its reads and writes; its bytes are the rest; 0: bytes only",
    default=cluster.RATE_WEIGHT,
    least=0,
    most=cluster.MOST_WEIGHT,
)
MINIMAL_RATE: Final = Count(
    name="minimal_tablet_rate_for_balancing",
    counts="mean reads and writes a second of a tablet from which rates count in full",
    default=cluster.MINIMAL_RATE,
    most=10**9,
)
PER_SHARD_GOAL: Final = Count(
    name="tablets_per_shard_goal",
    counts="largest number of tablet replicas of all tables on a shard",
    default=100,
    most=2**20,
)
SCALE_FACTOR: Final = Count(
    name="tablets_initial_scale_factor",
    counts="replicas of a table that each shard is to have at least, unless the table or its keyspace says",
    default=10,
    most=1024,
)
ENFORCE_RACK_LIST: Final = Choice(
    name="enforce_rack_list",
    counts="whether keyspaces with tablets that are created or altered have to name their racks",
    default=OFF,
    options=(ON, OFF),
)
AUTO_REPAIR: Final = Choice(
    name="auto_repair_enabled_default",
    counts="whether tables without this option are repaired by schedule",
    default=OFF,
    options=(ON, OFF),
)
AUTO_REPAIR_THRESHOLD_S: Final = Count(
    name="auto_repair_threshold_in_seconds",
    counts="seconds between two repairs of a tablet by schedule, for tables without this option",
    default=86_400,
    most=MOST_THRESHOLD_S,
)

TABLETS: Final[tuple[Setting, ...]] = (
    BALANCE_BY,
    MINIMAL_SIZE,
    RATE_WEIGHT,
    MINIMAL_RATE,
    READS,
    WRITES,
    TARGET_SIZE,
    TARGET_RATE,
    PER_SHARD_GOAL,
    SCALE_FACTOR,
    ENFORCE_RACK_LIST,
    AUTO_REPAIR,
    AUTO_REPAIR_THRESHOLD_S,
)


KNOWN: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in (
        *(GENERATIONS, FINISHED, HISTORY_S),
        *TOPOLOGY,
        *(CDC_MARGIN_S, CDC_RETENTION_S),
        *TABLETS,
        *ARCHIVE,
    )
}
"""The settings that this build reads, by name. Others are stored for their readers."""
