"""Settings of the log for the balancer; each counts from the next look on."""

from typing import Final

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

LIMITS: Final[tuple[Setting, ...]] = (BALANCING, READS, WRITES)
