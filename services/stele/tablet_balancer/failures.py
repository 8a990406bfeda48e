"""What has failed: it is left alone for a while, each time longer, until it succeeds.

Of a move that is the node that was to get the tablet. Of a deletion it is the tablet: who failed is one of
those that keep it, and nobody says which.
"""

from typing import Final

from stele.domain.names import RequestStatus
from stele.domain.requests.facts import Request

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0

Tablet = tuple[str, int]
"""Its table's id, and its number."""


class Failures:
    """What became of the moves to each node, and of the deletions of each tablet's replicas."""

    def __init__(self) -> None:
        self._pauses: dict[str | Tablet, tuple[float, float]] = {}
        """Until when, and how long the pause is."""

    def note(self, request: Request, now_s: float) -> None:
        """A request of the balancer's has changed. Those that fail together count once; what never began
        says nothing.
        """
        failed = request.to_node or (request.table_id, request.tablet)
        if request.status is RequestStatus.DONE:
            self._pauses.pop(failed, None)
        elif request.status is RequestStatus.FAILED and request.started_epoch:
            until_s, pause_s = self._pauses.get(failed, (now_s, FIRST_PAUSE_S / 2))
            if now_s >= until_s:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                self._pauses[failed] = now_s + pause_s, pause_s

    def avoided(self, now_s: float) -> frozenset[str]:
        """Nodes that get nothing now."""
        return frozenset(n for n in self._paused(now_s) if isinstance(n, str))

    def paused(self, now_s: float) -> frozenset[Tablet]:
        """Tablets that lose nothing now."""
        return frozenset(t for t in self._paused(now_s) if not isinstance(t, str))

    def _paused(self, now_s: float) -> list[str | Tablet]:
        return [what for what, (until_s, _) in self._pauses.items() if now_s < until_s]
