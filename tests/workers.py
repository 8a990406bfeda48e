"""How a run with workers (``pytest -n 4``) is divided.

Each module is one unit of work, because fixtures belong to it. Folders that share what exists once in a run
are one unit, and modules of independent long tests are divided. The longest units come first.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

ON_ONE_WORKER: Final = ("tests/deploy/", "tests/end_to_end/demo/", "tests/spark/")
"""Folders whose tests share what there is once in a run: a deployment, a demo, a Spark session."""
DIVIDED: Final = (
    "tests/conformance/test_kit.py",
    "tests/sim/test_disasters.py",
    "tests/sim/test_mutants.py",
    "tests/sim/test_stories.py",
)
"""Modules of long tests that share only the broker of the run: each test goes where there is room."""
NEED_SERVERS: Final = ("broker", "spark", "end_to_end", "deploy", "browser")


class ByModule(LoadScopeScheduling):  # type: ignore[misc]  # it comes without types
    """Gives modules, or the folders of ``ON_ONE_WORKER``, to workers in the order of ``put_in_order``."""

    def _split_scope(self, nodeid: str) -> str:
        module = module_of(nodeid)
        if module in DIVIDED:
            return nodeid
        return next((folder for folder in ON_ONE_WORKER if module.startswith(folder)), module)


def put_in_order(items: list[pytest.Item]) -> None:
    """Sort: shared folders, then modules that need servers, then the others; modules with many tests first."""
    tests = Counter(module_of(item.nodeid) for item in items)
    servers = {
        module_of(item.nodeid)
        for item in items
        if any(item.get_closest_marker(name) for name in NEED_SERVERS)
    }

    def place(item: pytest.Item) -> tuple[bool, bool, int, str]:
        module = module_of(item.nodeid)
        return not module.startswith(ON_ONE_WORKER), module not in servers, -tests[module], module

    items.sort(key=place)


def module_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
