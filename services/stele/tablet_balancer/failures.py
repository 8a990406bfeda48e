"""Nodes to which moves have failed: they get nothing for a while, each time longer, until one succeeds."""

from typing import Final

from stele.domain.names import RequestStatus
from stele.domain.requests.facts import Request

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0


class Failures:
    """What became of the moves to each node."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}
        """Until when, and how long the pause is."""

    def note(self, request: Request, now_s: float) -> None:
        """A request of the balancer's has changed. Those that fail together count once; what never began
        says nothing of its node.
        """
        if request.status is RequestStatus.DONE:
            self._pauses.pop(_at(request), None)
        elif request.status is RequestStatus.FAILED and request.started_epoch:
            until_s, pause_s = self._pauses.get(_at(request), (now_s, FIRST_PAUSE_S / 2))
            if now_s >= until_s:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                self._pauses[_at(request)] = now_s + pause_s, pause_s

    def avoided(self, now_s: float) -> frozenset[str]:
        """Nodes that get nothing now."""
        return frozenset(n for n, (until_s, _) in self._pauses.items() if now_s < until_s)


def _at(request: Request) -> str:
    """The node that counts: who was to get the tablet; of one that is to lose a replica, who has that."""
    return request.to_node or request.from_node
