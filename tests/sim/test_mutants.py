"""Each planted bug is found by the run or the story on record, ``mutants.json``.

If the recorded run no longer finds its bug, the bug is hunted, which takes long. A warning then states how to
renew the record.
"""

import re
import warnings
from pathlib import Path

import pytest

from stele_simulator.mutants import MOST_SEEDS, PLANTED, hunt, run_with_bug
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY
from stele_simulator.processes.disaster import Disaster
from stele_simulator.processes.run import run_disaster_scenario
from stele_simulator.processes.stories.player import play_story
from stele_simulator.processes.stories.story import StoryError
from stele_simulator.violation import Violation
from tests.sim.record import read_record

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "verification.md"
STORIES = Path(__file__).parent / "stories"
FOUND = read_record()
BY_STORIES = sorted(name for name, known in FOUND.items() if "story" in known)
BY_RUNS = sorted({*FOUND} - {*BY_STORIES})
UNBREAKABLE = {"6"}
"""Rules that no state can break: rules of form."""
RENEW = "`python -m tests.sim.record` finds a run for it and writes the record"


def test_every_rule_has_a_planted_bug_or_a_test() -> None:
    section = PAGE.read_text().partition("### A planted bug for each rule")[2].partition("\n## ")[0]
    found = re.findall(r"^\| ([ACDIS]?\d+) \| [^|]* \| (.*) \|$", section, re.MULTILINE)
    rows = dict(found)
    assert len(rows) == len(found)
    assert [*rows] == [
        *map(str, range(1, 14)),
        *(f"I{number}" for number in range(1, 15)),
        *(f"S{number}" for number in range(1, 7)),
        *(f"C{number}" for number in range(1, 4)),
        "A1",
        *(f"D{number}" for number in range(1, 5)),
    ]
    for rule, cell in rows.items():
        if rule in UNBREAKABLE:
            continue
        names = re.findall(r"`([^`]+)`", cell)
        assert names, rule
        for name in names:
            assert (ROOT / name).is_file() or PLANTED[name].rule == rule, (rule, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_RUNS)
def test_planted_bug_is_found_by_a_run(name: str) -> None:
    known = FOUND[name]
    if run_with_bug(name, known["seed"]).failure is None:
        warnings.warn(f"{name} is hunted, which takes long: {RENEW}", stacklevel=1)
        assert hunt(name, MOST_SEEDS).seed >= 0, f"{PLANTED[name].description} No run finds it."


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_STORIES)
def test_planted_bug_is_found_by_a_story(name: str) -> None:
    known = FOUND[name]
    with Patch() as patch, pytest.raises((StoryError, Violation)) as raised:
        PLANTED[name].plant(patch)
        play_story(STORIES / f"{known['story']}.txt")
    if "invariant" in known:
        assert isinstance(raised.value, Violation)
        assert raised.value.invariant == known["invariant"]


def test_every_planted_bug_is_on_record() -> None:
    assert sorted(FOUND) == sorted(PLANTED), RENEW
    assert {*BY_RUNS} == {name for name, bug in PLANTED.items() if bug.found_by == RUN}
    assert {*BY_STORIES} == {name for name, bug in PLANTED.items() if bug.found_by == STORY}


def test_planted_bugs_are_removed_with_their_patch() -> None:
    """A second plant raises if a bug is still in place. Afterwards a seed runs as before."""
    quiet = Disaster(seed=3)
    before = run_disaster_scenario(quiet).trace_hash
    for _ in range(2):
        for bug in PLANTED.values():
            with Patch() as patch:
                bug.plant(patch)
    assert run_disaster_scenario(quiet).trace_hash == before


def test_bug_that_would_only_break_the_call_is_not_planted() -> None:
    """Any test would find it, so that it would prove nothing."""
    with Patch() as patch, pytest.raises(TypeError, match="out of date"):
        patch.attribute(Patch, "item", lambda patch, table: None)
