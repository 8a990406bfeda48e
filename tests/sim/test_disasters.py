"""Random runs of production processes that lose their log: fixed seeds pass, with the same trace everywhere."""

import os
import subprocess
import sys

import msgspec
import pytest

from stele_simulator.processes.disaster import Disaster
from stele_simulator.processes.run import run_disaster, run_disaster_scenario
from stele_simulator.result import Result
from stele_simulator.scenario import ClockError

SEEDS = (8, 105)
"""Runs of `make test`: they take some seconds each, and have most kinds of faults between them."""
MANY_SEEDS = range(300)
"""Runs of `make test-all`."""
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[] if s in SEEDS else pytest.mark.slow) for s in MANY_SEEDS]
)
def test_disaster_passes(seed: int) -> None:
    result = run_disaster(seed)
    assert result.passed, result.failure


@pytest.mark.slow
def test_disasters_cover_what_they_must_test() -> None:
    results = [run_disaster(seed) for seed in (0, 1, 2, 3, 4, 6, 8, 105)]
    runs = len(results)
    assert sum(r.finished["recovered"] for r in results) >= runs / 2
    assert sum(r.truncated > 0 for r in results) >= 2
    assert sum(r.commands for r in results) > 50 * runs
    assert sum(r.checks for r in results) > 500 * runs
    assert sum(r.barriers for r in results) > 50 * runs
    assert sum(r.writes for r in results) > 50 * runs
    assert sum(r.finished["permissions"] for r in results) > 50 * runs
    assert sum(r.finished["left"] for r in results) >= runs
    assert sum(r.requests for r in results) >= runs
    assert sum(r.finished.get("by balancer: tablet_migration", 0) for r in results) >= runs
    assert sum(r.finished["stopped by a feature"] for r in results) >= 3
    assert sum(r.finished["refused with another's disk"] for r in results) >= 2
    assert sum(r.finished["refused with an older copy"] for r in results) >= 1
    assert sum(r.finished["old ends"] for r in results) >= 10


@pytest.mark.slow
def test_coordinator_and_balancer_with_clocks_an_hour_ahead_work() -> None:
    """The metadata-logs have right clocks and reject ids from the future."""
    ahead = dict.fromkeys(("c1", "c2", "b1"), ClockError(HOUR_MS, 0))
    result = run_disaster_scenario(Disaster(seed=3, tablets=4, members=3, clocks=ahead))
    assert result.passed, result.failure
    assert result.finished["left"]


@pytest.mark.slow
def test_disaster_is_the_same_for_any_hash_seed() -> None:
    result = run_disaster(0)
    assert result.passed, result.failure
    assert _run_with_hash_seed("4711").trace_hash == result.trace_hash


def _run_with_hash_seed(hash_seed: str) -> Result:
    command = [sys.executable, "-m", "stele_simulator", "run", "--seed", "0", "--json"]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=env, capture_output=True, timeout=180, check=True)
    return msgspec.json.decode(done.stdout, type=Result)
