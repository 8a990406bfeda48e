"""Processor time of a test run, by suite and by kind of process: ``make test-profile``.

A pytest plugin. Each worker charges a test with the processor time of its process and of all processes below
it. The controller samples the process tree once a second to find the kind of process that used the time.
``python -m tests.cpu_profile`` writes both tables to ``docs/testing.md``.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PROFILE: Final = ROOT / ".cache" / "test-profile.json"
PAGE: Final = ROOT / "docs" / "testing.md"
TABLES: Final = re.compile(r"(?<=<!-- profile -->\n).*(?=<!-- end of profile -->)", re.DOTALL)
SAMPLE_INTERVAL_S: Final = 1.0
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER: Final = 36  # <sys/prctl.h>
OTHER: Final = "short-lived commands"
"""Processes that ended before a sample was taken."""
KINDS: Final = (
    (re.compile(r"kafka\.Kafka|kafka\.tools|StorageTool"), "Kafka brokers (JVM)"),
    (re.compile(r"org\.apache\.spark"), "Spark (JVM)"),
    (re.compile(r"pyspark"), "Spark's Python workers"),
    (re.compile(r"chrom|playwright"), "browser"),
    (re.compile(r"valkey|redis-server"), "Redis"),
    (re.compile(r"dockerd|containerd|runc"), "containers"),
    (re.compile(r"\bgo\b|/go-build|javac|/node\b"), "other languages' tools"),
    (re.compile(r"execnet|exec\(eval\("), "pytest workers"),
    (re.compile(r"pytest"), "pytest controller"),
    (re.compile(r"stele|fork_server"), "service processes and commands"),
)


def _tree(pid: int) -> Iterator[int]:
    """The process and all processes below it."""
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))
    except OSError:
        return  # it has ended


def _stat_s(pid: int) -> tuple[float, float]:
    """Seconds that a process used itself, and that its ended children used; zeros if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    user, system, child_user, child_system = (int(ticks) for ticks in fields[11:15])
    return (user + system) / TICKS_PER_S, (child_user + child_system) / TICKS_PER_S


def _tree_s() -> float:
    """Processor seconds of this process and all below it, ended ones included."""
    return sum(sum(_stat_s(pid)) for pid in _tree(os.getpid()))


def _kind(pid: int) -> str:
    try:
        line = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return OTHER
    program = Path(line.partition(" ")[0]).name or OTHER  # it has ended, or has not begun
    return next((kind for pattern, kind in KINDS if pattern.search(line)), program)


class _Sampler(threading.Thread):
    """Samples the process tree of the controller."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.used_s: dict[int, tuple[str, float]] = {}

    def run(self) -> None:
        while not self.stopped.wait(SAMPLE_INTERVAL_S):
            for pid in _tree(os.getpid()):
                self.used_s[pid] = _kind(pid), _stat_s(pid)[0]

    def by_kind(self) -> dict[str, float]:
        total: dict[str, float] = defaultdict(float)
        for kind, used_s in self.used_s.values():
            total[kind] += used_s
        return total


class _Charges:
    """Charges each test with the processor time that passed since the test before it."""

    def __init__(self) -> None:
        self.before_s = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        begun_s, self.before_s = time.monotonic(), self.before_s or _tree_s()
        result = yield
        now_s = _tree_s()
        self._report(item.nodeid, now_s - self.before_s, time.monotonic() - begun_s)
        self.before_s = now_s
        return result

    def _report(self, test: str, cpu_s: float, wall_s: float) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with PROFILE.with_suffix(f".{worker}.lines").open("a") as file:
            file.write(json.dumps([test, round(cpu_s, 3), round(wall_s, 3)]) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses"):
        config.pluginmanager.register(_Charges())
    if is_worker:
        return
    for file in PROFILE.parent.glob("test-profile*"):
        file.unlink()
    PROFILE.parent.mkdir(exist_ok=True)
    sampler, begun_s = _Sampler(), time.monotonic()
    sampler.start()

    def write() -> None:
        sampler.stopped.set()
        sampler.join()
        own, ended = (
            resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        total_s = sum(used.ru_utime + used.ru_stime for used in (own, ended))
        lines = [
            json.loads(line)
            for file in PROFILE.parent.glob("test-profile.*.lines")
            for line in file.read_text().splitlines()
        ]
        kinds = sampler.by_kind()
        kinds[OTHER] = max(0.0, total_s - sum(kinds.values()))
        wall_s = time.monotonic() - begun_s
        PROFILE.write_text(
            json.dumps({"wall_s": wall_s, "cpu_s": total_s, "kinds": kinds, "tests": lines})
        )

    config.add_cleanup(write)


def _table(title: str, rows: Mapping[str, float]) -> list[str]:
    ordered = sorted(rows.items(), key=lambda row: -row[1])
    return [
        f"| {title} | processor time |",
        "|---|--:|",
        *(f"| {name} | {used_s / 60:.1f} min |" for name, used_s in ordered if used_s >= 3),
        "",
    ]


def main() -> None:
    """Write the tables of the last profiled run to ``docs/testing.md``."""
    profile = json.loads(PROFILE.read_text())
    suites: dict[str, float] = defaultdict(float)
    for test, cpu_s, _ in profile["tests"]:
        suites["`" + "/".join(test.split("/")[:2]) + "`"] += cpu_s
    lines = [
        f"Wall time {profile['wall_s'] / 60:.1f} minutes, processor time {profile['cpu_s'] / 60:.1f}"
        f" minutes, {len(profile['tests'])} tests.",
        "",
        *_table("suite", suites),
        *_table("kind of process", profile["kinds"]),
    ]
    PAGE.write_text(TABLES.sub(lambda _: "\n".join(lines), PAGE.read_text()))


if __name__ == "__main__":
    main()
