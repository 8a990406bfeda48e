"""A failing scenario is made small, and the small one fails by the same invariant."""

import pytest

from stele.sim.making import make_scenario
from stele.sim.mutants import MUTANTS
from stele.sim.patching import Patch
from stele.sim.run import Failure, run_scenario
from stele.sim.scenario import Scenario
from stele.sim.shrink import shrink
from tests.sim.record import read_record

pytestmark = pytest.mark.slow

BUG = "rollback_after_the_point_of_no_return"
MOST_SEEDS = 60
MOST_RUNS = 100


def test_a_planted_bug_is_shrunk_to_what_it_needs() -> None:
    """To undo an operation past its point of no return takes the operation, what delays it, and a reason."""
    with Patch() as patch:
        MUTANTS[BUG](patch)
        scenario, failure = _first_failure()
        shrunk = shrink(scenario, failure, most_runs=MOST_RUNS)
        again = run_scenario(shrunk.scenario).failure
    assert again is not None
    assert again.invariant == failure.invariant == "I11"
    assert 2 * len(shrunk.scenario.actions) < len(scenario.actions)
    assert {"cancel", "wipe", "wipe_on"} & {action.kind for action in shrunk.scenario.actions}
    assert run_scenario(shrunk.scenario).failure is None, "the system without the bug passes it"


def _first_failure() -> tuple[Scenario, Failure]:
    """Of the run on record, or where the cores' timing has moved on, of another."""
    for seed in (read_record()[BUG]["seed"], *range(MOST_SEEDS)):
        scenario = make_scenario(seed, "rough")
        failure = run_scenario(scenario).failure
        if failure is not None:
            return scenario, failure
    raise AssertionError(f"no seed below {MOST_SEEDS} finds the planted bug")
