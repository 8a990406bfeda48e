"""How a run with workers (``pytest -n 2``) is divided.

The modules that need servers come first, the others last, and what may take long is outermost. The first
worker begins at the front and the others at the end: few clusters run side by side, and the last modules are
short. Modules that do not say how long they may take stand by how many tests they have: the others, which get
to them sooner, begin with the largest.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ON_ONE_WORKER: Final = ("tests/deploy/", "tests/end_to_end/demo/", "tests/spark/")
"""Folders whose tests share what there is once in a run: a deployment, a demo, a Spark session."""
NEED_SERVERS: Final = ("broker", "spark", "end_to_end", "deploy", "browser")


class FromBothEnds(LoadScopeScheduling):  # type: ignore[misc]  # it comes without types
    """A module is never divided, because fixtures belong to it."""

    def _split_scope(self, nodeid: str) -> str:
        module = module_of(nodeid)
        return next((folder for folder in ON_ONE_WORKER if module.startswith(folder)), module)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def put_in_order(items: list[pytest.Item]) -> None:
    """Modules by whether they need servers, by the time that a test of theirs may take, and by their tests."""
    time_s, servers = dict[str, float](), set[str]()
    tests = Counter(module_of(item.nodeid) for item in items)
    for item in items:
        module = module_of(item.nodeid)
        timeout = item.get_closest_marker("timeout")
        own_s = 0.0 if timeout is None else float(timeout.args[0])
        time_s[module] = max(own_s, time_s.get(module, 0.0))
        if any(item.get_closest_marker(name) for name in NEED_SERVERS):
            servers.add(module)

    def place(item: pytest.Item) -> tuple[bool, float, int]:
        module = module_of(item.nodeid)
        alone = module not in servers
        return alone, time_s[module] if alone else -time_s[module], tests[module]

    items.sort(key=place)


def module_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
