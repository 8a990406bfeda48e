"""Children are restarted with back-off, given up after many restarts, and never orphaned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stele_harness.stack.process import Process, Program, spawn
from stele_harness.stack.supervisor import (
    RESTARTS_PER_MINUTE,
    ChildFailed,
    ProcessState,
    Supervisor,
)
from tests.polling import wait_until

ANNOUNCING = """
import json, signal, sys, os
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("a line that is no announcement")
print(json.dumps({"service": "s", "instance": "i", "http": f"http://127.0.0.1:{os.getpid()}"}))
sys.stdout.flush()
signal.sigwait([signal.SIGTERM])
"""
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"http": "x"}', flush=True)
while True:
    signal.pause()
"""
# Forks a grandchild that ignores SIGTERM, and prints its pid.
PARENT_OF_DEAF = f"""
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {DEAF!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command(directory: Path, source: str, name: str = "child") -> Program:
    return Program(
        name,
        [sys.executable, "-c", source],
        stdout=directory / f"{name}.out",
        stderr=directory / f"{name}.err",
    )


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    running = Supervisor()
    try:
        yield running
    finally:
        running.stop_all()


def test_killed_child_is_restarted_with_growing_back_off(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start(command(tmp_path, ANNOUNCING))
    first = supervisor.wait_url("child")
    waits = []
    for _ in range(2):
        before = supervisor.status_of("child").restarts
        supervisor.kill("child")
        supervisor.wait_state("child", ProcessState.BACKING_OFF)
        waits.append(supervisor._children["child"].back_off._wait_s)
        supervisor.wait_state("child", ProcessState.RUNNING)
        supervisor.wait_url("child")
        assert supervisor.status_of("child").restarts == before + 1
    assert waits[1] == 2 * waits[0]
    assert supervisor.status_of("child").exit_code == -signal.SIGKILL
    assert supervisor.wait_url("child") != first


def test_child_that_keeps_dying_is_given_up_with_its_last_line(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele_harness.stack.supervisor.LAST_BACK_OFF_S", 0.01)
    said = "import sys; print('a long story', file=sys.stderr); sys.exit('no such cluster')"
    supervisor.start(command(tmp_path, said))
    with pytest.raises(ChildFailed, match=r"given_up.*\nno such cluster$") as raised:
        supervisor.wait_url("child")
    assert "a long story" not in str(raised.value)
    assert supervisor.status_of("child").restarts == RESTARTS_PER_MINUTE


def test_child_with_a_configuration_error_is_not_restarted(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start(command(tmp_path, "raise SystemExit(78)"))
    with pytest.raises(ChildFailed, match="given_up"):
        supervisor.wait_url("child")
    assert supervisor.status_of("child").restarts == 0


def test_requested_restarts_do_not_count_as_crashes(supervisor: Supervisor, tmp_path: Path) -> None:
    """Otherwise the fourth `stele stack restart` would report a running child as one that keeps ending."""
    supervisor.start(command(tmp_path, ANNOUNCING))
    for _ in range(3):
        supervisor.stop("child")
        supervisor.restart("child")
        assert supervisor.wait_url("child", max_restarts=1)
    assert supervisor.status_of("child").restarts == 3


def test_wait_for_a_child_that_keeps_ending_fails(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(command(tmp_path, "raise SystemExit(1)"))
    supervisor.stop("child")
    supervisor.restart("child")
    with pytest.raises(ChildFailed, match=r"keeps ending \(restarts 2, last exit code 1\)"):
        supervisor.wait_url("child", max_restarts=1)


def test_child_without_an_announcement_is_an_error(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(command(tmp_path, "import signal; signal.pause()"))
    with pytest.raises(ChildFailed, match="announced nothing"):
        supervisor.wait_url("child", deadline_s=0.2)


def test_stop_all_ends_children_in_reverse_order(tmp_path: Path) -> None:
    order: list[str] = []
    supervisor = Supervisor()
    for name in ("a", "b", "c"):
        supervisor.start(command(tmp_path, ANNOUNCING, name))
    for name in ("a", "b", "c"):
        supervisor.wait_url(name)
    pids = [child.pid for child in supervisor.status() if child.pid]
    original = supervisor.stop

    def noting(name: str, deadline_s: float = 10) -> int | None:
        order.append(name)
        return original(name, deadline_s)

    supervisor.stop = noting  # type: ignore[method-assign]
    assert supervisor.stop_all() == {"a": 0, "b": 0, "c": 0}
    assert order == ["c", "b", "a"]
    assert len(pids) == 3
    assert all(is_gone(pid) for pid in pids)


def test_child_that_ignores_sigterm_is_killed_after_the_deadline(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start(command(tmp_path, DEAF))
    supervisor.wait_url("child")
    assert supervisor.stop("child", deadline_s=0.2) == -signal.SIGKILL


def test_paused_child_can_be_stopped_cleanly(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(command(tmp_path, ANNOUNCING))
    supervisor.wait_url("child")
    supervisor.kill("child", signal.SIGSTOP)
    assert supervisor.stop("child") == 0


def test_grandchildren_end_with_the_child(tmp_path: Path) -> None:
    process = spawn(command(tmp_path, PARENT_OF_DEAF))
    wait_until(process.stdout_of_this_run, "the grandchild's pid")
    grandchild = int(process.stdout_of_this_run())
    process.stop()
    wait_until(lambda: is_gone(grandchild), "the end of the grandchild")


ORPHANING = """
import sys, threading
from pathlib import Path
from stele_harness.stack.process import Program, spawn

folder = Path(sys.argv[1])
def start():
    command = Program("c", [sys.executable, "-c", sys.argv[2]], folder / "out", folder / "err")
    print(spawn(command).pid, flush=True)

# The thread that asks ends at once; the child must stay all the same.
thread = threading.Thread(target=start)
thread.start()
thread.join()
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_child_dies_with_its_parent_process_but_not_with_the_thread(
    tmp_path: Path,
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANING, str(tmp_path), ANNOUNCING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = int(parent.stdout.readline())
    wait_until(lambda: "http" in (tmp_path / "out").read_text(), "the announcement")
    assert not is_gone(pid)
    parent.kill()
    parent.wait()
    wait_until(lambda: is_gone(pid), "the end of the orphan")
    parent.stdin.close()
    parent.stdout.close()


def test_announcement_of_an_earlier_run_does_not_count(tmp_path: Path) -> None:
    first: Process = spawn(command(tmp_path, ANNOUNCING))
    wait_until(first.stdout_of_this_run, "the announcement")
    first.stop()
    second = spawn(command(tmp_path, "import signal; signal.pause()"))
    assert second.stdout_of_this_run() == ""
    second.stop()
