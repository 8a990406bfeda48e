"""Every planted bug is found: by the run on record, or, where the cores' timing has moved on, soon.

``mutants.json`` holds what ``stele sim mutants`` found: after how many runs, by which run and which invariant,
or those of another run where that one is long; or the story that does not go as it is written, with the
invariant that fails in it where one does; or the test that fails, and whether it needs a broker.
"""

import re
import warnings
from pathlib import Path

import pytest

from stele.sim.mutants import (
    BY_DISASTERS,
    MOST_SEEDS,
    MUTANTS,
    SIMULATED,
    hunt,
    rule_of,
    run_mutant,
)
from stele.sim.patching import Patch
from stele.sim.processes.making import Disaster
from stele.sim.processes.run import run_disaster_scenario
from stele.sim.processes.stories.story import StoryError
from stele.sim.processes.stories.telling import tell
from stele.sim.violation import Violation
from tests import planted
from tests.sim.record import PAGE, page_with, read_record

STORIES = Path(__file__).parent / "stories"
FOUND = read_record()
BY_STORIES = sorted(name for name, known in FOUND.items() if "story" in known)
BY_TESTS = sorted(name for name, known in FOUND.items() if "test" in known)
BY_RUNS = sorted({*FOUND} - {*BY_STORIES} - {*BY_TESTS})
OF_FORM = {"6"}
"""Rules that no state can break."""
TEST_TIMEOUT_S = 110
RENEW = "python -m tests.sim.record finds a run for it, and writes the table anew"


def test_the_page_shows_the_record() -> None:
    page = PAGE.read_text()
    assert page == page_with(page, FOUND), RENEW


def test_each_rule_has_a_planted_bug_or_says_what_holds_it() -> None:
    section = (
        PAGE.read_text()
        .partition("### A planted bug for each rule")[2]
        .partition("\n\nBugs are")[0]
    )
    found = re.findall(r"^\| (\d+|I\d+) \| [^|]* \| (.*) \|$", section, re.MULTILINE)
    rows = dict(found)
    assert len(rows) == len(found)
    assert [*rows] == [*map(str, range(1, 14)), *(f"I{number}" for number in range(1, 15))]
    for rule, cell in rows.items():
        if rule not in OF_FORM:
            assert {*re.findall(r"`(\w+)`", cell)} <= FOUND.keys() and "`" in cell, rule


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_RUNS)
def test_mutant_is_found_by_a_run(name: str) -> None:
    known = FOUND[name]
    if run_mutant(name, known["seed"]).failure is None:
        warnings.warn(f"{name} is hunted, which takes long: {RENEW}", stacklevel=1)
        assert hunt(name, MOST_SEEDS).seed >= 0, f"{rule_of(name)} Nothing noticed."


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_STORIES)
def test_mutant_is_found_by_a_story(name: str) -> None:
    known = FOUND[name]
    with Patch() as patch, pytest.raises((StoryError, Violation)) as raised:
        MUTANTS[name](patch)
        tell(STORIES / f"{known['story']}.txt")
    if "invariant" in known:
        assert isinstance(raised.value, Violation)
        assert raised.value.invariant == known["invariant"]


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_TESTS)
def test_mutant_is_found_by_a_test(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In a process of its own, into which the bug is planted before its tests are imported."""
    known, env, output = FOUND[name], dict[str, str](), tmp_path / "output"
    if known.get("broker"):
        env["STELE_TEST_KAFKA"] = request.getfixturevalue("kafka")
    status = planted.find(name, known["test"], env, output, TEST_TIMEOUT_S)
    assert status == pytest.ExitCode.TESTS_FAILED, output.read_text()[-3000:]


def test_every_mutant_is_found_by_something_that_may_find_it() -> None:
    assert {*BY_RUNS, *BY_STORIES} == {*SIMULATED}
    assert {*BY_TESTS} == {*MUTANTS} - {*SIMULATED}


def test_a_mutant_is_hunted_where_it_was_found() -> None:
    assert {*BY_RUNS} == BY_DISASTERS


def test_every_mutant_has_its_run_on_record() -> None:
    assert sorted(FOUND) == sorted(MUTANTS), (
        "run `stele sim mutants --json` and write down what it found"
    )
    assert len(MUTANTS) >= 20


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_gone_once_its_patch_is_left(name: str) -> None:
    with Patch() as patch:
        MUTANTS[name](patch)
    with Patch() as again:
        MUTANTS[name](again)  # raises when something is not back in its place


def test_after_all_mutants_a_seed_runs_as_before() -> None:
    quiet = Disaster(seed=3)
    before = run_disaster_scenario(quiet).trace_hash
    for mutant in MUTANTS.values():
        with Patch() as patch:
            mutant(patch)
    assert run_disaster_scenario(quiet).trace_hash == before


def test_a_bug_that_would_only_break_the_call_is_not_planted() -> None:
    """Any test would find it, so that it would prove nothing."""
    with Patch() as patch, pytest.raises(TypeError, match="out of date"):
        patch.attribute(Patch, "item", lambda patch, table: None)
