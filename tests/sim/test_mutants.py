"""Every planted bug is found: by the run that found it first, or, where the cores' timing has moved on, soon.

``mutants.json`` holds what ``stele sim mutants`` found: after how many runs, by which run and which invariant;
or the story that does not go as it is written. A bug with no runs is one that nothing has found yet.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from stele.sim.mutants import MOST_SEEDS, MUTANTS, hunt, rule_of, run_mutant
from stele.sim.patching import Patch
from stele.sim.run import run_seed
from stele.sim.story import StoryError, tell
from stele.sim.violation import Violation

STORIES = Path(__file__).parent / "stories"
FOUND: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "mutants.json").read_text())


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_is_found(name: str) -> None:
    known = FOUND[name]
    if "story" in known:
        with Patch() as patch, pytest.raises((StoryError, Violation)):
            MUTANTS[name](patch)
            tell(STORIES / f"{known['story']}.txt")
        return
    if not known["runs"]:
        pytest.xfail(f"not found yet: {rule_of(name)}")
    if run_mutant(name, known["seed"], known["profile"]).failure is None:
        assert hunt(name, MOST_SEEDS).seed >= 0, f"{rule_of(name)} Nothing noticed."


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
    before = run_seed(3, "rough").trace_hash
    for mutant in MUTANTS.values():
        with Patch() as patch:
            mutant(patch)
    assert run_seed(3, "rough").trace_hash == before
