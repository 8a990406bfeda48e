"""Commands that take minutes show progress on standard error, not in results."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import fields

from stele.cli import notice
from stele.cli.notice import ProgressLine
from stele_harness.conformance import command as conformance
from stele_harness.conformance.kit import Result, name_of
from stele_harness.conformance.rules import Broken
from stele_harness.conformance.scenes import SCENES
from stele_harness.progress import ProgressSteps
from stele_simulator import sweep
from stele_simulator.result import Result as Run
from tests.cli.conftest import Stele, Terminal
from tests.polling import wait_until

FIGURES: Any = {each.name: 0 for each in fields(Run) if each.type in (int, float)}


def test_progress_line_counts_steps_and_names_running_ones() -> None:
    steps = ProgressSteps("seeds", map(str, range(10, 20)), jobs=5)
    assert re.sub(r"[0-9.]+ s,", "T", steps.line()) == (
        "0 of 10 seeds in T running: 10, 11, 12 and 2 more"
    )
    for seed in (11, 10, 13, 12, 14, 15, 16, 17):
        steps.done(str(seed))
    assert "8 of 10 seeds" in steps.line() and steps.line().endswith("running: 18, 19")


def test_progress_time_is_real_time_in_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ProgressSteps("seeds", ["1"], jobs=1)
    monkeypatch.setattr(time, "monotonic", lambda: -1000.0)
    assert "1 seeds in 0." in steps.line()


def test_progress_line_on_a_terminal_is_overwritten_and_erased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = Terminal()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(notice, "TICK_S", 0.01)
    steps = ProgressSteps("seeds", ["1", "2"], jobs=1)
    with steps.shown():
        wait_until(lambda: "0 of 2 seeds" in written.getvalue(), "the first line", 240)
        steps.done("1")
        wait_until(lambda: "1 of 2 seeds" in written.getvalue(), "the next line", 240)
        with steps.aside():
            asides = len(written.getvalue())
            assert written.getvalue().endswith("\r\x1b[K"), "the line is gone"
        wait_until(lambda: "running: 2" in written.getvalue()[asides:], "the line again", 240)
    assert written.getvalue().endswith("\r\x1b[K")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Report progress often while a command runs. Each run waits for a report."""
    monkeypatch.setattr(notice, "TICK_S", 0.01)
    monkeypatch.setattr(notice, "AGAIN_EVERY_S", 0.0)
    told, tell = list[str](), ProgressLine.tell

    def telling(self: ProgressLine, line: str) -> None:
        told.append(line)
        tell(self, line)

    monkeypatch.setattr(ProgressLine, "tell", telling)
    return told


def wait_until_reported(told: list[str], count: int, name: str) -> None:
    begins, ends = f"{count} of ", f"running: {name}"
    wait_until(lambda: any(x.startswith(begins) and x.endswith(ends) for x in told), name, 240)


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_sweep_shows_progress(
    stele: Stele, slow: list[str], monkeypatch: pytest.MonkeyPatch, json: tuple[str, ...]
) -> None:
    def run(seed: int) -> Run:
        wait_until_reported(slow, seed - 3, str(seed))
        return Run(
            profile="", failure=None, trace_hash="", finished={}, **{**FIGURES, "seed": seed}
        )

    monkeypatch.setattr(sweep, "run_disaster", run)
    ran = stele.ok("sim", "sweep", "--seeds", "3..5", *json)
    assert "2 of 3 seeds" in ran.err and "running" not in ran.out
    if json:
        assert msgspec.json.decode(ran.out)["seeds"] == 3


def test_conformance_kit_shows_the_current_scene(
    stele: Stele, slow: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = map(name_of, SCENES[:2])

    async def played(*arguments: object) -> Result:
        on_scene = cast("Callable[[str, tuple[Broken, ...]], None]", arguments[3])
        for count, scene in enumerate((first, second), 1):
            wait_until_reported(slow, count, scene)
            on_scene(scene, ())
        return Result(scenes=(first, second), broken=())

    monkeypatch.setattr(conformance, "run_kit", played)
    where = ("--kafka", "127.0.0.1:1", "--dir", str(tmp_path), "--scene", second)
    ran = stele("conformance", *where, "--json", "--", "true")
    assert msgspec.json.decode(ran.out)["scenes"] == [first, second]
    assert stele("conformance", *where, "--", "true").out.splitlines() == [
        f"held   {first}",
        f"held   {second}",
        "No rule was broken.",
    ]
