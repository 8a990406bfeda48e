"""The demo, as anybody runs it: a command, its exit status, its report, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stele.cli.demo.checks import Report, read_report
from stele.cli.local.lock import is_held

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

DEADLINE_S = 840.0  # about 90 s on two idle cores
CHECKS = {
    "a node joins under load while the coordinator is killed",
    "a node leaves under load while the metadata-log is killed",
    "a node of another cluster is refused",
    "a leave below the replication factor is refused",
    "a node that has left is refused",
    "a dead node is replaced under load",
    "two nodes join as one transition",
    "a dead node is removed under load",
    "a leave waits for the ranges of another, then runs",
    "a table is split while it is written",
    "a new node is given its share of the tablets",
    "a node that leaves gives its tablets away first",
    "every row of a table is read back after its tablets were split and moved",
    "no read went back behind an acknowledged write",
    "no acknowledged write is lost",
    "every file is read back with its SHA-256 through every node",
    "no write with a fenced-out version is accepted",
    "every process has the same state at the same epoch",
    "the compacted topic holds the placements of the newest epoch",
    "Spark's Delta table holds the placements of the newest epoch",
    "Spark's history table gives the placements of past epochs",
    "a replay of the whole log gives the same state",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Report]:
    """The directory, the output and the report of one run."""
    directory = tmp_path_factory.mktemp("demo")
    report = directory / "report.json"
    arguments = ("demo", "--dir", str(directory / "stack"), "--report", str(report))
    done = subprocess.run(
        [sys.executable, "-m", "stele.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    found = read_report(report)
    broken = [check for check in found.checks if not check.held]
    assert done.returncode == 0, f"{found.failure}\n{broken}\n{done.stdout[-6000:]}{done.stderr}"
    return directory / "stack", done.stdout, found


def test_every_check_of_the_demo_holds(run: tuple[Path, str, Report]) -> None:
    _, _, report = run
    assert report.held
    assert {check.name for check in report.checks} == CHECKS


def test_the_operations_moved_data_and_the_load_went_on(run: tuple[Path, str, Report]) -> None:
    _, _, report = run
    figures = report.figures
    assert float(figures["library_files"]) > 500
    assert float(figures["join_streamed_bytes"]) > 0
    assert float(figures["leave_streamed_bytes"]) > 0
    assert float(figures["replace_streamed_bytes"]) > 0
    assert float(figures["writes_acknowledged"]) > 100
    assert float(figures["longest_gap_s"]) < 10


def test_the_timeline_names_the_steps_and_the_faults(run: tuple[Path, str, Report]) -> None:
    _, output, _ = run
    for part in (
        "kill -9 coordinator",
        "kill -9 metadata-log",
        "kill -9 n3, and nobody starts it again",
        "the cause is n2: is down",
        "write_both_read_old",
        "write_both_read_new",
        "checks held",
    ):
        assert part in output


def test_nothing_is_left_running(run: tuple[Path, str, Report]) -> None:
    directory, _, _ = run
    assert not is_held(directory)
    assert not (directory / "stack.json").exists()
