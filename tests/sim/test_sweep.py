"""Sweeps: results of many runs, and the endless sweep."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import islice
from multiprocessing import active_children
from pathlib import Path

import msgspec
import pytest

from stele_simulator.sweep import Sweep, endless, summary, sweep

pytestmark = [pytest.mark.slow]

SHORT = 142
"""A seed whose run takes less than most, as the one after it."""
ENDS_S = 240.0


def test_endless_sweep_runs_the_same_seeds() -> None:
    runs = endless(SHORT, 2)
    found = [*islice(runs, 2)]
    runs.close()
    assert active_children() == []
    for each in found:
        (again,) = sweep(each.seed, each.seed, 1)
        assert again.trace_hash == each.trace_hash
    whole = summary(found)
    assert (whole.seeds, whole.failed) == (2, ())
    assert whole.epochs == sum(r.epochs for r in found) > 0


def test_endless_sweep_prints_its_summary_when_interrupted(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "stele.cli", "sim", "sweep", "--forever"),
        *("--seeds", f"{SHORT}..{SHORT}", "--jobs", "2"),
    ]
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code += "; from stele.cli.__main__ import main; main()"
    command[1:3] = ["-c", code]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "Until Ctrl-C" in process.stdout.readline()
        assert "seeds passed" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=ENDS_S)
    assert process.returncode == 0, out + err
    assert "Traceback" not in err
    report = tmp_path / "stele-sim-soak.json"
    found = msgspec.json.decode(report.read_bytes(), type=Sweep)
    assert found.seeds > 0
    assert f"{found.seeds} of {found.seeds} seeds passed" in out
