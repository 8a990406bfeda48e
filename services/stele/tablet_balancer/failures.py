"""Pauses after failures: each failure lasts longer than the one before, until a success ends it.

A move has a source and a target, and its failed request does not tell which of them failed. At
first the target is blamed. Once moves from the source have failed at two targets, the source is
blamed. These targets are then free again, unless other moves to them failed too. A replica that is
rebuilt or added has several sources, so the target is blamed.

After a failed repair, restore or deletion of a replica, the tablet is paused, because any of its
replicas may have failed.
"""

from collections.abc import Set
from typing import Final, Generic, TypeVar

from stele.domain.evolve import Delta
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.names import BALANCER, RequestStatus

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0
"""Longest pause in seconds. A failed move counts against its source and its target for the same
time.
"""

Tablet = tuple[str, int]
"""A table's id and the number of one of its tablets."""
Key = TypeVar("Key")


class _Pauses(Generic[Key]):
    """Pauses that double with each failure after the end of the previous one."""

    def __init__(self) -> None:
        self._until = dict[Key, tuple[float, float]]()
        """End of the last pause in seconds of the caller's clock, and its length in seconds."""

    def failed(self, key: Key, now_s: float) -> None:
        """Begin a pause. Failures during a pause do not count."""
        until_s, pause_s = self._until.get(key, (now_s, FIRST_PAUSE_S / 2))
        if now_s >= until_s:
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._until[key] = now_s + pause_s, pause_s

    def end(self, key: Key) -> None:
        self._until.pop(key, None)

    def now(self, now_s: float) -> frozenset[Key]:
        return frozenset(key for key, (until_s, _) in self._until.items() if now_s < until_s)


class Failures:
    """Outcomes of the balancer's moves by source and target, and of its other changes by tablet."""

    def __init__(self) -> None:
        self._targets, self._sources = _Pauses[str](), _Pauses[str]()
        self._tablets = _Pauses[Tablet]()
        self._moves = dict[tuple[str, str], float]()
        """Time of the last failed move by source and target. A success of either node removes its
        entries.
        """

    def follow(self, delta: Delta, now_s: float) -> None:
        """Note each request of the balancer that an epoch changes.

        The epoch may have several parts.
        """
        excluded = delta.before.membership.excluded()
        for fact in delta.facts():
            if isinstance(fact, RequestChanged) and fact.request.actor == BALANCER:
                self.note(fact.request, now_s, excluded)

    def note(self, request: Request, now_s: float, excluded: Set[str] = frozenset()) -> None:
        """Note a changed request.

        A move that never began is no evidence against its nodes. A repair or restore that never
        began is: it cannot be carried out.
        """
        tablet = request.table_id, request.tablet
        # An excluded source is not read, so it cannot be the cause of a failure.
        source = "" if request.from_node in excluded else request.from_node
        if request.status is RequestStatus.DONE:
            if request.to_node:
                self._succeeded(source, request.to_node)
            else:
                self._tablets.end(tablet)
        elif request.status is RequestStatus.FAILED:
            if request.to_node and request.started_epoch:
                self._failed(source, request.to_node, now_s)
            elif not request.to_node and (request.started_epoch or request.stays_in_place):
                self._tablets.failed(tablet, now_s)

    def _succeeded(self, source: str, target: str) -> None:
        self._moves = {
            (from_, to): at_s
            for (from_, to), at_s in self._moves.items()
            if to != target and not (source and from_ == source)
        }
        self._sources.end(source)
        self._targets.end(target)

    def _failed(self, source: str, target: str, now_s: float) -> None:
        self._moves = {
            move: at_s for move, at_s in self._moves.items() if now_s - at_s < LONGEST_PAUSE_S
        }
        self._moves[source, target] = now_s
        tried = {to for from_, to in self._moves if from_ == source}
        # With a single failed target the fault may be on either side.
        if not source or len(tried) == 1:
            self._targets.failed(target, now_s)
            return
        self._sources.failed(source, now_s)
        for each in tried:
            if all(from_ == source for from_, to in self._moves if to == each):
                self._targets.end(each)

    def avoided(self, now_s: float) -> frozenset[str]:
        """Return the nodes that receive nothing now."""
        return self._targets.now(now_s)

    def failing(self, now_s: float) -> frozenset[str]:
        """Return the nodes that neither give nor receive now, because moves from them failed."""
        return self._sources.now(now_s)

    def paused(self, now_s: float) -> frozenset[Tablet]:
        """Return the tablets that are now not repaired or restored and lose no replica."""
        return self._tablets.now(now_s)
