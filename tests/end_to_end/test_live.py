"""A short run of the checkers on real processes: three brokers, faults, and a history without a violation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

MINUTES = 0.75
SEED = 5
"""A broker is down for most of the run. Faults hit nodes, a metadata-log and a coordinator."""
DEADLINE_S = 1700


def test_history_of_real_processes_under_faults_passes_the_checks(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "stele.cli", "sim", "live"),
        *("--minutes", str(MINUTES), "--seed", str(SEED), "--dir", str(tmp_path), "--json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    checked = result["checked"]
    assert result["failure"] is None
    assert result["faults"] >= 5 and result["requests"]["join"] >= 3
    assert min(result["writes"], result["reads"]) > 300
    assert checked["commands"] > 20 < checked["epochs"]
    assert checked["owed"]["reads"] > checked["owed"]["without_a_broker"] > 5
    # Two observers. The check requires every epoch until the end of the load; a few may follow it.
    assert checked["gates"] > 10 and checked["watched"] > checked["epochs"]
    assert (tmp_path / "history.jsonl").stat().st_size > 100_000
    assert json.loads((tmp_path / "report.json").read_text())["seed"] == SEED
