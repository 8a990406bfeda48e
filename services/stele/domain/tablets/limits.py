"""Settings of the log for the balancer; each counts from the next look on."""

from typing import Final

from stele.domain.balance.cluster import BalanceBy
from stele.domain.features.counts import Choice, Count, Setting

ON: Final = "on"
BALANCING: Final = Choice(
    name="tablet_balancing",
    counts="whether the balancer moves tablets; off: only those of nodes that leave",
    default=ON,
    options=(ON, "off"),
)
READS: Final = Count(
    name="tablet_streaming_read_concurrency",
    counts="tablets that are streamed from a node at one time",
    default=2,
    most=1024,
)
WRITES: Final = Count(
    name="tablet_streaming_write_concurrency",
    counts="tablets that are streamed to a node at one time",
    default=2,
    most=1024,
)
"""Scylla's limits are per shard; nodes have one here."""
BALANCE_BY: Final = Choice(
    name="tablet_balance_by",
    counts="whether nodes get bytes by their capacity, once all have reported, or replicas by count",
    default=BalanceBy.SIZE,
    options=(BalanceBy.SIZE, BalanceBy.COUNT),
)
MINIMAL_SIZE: Final = Count(
    name="minimal_tablet_size_for_balancing",
    counts="bytes as which smaller tablets count, so that empty ones are spread too",
    default=5 * 2**30 // 100,
    most=1 << 50,
)
"""A hundredth of what a tablet should have. ``sizing`` says that too; the command line must not load it."""

LIMITS: Final[tuple[Setting, ...]] = (BALANCING, BALANCE_BY, MINIMAL_SIZE, READS, WRITES)
