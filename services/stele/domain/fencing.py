"""Versions in use and the fence (seed 000; I3 and I6).

Each request that a node coordinates holds the topology version by which it chose its replicas, from
before the choice until its last answer. A replica checks the request's version against the fence before
it does anything and again before it answers: a request that began early and ended late has failed.
"""

from collections import Counter

import msgspec

from stele.domain.entities import Topology


class StaleVersion(msgspec.Struct, frozen=True):
    """The caller routes by a version that is fenced out; it must read the log and try again."""

    version: int
    fence_version: int

    def __str__(self) -> str:
        return f"version {self.version} is older than the fence {self.fence_version}"


def check_fence(topology: Topology, version: int) -> StaleVersion | None:
    """None when requests of ``version`` are still served."""
    if version < topology.fence_version:
        return StaleVersion(version, topology.fence_version)
    return None


class VersionTracker:
    """Counts the requests that hold each version."""

    def __init__(self) -> None:
        self._holders: Counter[int] = Counter()

    def hold(self, version: int) -> None:
        self._holders[version] += 1

    def release(self, version: int) -> None:
        self._holders[version] -= 1
        if self._holders[version] == 0:
            del self._holders[version]

    def oldest_in_use(self, current: int) -> int:
        """The lowest version that is held, or ``current`` when there is none older."""
        return min(self._holders, default=current) if self._holders else current

    def in_use(self) -> dict[int, int]:
        """Version -> number of requests that hold it."""
        return dict(sorted(self._holders.items()))
