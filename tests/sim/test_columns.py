"""Random runs of tables whose columns change under load, with their checks."""

import pytest

from stele_simulator.processes.disaster import make_columns
from stele_simulator.processes.run import run_disaster_scenario

SEEDS = (3,)
"""Runs of `make test`: five seconds of processor time each."""
MANY_SEEDS = range(60)


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[] if s in SEEDS else pytest.mark.slow) for s in MANY_SEEDS]
)
def test_columns_change_under_load_without_lost_values(seed: int) -> None:
    result = run_disaster_scenario(make_columns(seed))
    assert result.passed, result.failure
    assert result.finished["columns read and written"] > 100
