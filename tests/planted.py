"""A plugin of pytest that plants a known bug first: ``pytest -p tests.planted --plant NAME TEST``.

The exit status is 1 only where a test itself has failed, and ``NOT_THE_TEST`` where something around it broke.
``find`` does the same in a fork of a process that has imported what is common to all, and no module of tests
but this one: most of what a short test costs is what it imports.
"""

from __future__ import annotations

import os
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest

from stele.sim.mutants import MUTANTS
from stele.sim.patching import Patch
from tests.preloaded import found_is_enough

NOT_THE_TEST: Final = 70
COMMON: Final = [__name__, "tests.preloaded"]


class Around:
    """Notes what fails before and after tests."""

    def __init__(self) -> None:
        self.failed = list[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.when != "call":
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.failed:
            session.exitstatus = NOT_THE_TEST


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--plant", required=True, choices=sorted(MUTANTS), help="a planted bug")


def pytest_configure(config: pytest.Config) -> None:
    found_is_enough()
    MUTANTS[config.getoption("--plant")](Patch())
    config.pluginmanager.register(Around())


def find(name: str, test: str, env: dict[str, str], output: Path, timeout_s: float) -> int | None:
    """The exit status of pytest with this bug on this test; None when it did not end in time."""
    context = get_context("forkserver")
    context.set_forkserver_preload(COMMON)
    process = context.Process(target=_run, args=(name, test, env, output))
    output.touch()
    process.start()
    try:
        process.join(timeout_s)
        return process.exitcode
    finally:
        process.kill()
        process.join()


def _run(name: str, test: str, env: dict[str, str], output: Path) -> None:
    os.environ.update(env)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    raise SystemExit(pytest.main(["-x", "-p", __name__, "--plant", name, test]))
