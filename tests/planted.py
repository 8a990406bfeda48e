"""A plugin of pytest that plants a known bug first: ``pytest -p tests.planted --plant NAME TEST``.

The exit status is 1 only where a test itself has failed, and ``NOT_THE_TEST`` where something around it broke.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import Phase, settings

from stele.sim.mutants import MUTANTS
from stele.sim.patching import Patch

NOT_THE_TEST: Final = 70


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
    """That the bug is found is enough: nobody wants the smallest example."""
    found_is_enough = settings(phases=(Phase.explicit, Phase.generate), print_blob=False)
    settings.register_profile("planted", found_is_enough)
    settings.load_profile("planted")
    MUTANTS[config.getoption("--plant")](Patch())
    config.pluginmanager.register(Around())
