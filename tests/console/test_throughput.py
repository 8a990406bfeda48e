"""Commits per second and the latency of commands from two readings of the metrics."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from stele.console.node_stats import NodeSample, NodesSample, sums_of, with_rates
from stele.console.throughput import KEPT, Throughput, buckets_of, quantile_s
from stele.node import metrics
from stele.runtime.metrics import REGISTRY

METRICS = """# TYPE stele_log_commit_seconds histogram
stele_log_commit_seconds_bucket{le="0.01"} 2.0
stele_log_commit_seconds_bucket{le="+Inf"} 3.0
stele_log_commit_seconds_count 3.0
stele_log_commit_seconds_sum 0.5
# TYPE stele_log_in_flight gauge
stele_log_in_flight 9.0
"""
INF = float("inf")


def test_buckets_of_all_instances_are_summed() -> None:
    assert buckets_of([METRICS, METRICS]) == {0.01: 4.0, INF: 6.0}


@pytest.mark.parametrize(
    ("part", "expected_s"), [(0.25, 0.005), (0.5, 0.01), (0.75, 0.055), (0.99, 0.0982)]
)
def test_quantile_is_interpolated_within_its_bucket(part: float, expected_s: float) -> None:
    before, after = {0.01: 10.0, 0.1: 20.0, INF: 20.0}, {0.01: 15.0, 0.1: 30.0, INF: 30.0}
    assert quantile_s(part, before, after) == pytest.approx(expected_s)


def test_quantile_above_the_highest_bound_is_that_bound() -> None:
    assert quantile_s(0.99, {}, {0.01: 0.0, INF: 5.0}) == 0.01


@pytest.mark.parametrize(
    "after", [{}, {0.01: 4.0, INF: 4.0}, {0.01: 1.0, INF: 9.0}], ids=["none", "idle", "restarted"]
)
def test_latency_is_unknown_without_commands_or_after_a_restart(
    after: dict[float, float],
) -> None:
    assert quantile_s(0.5, {0.01: 4.0, INF: 4.0}, after) is None


def test_commit_rate_is_unknown_after_the_log_was_replaced() -> None:
    throughput = Throughput()
    for now_s, epoch in ((100.0, 50), (105.0, 100), (110.0, 3)):
        throughput.add(now_s, round(1000 * now_s), epoch, {})
    assert [(s.at_ms, s.commits_per_s) for s in throughput.samples] == [
        (105_000, 10.0),
        (110_000, None),
    ]


def test_only_the_newest_samples_are_kept() -> None:
    throughput = Throughput()
    for n in range(KEPT + 3):
        throughput.add(float(n), n, n + 1, {})
    assert len(throughput.samples) == KEPT
    assert throughput.samples[-1].at_ms == KEPT + 2


# Rates and latencies of nodes, from two samples of their metrics.


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
