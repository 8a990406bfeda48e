"""The process's metrics: one registry, shown at /metrics. Names begin with `stele_`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Histogram,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from stele.log.deliveries import DELIVERIES

# Not prometheus_client's own: libraries that we import put metrics of theirs there.
REGISTRY = CollectorRegistry(auto_describe=True)
for _collector in (GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR):
    REGISTRY.register(_collector)


class _UndeliveredRecords(Collector):
    def collect(self) -> Iterator[CounterMetricFamily]:
        found = CounterMetricFamily(
            "stele_undelivered_records",
            "Records that the brokers did not take, by topic and by Kafka's name of the error.",
            labels=["topic", "error"],
        )
        for labels, count in sorted(DELIVERIES.counts().items()):
            found.add_metric(labels, count)
        yield found


REGISTRY.register(_UndeliveredRecords())

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
