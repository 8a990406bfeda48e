"""A fixed set of seeds passes, and a seed gives the same run everywhere."""

import os
import subprocess
import sys

import msgspec
import pytest

from stele.sim.run import Result, run_seed

pytestmark = pytest.mark.slow

SEEDS = [("calm", 3), ("rough", 16), ("storm", 10)]


@pytest.mark.parametrize(("profile", "count"), SEEDS)
def test_seeds_pass(profile: str, count: int) -> None:
    results = [run_seed(seed, profile) for seed in range(count)]
    failed = [(r.seed, r.failure.invariant, r.failure.found) for r in results if r.failure]
    assert not failed
    assert sum(r.writes for r in results) > 20 * count
    assert sum(sum(r.finished.values()) for r in results) > 3 * count
    if profile != "calm":
        assert sum(r.faults for r in results) > 5 * count
        assert sum(r.losers for r in results) > count


def test_a_seed_gives_the_same_run_whatever_the_hash_seed() -> None:
    hashes = {_run_with_hash_seed(hash_seed).trace_hash for hash_seed in ("1", "4711")}
    assert len(hashes) == 1


def test_a_seed_gives_the_same_run_twice_in_one_process() -> None:
    assert run_seed(5, "storm").trace_hash == run_seed(5, "storm").trace_hash


def test_two_seeds_give_two_runs() -> None:
    assert run_seed(5, "storm").trace_hash != run_seed(6, "storm").trace_hash


def _run_with_hash_seed(hash_seed: str) -> Result:
    command = [
        sys.executable,
        "-m",
        "stele.sim",
        "run",
        "--seed",
        "7",
        "--profile",
        "storm",
        "--json",
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        timeout=60,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Result)
