"""The conformance kit passes the project's own agents and reports the rule that a faulty agent breaks."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from stele.cli.errors import Exit
from stele.cli.main import run
from stele.runtime.settings import KafkaSettings
from stele_harness.conformance import cluster
from stele_harness.conformance import command as conformance
from stele_harness.conformance.command import too_busy
from stele_harness.conformance.kit import Result, name_of, run_kit
from stele_harness.conformance.rules import RULES, Broken
from stele_harness.conformance.scenes import SCENES
from stele_harness.stack.process import Program, spawn
from tests import forked
from tests.conformance.broken import BROKEN
from tests.conformance.broken_stores import BROKEN_STORES, IN_EVERY_RUN
from tests.examples.go_agent import command_line
from tests.sampling import sampled

FAULTS = [
    fault.__name__
    for fault in BROKEN_STORES
    if os.environ.get("STELE_HUNT") or fault in IN_EVERY_RUN
]
PATIENCE = 12.0  # a busy machine is no fault of an agent
EVERY_SCENE = tuple(map(name_of, SCENES))
AGENTS = {
    "the store for trials": lambda: (sys.executable, "-m", "stele.node"),
    "sixty lines": lambda: (sys.executable, "examples/sixty_lines/store.py"),
    "valkey": lambda: (sys.executable, "examples/valkey_shards/agent.py"),
    "go": command_line,
}


@pytest.fixture(autouse=True)
def processes_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "spawn", forked.start)


def test_faulty_agents_break_only_rules_of_the_kit() -> None:
    broken = [*BROKEN.values(), *BROKEN_STORES.values()]
    assert {rule for rule, _ in broken} <= {*RULES}


@pytest.mark.broker
@pytest.mark.parametrize("agent", sampled(AGENTS, len(AGENTS)))
async def test_agents_of_the_project_pass_every_scene(
    kafka: str, tmp_path: Path, agent: str
) -> None:
    argv = await asyncio.to_thread(AGENTS[agent])
    settings = KafkaSettings(kafka_bootstrap=kafka)
    result = await run_kit(settings, tmp_path, argv, patience=PATIENCE)
    assert result.broken == ()
    assert result.scenes == EVERY_SCENE
    assert not result.not_asked
    assert bool(result.no_columns) is (agent != "the store for trials")
    # The store for trials takes its values from a coordinating node; its own tests cover that.
    if agent != "the store for trials":
        assert not result.not_tried and not result.not_counted


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("bug", [bug.__name__ for bug in BROKEN])
async def test_kit_reports_the_rule_that_a_faulty_agent_breaks(
    kafka: str, tmp_path: Path, bug: str
) -> None:
    argv = (sys.executable, "-m", "tests.conformance.broken", bug)
    rule, scene = {b.__name__: found for b, found in BROKEN.items()}[bug]
    result = await run_kit(
        KafkaSettings(kafka_bootstrap=kafka),
        tmp_path,
        argv,
        only=[] if scene is None else [name_of(scene)],
    )
    assert rule in {broken.rule for broken in result.broken}, result


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
async def test_kit_reports_the_rule_that_a_faulty_store_breaks(
    kafka: str, tmp_path: Path, fault: str
) -> None:
    argv = (sys.executable, "-m", "tests.conformance.broken_stores", fault)
    rule, scene = {b.__name__: found for b, found in BROKEN_STORES.items()}[fault]
    result = await run_kit(
        KafkaSettings(kafka_bootstrap=kafka), tmp_path, argv, only=[name_of(scene)]
    )
    assert rule in {broken.rule for broken in result.broken}, result


@pytest.mark.broker
async def test_program_that_exits_at_once_breaks_the_rule_joins(kafka: str, tmp_path: Path) -> None:
    result = await run_kit(
        KafkaSettings(kafka_bootstrap=kafka),
        tmp_path,
        (sys.executable, "-c", "raise SystemExit('not me')"),
    )
    (broken,) = result.broken
    assert broken.rule == "joins" and "not me" in broken.what
    assert not result.scenes


def test_settings_of_another_cluster_are_not_passed_to_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After ``eval "$(stele stack env)"`` in the shell, agents would read that cluster's snapshots."""
    monkeypatch.setenv("STELE_CATCH_UP_URLS", "http://127.0.0.1:1")
    monkeypatch.setenv("STELE_LOG_LEVEL", "debug")
    monkeypatch.setenv("MY_STORE", "fast")
    environment = cluster.clean_environment()
    assert "STELE_CATCH_UP_URLS" not in environment
    assert environment["STELE_LOG_LEVEL"] == "debug"
    assert environment["MY_STORE"] == "fast"


def test_last_output_of_a_process_is_whole_lines(tmp_path: Path) -> None:
    out, err = tmp_path / "a1.out", tmp_path / "a1.err"
    many = "print(*range(1000, 2000), sep='\\n')"
    process = spawn(Program("a1", (sys.executable, "-c", many), stdout=out, stderr=err))
    process.wait(60)
    first, *lines = cluster.last_words(process).splitlines()
    assert str(err) in first
    assert lines == [str(number) for number in range(1992, 2000)]


def test_folder_with_other_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "thesis.txt"
    kept.write_text("years of work")
    assert run(["conformance", "--dir", str(tmp_path), "--", "true"]) == Exit.USAGE
    assert kept.read_text() == "years of work"
    assert "Give --dir a folder" in " ".join(capsys.readouterr().err.split())


def test_warning_about_load_depends_on_the_number_of_cores() -> None:
    assert not too_busy(load=2.5, processors=2)
    assert "load 70 on 2 cores" in too_busy(load=70.2, processors=2)
    assert not too_busy(load=70.2, processors=64)


def test_broken_rule_on_a_busy_machine_is_reported_with_the_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def late(*_: object) -> Result:
        return Result(scenes=(), broken=(Broken("joins", "a1", "no membership within 60 s"),))

    def load() -> tuple[float, float, float]:
        return 500.0, 0.0, 0.0

    monkeypatch.setattr(conformance, "run_kit", late)
    monkeypatch.setattr(os, "getloadavg", load)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    code = run(["conformance", "--kafka", "127.0.0.1:1", "--dir", str(tmp_path), "--", "true"])
    assert code == Exit.FAILED
    said = " ".join(capsys.readouterr().out.split())
    assert "joins: a1: no membership within 60 s" in said
    assert "load 500 on 2 cores" in said
