"""Forked services behave like started ones in tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stele_harness.stack.process import Process, Program
from tests import forked
from tests.polling import wait_until

KILLED_S = 60.0
PARENT = """
import os, sys
from pathlib import Path
from tests import forked
from tests.stack.test_forked import command
print(forked.start(command(Path(sys.argv[1]))).pid, flush=True)
os.kill(os.getpid(), 9)
"""

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start processes with separate output, and end them."""
    monkeypatch.delenv(forked.SPAWN, raising=False)
    running = list[Process]()

    def started(**env: str) -> Process:
        running.append(forked.start(command(tmp_path / str(len(running)), **env)))
        return running[-1]

    yield started
    for process in running:
        process.kill()


def command(folder: Path, **env: str) -> Program:
    folder.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "tests.stack.sleeping", "one", "two"]
    return Program("sleeping", argv, folder / "out", folder / "err", {**os.environ, **env})


def said(process: Process) -> dict[str, Any]:
    wait_until(lambda: process.stdout_of_this_run().endswith("\n"), "what it says of itself")
    what: dict[str, Any] = json.loads(process.stdout_of_this_run())
    return what


def test_forked_process_has_its_own_arguments_environment_and_output(start: Start) -> None:
    one, other = start(STELE_GREETING="hello"), start()
    what = said(one)
    assert what["arguments"] == ["one", "two"]
    assert what["greeting"] == "hello"
    assert what["pid"] == what["group"] == one.pid != other.pid
    assert said(other)["greeting"] is None


def test_forked_process_has_its_own_exit_code_and_output(start: Start) -> None:
    process = start()
    said(process)
    assert process.poll() is None
    assert process.wait(0.01) is None
    assert process.stop() == 1
    assert process.poll() == 1
    assert process.tail().startswith("it has ended\n")


def test_killed_forked_process_reports_the_signal(start: Start) -> None:
    process = start()
    process.signal(signal.SIGSTOP)
    assert process.kill() == -signal.SIGKILL


def test_forked_process_dies_with_its_requester(tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        check=False,
        timeout=KILLED_S,
    )
    pid = int(killed.stdout)
    assert killed.returncode == -signal.SIGKILL

    def ended() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            return True
        return state == "Z"  # its new parent has not read its exit code yet

    wait_until(ended, f"process {pid} to end")
