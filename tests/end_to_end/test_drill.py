"""The drill as a user runs it: a cluster loses its log under load and keeps all acknowledged writes."""

import subprocess
import sys
from pathlib import Path

import pytest

from stele.cli.places import is_held
from stele_harness.demo.checks import read_report

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

DEADLINE_S = 1700.0
CLAIMS = {
    "no acknowledged command is lost",
    "no epoch is lost that anybody had read",
    "no read went back behind an acknowledged write",
    "no acknowledged write is lost",
    "every process has the same state at the same epoch",
}


def test_drill_passes_every_check(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ("drill", "--dir", str(tmp_path / "stack"), "--report", str(report))
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
    assert done.returncode == 0, f"{found.failure}\n{broken}\n{done.stdout[-4000:]}{done.stderr}"
    assert {check.name for check in found.checks} == CLAIMS
    assert found.figures["commands_lost"] == 0
    assert not is_held(tmp_path / "stack"), "the cluster still runs"
    assert not (tmp_path / "stack" / "stack.json").exists()
