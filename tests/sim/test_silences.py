"""After minutes without brokers or coordinators no operation is rolled back and no node is excluded."""

import pytest

from stele.coordinator.model import StepContext
from stele.domain.names import RequestKind
from stele_simulator.patching import Patch
from stele_simulator.planting import change_operation
from stele_simulator.processes.disaster import (
    ALTER,
    BROKERS,
    COORDINATORS,
    EVERYBODY,
    EXCLUDE,
    LEAVE,
    REBUILD,
    SNAPSHOT,
    STOPPED,
    Disaster,
)
from stele_simulator.processes.run import run_disaster_scenario
from stele_simulator.processes.silences import SILENCE
from stele_simulator.scenario import Action


def _run(seed: int, silence: Action, tablets: int = 0) -> tuple[str, str]:
    """Return the invariant that failed and the fact that broke it. Both are empty if none did."""
    result = run_disaster_scenario(
        Disaster(
            seed=seed,
            logs=1,
            replicas=2,
            nodes=4,
            members=3,
            clients=1,
            callers=1,
            tablets=tablets,
            silences=(silence,),
        )
    )
    assert result.finished["silences"] == 1
    failure = result.failure
    return ("", "") if failure is None else (failure.invariant, failure.found)


BROKERS_AWAY = Action(0.045, BROKERS, EVERYBODY, 54.0, 764977, EXCLUDE)
"""By this chance a node that leaves is streamed from when the brokers go away, and still when they are back."""


def test_unreachable_brokers_roll_nothing_back() -> None:
    assert _run(1, BROKERS_AWAY) == ("", "")


def test_coordinator_that_counts_its_own_absence_is_found() -> None:
    with Patch() as patch:
        patch.attribute(StepContext, "counted_since", lambda self, from_s: from_s)
        invariant, found = _run(1, BROKERS_AWAY)
    assert invariant == SILENCE
    assert "undoes it" in found


def test_table_snapshot_rolled_back_by_silence_is_found() -> None:
    with Patch() as patch:
        change_operation(patch, RequestKind.TABLE_SNAPSHOT, ends_by_silence=True)
        invariant, found = _run(3, Action(0.02, BROKERS, "n2", 120.0, 3, SNAPSHOT), tablets=2)
    assert invariant == SILENCE
    assert "no progress in snapshot" in found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [BROKERS, STOPPED])
@pytest.mark.parametrize("target", [EVERYBODY, COORDINATORS, "n1"])
@pytest.mark.parametrize("asked", [LEAVE, REBUILD, ALTER, SNAPSHOT])
def test_silence_rolls_nothing_back(kind: str, target: str, asked: str) -> None:
    assert _run(1, Action(0.02, kind, target, 120.0, 1, asked), tablets=2) == ("", "")
