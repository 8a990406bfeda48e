"""What has failed: it is left alone for a while, each time longer, until it succeeds.

Of a move that is the node that was to get the tablet. Of a repair, a restore or a deletion of a replica it is
the tablet: who failed is one of those that have it, and nobody says which.
"""

from typing import Final

from stele.domain.evolve import Delta
from stele.domain.names import BALANCER, RequestStatus
from stele.domain.requests.facts import Request, RequestChanged

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0

Tablet = tuple[str, int]
"""Its table's id, and its number."""


class Failures:
    """What became of the moves to each node, and of the repairs, restores and deletions of each tablet."""

    def __init__(self) -> None:
        self._pauses: dict[str | Tablet, tuple[float, float]] = {}
        """Until when, and how long the pause is."""

    def follow(self, delta: Delta, now_s: float) -> None:
        """What an epoch makes true of the balancer's requests; it may have come in parts."""
        for fact in delta.facts():
            if isinstance(fact, RequestChanged) and fact.request.actor == BALANCER:
                self.note(fact.request, now_s)

    def note(self, request: Request, now_s: float) -> None:
        """A request of the balancer's has changed. Those that fail together count once; what never began
        says nothing of the node that a tablet is to go to, and all of one that cannot be repaired or restored.
        """
        at = request.to_node or (request.table_id, request.tablet)
        failed = request.status is RequestStatus.FAILED
        if request.status is RequestStatus.DONE:
            self._pauses.pop(at, None)
        elif failed and (request.started_epoch or request.stays_in_place):
            until_s, pause_s = self._pauses.get(at, (now_s, FIRST_PAUSE_S / 2))
            if now_s >= until_s:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                self._pauses[at] = now_s + pause_s, pause_s

    def avoided(self, now_s: float) -> frozenset[str]:
        """Nodes that get nothing now."""
        return frozenset(at for at in self._paused(now_s) if isinstance(at, str))

    def paused(self, now_s: float) -> frozenset[Tablet]:
        """Tablets that are not repaired or restored, and lose nothing, now."""
        return frozenset(at for at in self._paused(now_s) if not isinstance(at, str))

    def _paused(self, now_s: float) -> list[str | Tablet]:
        return [at for at, (until_s, _) in self._pauses.items() if now_s < until_s]
