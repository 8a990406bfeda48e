"""The process's metrics: one registry, shown at /metrics. Names begin with `stele_`."""

from __future__ import annotations

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Histogram,
)

# Not prometheus_client's own: libraries that we import put metrics of theirs there.
REGISTRY = CollectorRegistry(auto_describe=True)
for _collector in (GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR):
    REGISTRY.register(_collector)

foreign_messages = Counter(
    "stele_foreign_messages",
    "Messages that speak of another log and were left out, by flow.",
    ["flow"],
    registry=REGISTRY,
)
http_request_seconds = Histogram(
    "stele_http_request_seconds",
    "Time from the request to the end of the answer.",
    ["method", "handler", "status"],
    # An append takes 1 ms, a barrier read up to the request time-out of 10 s.
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
