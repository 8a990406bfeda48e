"""Two coordinators that both assume to be elected, without knowing the other's claim."""

import pytest

from stele_simulator.mutants import PLANTED
from stele_simulator.patching import Patch
from stele_simulator.processes.barriers import ONE_TERM
from stele_simulator.processes.disaster import Disaster, make_disaster
from stele_simulator.processes.rival_coordinators import RIVALS
from stele_simulator.processes.run import run_disaster_scenario
from stele_simulator.scenario import Action

SEEDS = 400


@pytest.fixture
def rivals() -> Disaster:
    """Plan rivals in a quiet cluster."""
    actions = tuple(Action(at_s, RIVALS, seconds=5.0) for at_s in (4.0, 14.0))
    return Disaster(seed=2, actions=actions)


def test_one_of_two_claims_of_a_term_is_refused(rivals: Disaster) -> None:
    lines = list[str]()
    result = run_disaster_scenario(rivals, lines.append)
    assert result.passed, result.failure
    assert result.finished["rival coordinators"] == len(rivals.actions)
    for term in (3, 4):
        refused = f"Term {term} cannot be claimed: the log is at term {term}."
        assert any(refused in line for line in lines)


def test_term_with_two_holders_is_noticed(rivals: Disaster) -> None:
    with Patch() as patch:
        PLANTED["term_is_claimed_twice"].plant(patch)
        failure = run_disaster_scenario(rivals).failure
    assert failure is not None
    assert failure.invariant == ONE_TERM
    assert "has one holder for good" in failure.expected


def test_tenth_of_the_disasters_has_rivals() -> None:
    scenarios = [make_disaster(seed) for seed in range(SEEDS)]
    having = [each for each in scenarios if any(a.kind == RIVALS for a in each.actions)]
    assert SEEDS / 20 < len(having) < SEEDS / 6
    assert all(each.coordinators > 1 for each in having)
