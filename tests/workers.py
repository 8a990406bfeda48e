"""How a run with workers (``pytest -n 6``) is divided.

The modules that need servers come first, the others last, and what may take long is outermost. The second
worker begins at the end and the others at the front: few clusters run side by side, and the last modules are
short. Modules that do not say how long they may take stand by how many tests they have: the second worker,
which gets there sooner, begins with the largest.

On two cores more than two workers take the processor away from what builds images or runs Spark. What comes
after that mostly waits: the other workers begin then, or with something light when cores are idle.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

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


HEAVY: Final = (
    *ON_ONE_WORKER,
    "tests/docs/test_pages.py",
    "tests/end_to_end/test_",
    "tests/upgrade/test_rolling.py",
)
"""What leaves no processor for a third worker."""
FROM_THE_START: Final = 2
"""So many workers begin at once."""
IDLE: Final = 0.15
"""Of all cores' time; then one more worker gets something."""
LOOKED_AT_S: Final = 5.0
"""For how long they must have been that idle."""


class FromBothEnds(LoadScopeScheduling):  # type: ignore[misc]  # it comes without types
    """A module is not divided, because fixtures belong to it, unless it says that it may be."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._cores = Cores()

    def _split_scope(self, nodeid: str) -> str:
        module = module_of(nodeid)
        if module in DIVIDED:
            return nodeid
        return next((folder for folder in ON_ONE_WORKER if module.startswith(folder)), module)

    def _assign_work_unit(self, node: WorkerController) -> None:
        place = _number_of(node)
        if place >= FROM_THE_START and self._is_heavy():
            light = next((scope for scope in self.workqueue if not scope.startswith(HEAVY)), None)
            if light is None or not self._cores.were_idle():
                return
            self.workqueue.move_to_end(light, last=False)
        if place == 1:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        super().mark_test_complete(node, item_index, duration)
        works = self.assigned_work[node]
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(works[scope].values()):
            del works[scope]  # else all that is done is counted with each test
        for other in self.nodes:
            if _number_of(other) >= FROM_THE_START:
                self._reschedule(other)

    def _is_heavy(self) -> bool:
        """Whether something heavy waits or runs."""
        running = (
            scope
            for work in self.assigned_work.values()
            for scope, tests in work.items()
            if not all(tests.values())
        )
        return any(scope.startswith(HEAVY) for scope in (*self.workqueue, *running))


class Cores:
    """Whether they have had little to do; where the kernel does not tell as Linux does, they never had."""

    STAT: Final = Path("/proc/stat")

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._before = self._times()

    def were_idle(self) -> bool:
        """Asked again at once it is no: what was begun because of the answer counts first."""
        if time.monotonic() - self._since_s < LOOKED_AT_S:
            return False
        before, self._before, self._since_s = self._before, self._times(), time.monotonic()
        spent = [now - then for now, then in zip(self._before, before, strict=True)]
        return sum(spent) > 0 and spent[3] / sum(spent) >= IDLE

    def _times(self) -> list[int]:
        """Of all cores together: user, nice, system, idle and more, in the kernel's ticks."""
        if not self.STAT.exists():
            return []
        first = self.STAT.read_text().partition("\n")[0]
        return [int(ticks) for ticks in first.split()[1:9]]


def _number_of(node: WorkerController) -> int:
    """From 0 on; one that takes the place of a crashed worker has a higher one than all before."""
    return int(node.gateway.id.removeprefix("gw"))


def put_in_order(items: list[pytest.Item]) -> None:
    """Modules by whether they need servers, are heavy, the time that a test may take, and how many tests."""
    time_s, servers = dict[str, float](), set[str]()
    tests = Counter(module_of(item.nodeid) for item in items)
    for item in items:
        module = module_of(item.nodeid)
        timeout = item.get_closest_marker("timeout")
        own_s = 0.0 if timeout is None else float(timeout.args[0])
        time_s[module] = max(own_s, time_s.get(module, 0.0))
        if any(item.get_closest_marker(name) for name in NEED_SERVERS):
            servers.add(module)

    def place(item: pytest.Item) -> tuple[bool, bool, float, int]:
        module = module_of(item.nodeid)
        alone = module not in servers
        is_light = alone or not module.startswith(HEAVY)
        return alone, is_light, time_s[module] if alone else -time_s[module], tests[module]

    items.sort(key=place)


def module_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
