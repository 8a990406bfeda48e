"""A failing scenario is made small, and the small one fails by the same invariant."""

import msgspec
import pytest

from stele_simulator.mutants import PLANTED
from stele_simulator.patching import Patch
from stele_simulator.processes.disaster import Disaster, make_disaster
from stele_simulator.processes.run import run_disaster_scenario
from stele_simulator.report import shrunk_lines
from stele_simulator.shrink import shrink
from tests.sim.record import read_record

pytestmark = [pytest.mark.slow]

BUG = "one_ack_is_a_quorum"
MOST_RUNS = 40


def test_planted_bug_is_shrunk_to_its_necessary_parts() -> None:
    """A write on only one replica needs no lost log, fault or request."""
    scenario = make_disaster(read_record()[BUG]["seed"])
    with Patch() as patch:
        PLANTED[BUG].plant(patch)
        failure = run_disaster_scenario(scenario).failure
        assert failure is not None
        shrunk = shrink(scenario, failure, run_disaster_scenario, MOST_RUNS)
        written = msgspec.json.encode(shrunk.scenario)
        again = run_disaster_scenario(msgspec.json.decode(written, type=Disaster)).failure
    assert again is not None
    assert again.invariant == failure.invariant == "I14"
    small = shrunk.scenario
    assert not (small.rounds or small.actions or small.requests or small.clocks)
    assert small.clients == 1
    assert failure.invariant in shrunk_lines(shrunk)[-1]
