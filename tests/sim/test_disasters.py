"""Production processes under virtual time lose their log: a fixed set of seeds passes, the same everywhere."""

import os
import subprocess
import sys

import msgspec
import pytest

from stele.sim.processes.making import Disaster
from stele.sim.processes.run import run_disaster, run_disaster_scenario
from stele.sim.result import Result
from stele.sim.scenario import ClockError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEEDS = (0, 1, 2, 3, 4, 6, 8, 105)
HOUR_MS = 3_600_000


def test_disasters_pass() -> None:
    results = [run_disaster(seed) for seed in SEEDS]
    failed = [(r.seed, r.failure.invariant, r.failure.found) for r in results if r.failure]
    assert not failed
    assert sum(r.finished["recovered"] for r in results) >= len(SEEDS) / 2
    assert sum(r.truncated > 0 for r in results) >= 2
    assert sum(r.commands for r in results) > 50 * len(SEEDS)
    assert sum(r.checks for r in results) > 500 * len(SEEDS)
    assert sum(r.barriers for r in results) > 50 * len(SEEDS)
    assert sum(r.writes for r in results) > 50 * len(SEEDS)
    assert sum(r.finished["permissions"] for r in results) > 50 * len(SEEDS)
    assert sum(r.finished["left"] for r in results) >= len(SEEDS)
    assert sum(r.requests for r in results) >= len(SEEDS)
    assert sum(r.finished.get("by balancer: tablet_migration", 0) for r in results) >= len(SEEDS)
    assert sum(r.finished["stopped by a feature"] for r in results) >= 3
    assert sum(r.finished["refused with another's disk"] for r in results) >= 2
    assert sum(r.finished["refused with an older copy"] for r in results) >= 1
    assert sum(r.finished["old ends"] for r in results) >= 10


def test_a_coordinator_and_a_balancer_whose_clocks_are_an_hour_ahead_work() -> None:
    """The metadata-logs, whose clocks are right, take no ids from the future."""
    ahead = dict.fromkeys(("c1", "c2", "b1"), ClockError(HOUR_MS, 0))
    result = run_disaster_scenario(Disaster(seed=3, tablets=4, members=3, clocks=ahead))
    assert result.passed, result.failure
    assert result.finished["left"]


def test_a_disaster_is_the_same_whatever_the_hash_seed() -> None:
    hashes = {_run_with_hash_seed(hash_seed).trace_hash for hash_seed in ("1", "4711")}
    assert hashes == {run_disaster(0).trace_hash}


def _run_with_hash_seed(hash_seed: str) -> Result:
    command = [sys.executable, "-m", "stele.sim", "run"]
    command += ["--seed", "0", "--json"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        timeout=180,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Result)
