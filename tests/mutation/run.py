"""Mutation testing: ``python -m tests.mutation``.

Each trial makes one small change to the product (``changes``) and runs the tests of that line that need no
server, until one fails. It runs in a fork that has imported nothing of the product. Surviving changes are
printed: either no test checks that code, or the change has no effect.

The first run records the tests of each line in ``build/mutation``. They are recorded again when sources change.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from types import CodeType, ModuleType
from typing import Any, Final, NamedTuple

import pytest

from tests.mutation.changes import Change, changes_of
from tests.mutation.files import COVERED, NEED_SERVERS, PACKAGES, ROOT, STORIES, UNIT_TESTS, sources
from tests.mutation.preloaded import (
    stop_at_first_failure,  # imports nothing of the product: forks import it with the change
)

BUILD: Final = ROOT / "build" / "mutation"
REPORT: Final = BUILD / "report.json"
MAX_TESTS_S: Final = 25.0
"""Limit of the total test time for a change, by the times of the first run."""
MAX_TESTS: Final = 400
SLOWDOWN: Final = 5.0
"""A change counts as found if its tests take this many times longer, plus ``START_S``."""
START_S: Final = 40.0
FOUND, SURVIVED, NOT_RUN, TOO_LONG = "found", "survived", "not run", "took too long"
LEFT: Final = (SURVIVED, NOT_RUN)
RESULTS: Final[dict[int, str]] = {
    pytest.ExitCode.OK: SURVIVED,
    pytest.ExitCode.NO_TESTS_COLLECTED: NOT_RUN,
}
"""Results by pytest's exit status. Any other status means that a test found the change."""


class Covered(NamedTuple):
    tests: list[tuple[str, float]]
    """Node id and seconds."""
    lines: dict[str, dict[str, list[int]]]

    def of(self, change: Change) -> list[tuple[str, float]]:
        """Return the tests of the changed line, or of the module if the line runs at the import."""
        lines = self.lines.get(change.path, {})
        numbers = set(lines.get(str(change.line), ()))
        if not numbers and str(change.line) in lines:
            numbers = {number for tests in lines.values() for number in tests}
        ordered = _spread(self.tests[number] for number in numbers)
        chosen, total_s = list[tuple[str, float]](), 0.0
        for test in ordered[:MAX_TESTS]:
            total_s += test[1]
            if chosen and total_s > MAX_TESTS_S:
                break
            chosen.append(test)
        return chosen


def _spread(tests: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the fastest test of each module, then the second fastest of each, and so on."""
    by_module = defaultdict[str, list[tuple[float, str]]](list)
    for nodeid, seconds in tests:
        by_module[nodeid.partition("::")[0]].append((seconds, nodeid))
    ranked = (
        (rank, seconds, nodeid)
        for found in by_module.values()
        for rank, (seconds, nodeid) in enumerate(sorted(found))
    )
    return [(nodeid, seconds) for _, seconds, nodeid in sorted(ranked)]


def covered(*tests: str) -> Covered:
    """Return the recorded lines. They are measured again if a source or a test has changed."""
    texts = {path for test in tests for path in (ROOT / test).rglob("*.py")}
    texts |= {ROOT / test for test in tests if test.endswith(".py")} | {
        *map(ROOT.joinpath, sources())
    }
    state = sha256(b"".join(path.read_bytes() for path in sorted(texts))).hexdigest()[:16]
    path = BUILD / f"covered-{state}.json"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        print("measuring which test runs which line", flush=True)
        plugins = ("-p", "tests.mutation.covered", "-p", "no:cacheprovider")
        argv = (*plugins, "-q", "-m", f"not ({NEED_SERVERS})", *tests)
        env = {**os.environ, COVERED: str(path)}
        subprocess.run([sys.executable, "-m", "pytest", *argv], cwd=ROOT, env=env, check=True)
    return Covered(**json.loads(path.read_text()))


class ModuleReplacer(MetaPathFinder):
    """An import hook that loads one module from a changed source."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = str(ROOT / path)
        parts = (ROOT / path).relative_to(PACKAGES).with_suffix("").parts
        self._name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self._code = compile(source, self._path, "exec")

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        return spec_from_loader(name, _Loader(name, self._path, self._code))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code


class SelectedTests:
    """A pytest plugin that deselects the tests that do not run the line."""

    def __init__(self, tests: list[str]) -> None:
        self._tests = frozenset(tests)

    def pytest_configure(self) -> None:
        stop_at_first_failure()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._tests]


def _child(change: Change, tests: list[str]) -> int:
    """Run pytest in the fork and return its exit status."""
    source = (ROOT / change.path).read_bytes()
    sys.meta_path.insert(0, ModuleReplacer(change.path, change.of(source)))
    files = sorted({test.partition("::")[0] for test in tests})
    argv = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=60", *files]
    return int(pytest.main(argv, plugins=[SelectedTests(tests)]))


class _Running(NamedTuple):
    change: Change
    until_s: float


def try_changes(changes: list[Change], known: Covered, jobs: int) -> Iterator[tuple[Change, str]]:
    """Try ``jobs`` changes in parallel. Yield each change and its result as the trials end."""
    left = list(reversed(changes))
    running = dict[int, _Running]()
    while left or running:
        while left and len(running) < jobs:
            change = left.pop()
            chosen = known.of(change)
            if not chosen:
                yield change, NOT_RUN
                continue
            limit_s = START_S + SLOWDOWN * sum(seconds for _, seconds in chosen)
            pid = _fork(change, [nodeid for nodeid, _ in chosen])
            running[pid] = _Running(change, time.monotonic() + limit_s)
        time.sleep(0.02)
        for pid, (change, until_s) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until_s:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                code = None
            else:
                continue
            del running[pid]
            yield change, TOO_LONG if code is None else RESULTS.get(code, FOUND)


def _fork(change: Change, tests: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = _child(change, tests)
    finally:
        os._exit(code)


class SampleOptions(NamedTuple):
    """The requested sample of changes."""

    paths: Sequence[str]
    kinds: Sequence[str]
    sample: int
    seed: int
    again: bool
    """Only the changes that survived or did not run in the last run."""

    def chosen(self) -> tuple[list[Change], int]:
        """Return the sample and the number of all changes. Raises ValueError for a path without a source."""
        every = [
            change
            for path in sources(self.paths)
            for change in changes_of(path, (ROOT / path).read_bytes())
            if change.kind in self.kinds
        ]
        if self.again:
            return _left(every), len(every)
        return random.Random(self.seed).sample(every, min(self.sample, len(every))), len(every)


def _left(every: list[Change]) -> list[Change]:
    report = json.loads(REPORT.read_text())
    left = {
        tuple(each[field] for field in Change._fields) for each in report if each["became"] in LEFT
    }
    return [change for change in every if change in left]


def main(wanted: SampleOptions, jobs: int) -> int:
    """Return the exit status: always 0."""
    chosen, of = wanted.chosen()
    known = covered(*UNIT_TESTS)
    print(f"{len(chosen)} of {of} changes", flush=True)
    found = dict(try_changes(chosen, known, jobs))
    survived = [change for change in chosen if found[change] in LEFT]
    print(
        f"{len(survived)} that no unit test finds: trying the stories of the simulator", flush=True
    )
    for change, became in try_changes(survived, covered(*STORIES), jobs):
        if became not in LEFT:
            found[change] = f"{became}, by a story"
        elif became == SURVIVED:
            found[change] = SURVIVED
    for change in sorted(change for change in chosen if found[change] in LEFT):
        print(f"{found[change]}: {change}", flush=True)
    counts = Counter((change.kind, became) for change, became in found.items())
    for kind in sorted({change.kind for change in chosen}):
        of_kind = {became: n for (k, became), n in sorted(counts.items()) if k == kind}
        print(f"{kind:10} {of_kind}")
    print(f"all        {dict(Counter(found.values()))}")
    report: list[dict[str, Any]] = [
        {**change._asdict(), "became": became} for change, became in sorted(found.items())
    ]
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
    return 0
