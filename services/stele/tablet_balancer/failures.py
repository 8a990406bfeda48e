"""What has failed: nodes to which moves have, and tablets whose repair has, get nothing for a while, each time
longer, until one succeeds.
"""

from typing import Final

from stele.domain.names import RequestStatus
from stele.domain.requests.facts import Request

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0

Tablet = tuple[str, int]
"""The table's id, and the tablet's number."""


class Failures:
    """What became of the moves to each node, and of the repairs of each tablet."""

    def __init__(self) -> None:
        self._pauses: dict[str | Tablet, tuple[float, float]] = {}
        """Until when, and how long the pause is."""

    def note(self, request: Request, now_s: float) -> None:
        """A request of the balancer's has changed. Those that fail together count once; what never began
        says nothing of the node that a tablet is to go to, and all of one that cannot be repaired.
        """
        failed = request.status is RequestStatus.FAILED
        if request.status is RequestStatus.DONE:
            self._pauses.pop(_at(request), None)
        elif failed and (request.started_epoch or request.repairs):
            until_s, pause_s = self._pauses.get(_at(request), (now_s, FIRST_PAUSE_S / 2))
            if now_s >= until_s:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                self._pauses[_at(request)] = now_s + pause_s, pause_s

    def avoided(self, now_s: float) -> frozenset[str]:
        """Nodes that get nothing now."""
        return frozenset(n for n in self._paused(now_s) if isinstance(n, str))

    def resting(self, now_s: float) -> frozenset[Tablet]:
        """Tablets that are not repaired now."""
        return frozenset(t for t in self._paused(now_s) if isinstance(t, tuple))

    def _paused(self, now_s: float) -> list[str | Tablet]:
        return [at for at, (until_s, _) in self._pauses.items() if now_s < until_s]


def _at(request: Request) -> str | Tablet:
    """What counts: the tablet that is repaired; the node that was to get one; of one that is to lose a replica,
    who has that.
    """
    if request.repairs_tablet:
        return request.table_id, request.tablet
    return request.to_node or request.from_node
