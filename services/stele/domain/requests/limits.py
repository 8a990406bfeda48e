"""How many requests are remembered, and for how long."""

from typing import Final

from stele.domain.features.counts import Count

GENERATIONS: Final = Count(
    name="request_memory",
    counts="generations of decided requests, half a MiB each",
    default=128,
    most=4096,
)
"""Sealed generations that are kept, beside the one that is being filled: 64 MiB when the log does not say
otherwise. Part of the log's format.
"""
HISTORY_S: Final = Count(
    name="request_history_s",
    counts="seconds that a finished request is kept in the state",
    default=2_592_000,
    most=315_360_000,
)
"""A month, as in Scylla."""
FINISHED: Final = Count(
    name="finished_requests",
    counts="finished requests that are kept at most, the newest, however young the others are",
    default=10_000,
    most=100_000,
)
"""Each takes a kilobyte in every process. The number wins over the time: it is memory that runs out."""
