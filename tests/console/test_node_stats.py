"""Rates and latencies of nodes, from two samples of their metrics."""

from __future__ import annotations

from prometheus_client import generate_latest

from stele.console.node_stats import NodeSample, NodesSample, sums_of, with_rates
from stele.node import metrics
from stele.runtime.metrics import REGISTRY


def sample(at_s: int, **requests: float | None) -> NodesSample:
    """``requests`` took 2 ms each."""
    nodes = {
        name: NodeSample(requests=count, seconds=None if count is None else 0.002 * count)
        for name, count in requests.items()
    }
    return NodesSample(at_ms=1000 * at_s, nodes=nodes, rates={}, latencies={})


def test_sums_are_read_from_the_metrics_of_a_node() -> None:
    before = sums_of(generate_latest(REGISTRY).decode())
    for kind in ("get", "put"):
        metrics.request_seconds.labels(kind).observe(0.5)
    after = sums_of(generate_latest(REGISTRY).decode())
    assert after["requests"] - before["requests"] == 2
    assert after["seconds"] - before["seconds"] == 1
    assert sums_of("") == {}
    assert sums_of("no metrics {") == {}


def test_rate_needs_two_samples_of_one_process() -> None:
    before = sample(10, steady=100, idle=5, restarted=900, silent=3)
    now = with_rates(before, sample(15, steady=200, idle=5, restarted=4, silent=None, fresh=7))
    assert now.rates == {"steady": 20.0, "idle": 0.0}
    assert now.latencies == {"steady": 2.0}
