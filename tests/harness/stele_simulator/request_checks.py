"""One id has one outcome for as long as it is remembered, and none after (I2), by the order of decisions alone.

A log that keeps ``limit`` sealed generations of ``size`` decisions has forgotten what was decided more than so
many decisions ago, and nothing newer. Horizon and memory of the images are not asked.
"""

from collections.abc import Iterable
from typing import Final

from stele.domain.facts import Epoch
from stele.domain.model.requests import time_ms
from stele.domain.request_memory import decided_ids
from stele_simulator.violation import require

ONE_OUTCOME: Final = "I2"


class RequestChecks:
    """Follows one history. Times are those inside ids, in milliseconds."""

    def __init__(self, size: int, limit: int) -> None:
        self._size = size
        self._limit = limit
        self._decided: dict[str, int] = {}
        """By id: the epoch."""
        self._newest_ms = [-1]
        """The newest time inside the first so many decisions."""
        self._largest = 0
        """So many decisions the largest epoch had: a generation may have so many more."""
        self._until: dict[bytes, int] = {}
        """By state: how many were decided up to it."""
        self._expired_ms = -1
        """Newest time of an id that was rejected as too old."""

    def follow(self, epoch: Epoch) -> None:
        """Take note of an epoch that was checked, or that was there before anything is."""
        ids = decided_ids(epoch)
        self._largest = max(self._largest, len(ids))
        for request_id in ids:
            self._decided.setdefault(request_id, epoch.epoch)
            self._newest_ms.append(max(self._newest_ms[-1], time_ms(request_id)))
        self._until[epoch.state_id] = len(self._newest_ms) - 1

    def check(self, epoch: Epoch) -> None:
        """Check that no request is decided twice or when it is too old. Raises Violation."""
        certain_ms = self._forgotten_ms((self._limit + 1) * (self._size + self._largest))
        for request_id in decided_ids(epoch):
            known = self._decided.get(request_id)
            require(
                known is None,
                ONE_OUTCOME,
                f"request {request_id} is decided once, at epoch {known}",
                f"epoch {epoch.epoch} decides it again",
            )
            oldest_ms = max(certain_ms, self._expired_ms)
            require(
                time_ms(request_id) > oldest_ms,
                ONE_OUTCOME,
                f"request {request_id} is too old to be decided at epoch {epoch.epoch}: so are ids of time"
                f" {oldest_ms}",
                "it is decided there",
            )

    def expired(self, request_id: str, state_id: bytes) -> None:
        """Record that an id was rejected as too old by some state: it stays too old. Raises Violation."""
        until = self._until.get(state_id)
        if until is None:
            return  # of another history
        oldest_ms = self._newest_ms[max(0, until - self._limit * self._size)]
        require(
            time_ms(request_id) <= oldest_ms,
            ONE_OUTCOME,
            f"ids of time {oldest_ms} and before are too old after {until} decisions",
            f"request {request_id} is told to be",
        )
        self._expired_ms = max(self._expired_ms, time_ms(request_id))

    def _forgotten_ms(self, kept: int) -> int:
        """The newest time inside all decisions but the last ``kept``."""
        return self._newest_ms[max(0, len(self._newest_ms) - 1 - kept)]


def checks_of(line: Iterable[Epoch], size: int, limit: int) -> RequestChecks:
    """Return the checks of the history through these states."""
    found = RequestChecks(size, limit)
    for epoch in line:
        found.follow(epoch)
    return found
