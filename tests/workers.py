"""How a run with workers (``pytest -n 2``) is divided.

The first worker takes the modules that may take long, longest first: they run whole clusters. The others begin
at the end, with the tests that need no server, so that few clusters run side by side.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ON_ONE_WORKER: Final = ("tests/deploy/", "tests/spark/")
"""Folders whose tests share what there is once in a run: a deployment, a Spark session."""


class FromBothEnds(LoadScopeScheduling):  # type: ignore[misc]  # it comes without types
    """A module is never divided, because fixtures belong to it."""

    def _split_scope(self, nodeid: str) -> str:
        module = module_of(nodeid)
        return next((folder for folder in ON_ONE_WORKER if module.startswith(folder)), module)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def longest_first(items: list[pytest.Item]) -> None:
    """Modules by the time that a test of theirs may take, then those that need a broker, then the others."""
    time_s, brokers = dict[str, float](), set[str]()
    for item in items:
        module = module_of(item.nodeid)
        timeout = item.get_closest_marker("timeout")
        own_s = 0.0 if timeout is None else float(timeout.args[0])
        time_s[module] = max(own_s, time_s.get(module, 0.0))
        if item.get_closest_marker("broker") is not None:
            brokers.add(module)

    def place(item: pytest.Item) -> tuple[float, bool]:
        module = module_of(item.nodeid)
        return -time_s[module], module not in brokers

    items.sort(key=place)


def module_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
