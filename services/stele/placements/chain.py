"""One cluster's log from the head of table events on: ``log.chain`` judges, winners are decoded.

Pure.
"""

import msgspec

from stele.domain.facts import Epoch
from stele.domain.image import NO_LOG, ZERO_STATE
from stele.log.chain import LOG_ID, STOPS, Anchor, Chain, Verdict
from stele.log.errors import (
    CorruptRecordError,
    LogError,
    MissedRecordsError,
    NoBeginningError,
    RecoveredError,
)
from stele.log.fold import crossing, decode_winner, stopped_by

_REMEDIES = {
    CorruptRecordError: " Restore the topic, then start again.",
    MissedRecordsError: " If they are gone, restore the topic or the table events, then start again.",
    NoBeginningError: " The job continues with a snapshot, once a catch-up replica offers one.",
    RecoveredError: " The job continues with a snapshot, once a catch-up replica offers one.",
}
"""Remedies for errors whose own text has none."""


class Head(msgspec.Struct, frozen=True):
    """How far the table events has judged one cluster's log.

    The record at ``next_offset`` is not judged yet.

    ``anchor`` is the last winner's record. ``strays`` counts the records of other logs that were
    skipped.
    """

    log_id: bytes = NO_LOG
    epoch: int = 0
    state_id: bytes = ZERO_STATE
    next_offset: int = 0
    anchor: Anchor | None = None
    strays: int = 0


FRESH = Head()


class Stray(msgspec.Struct, frozen=True):
    """A record of another log, which must not be skipped before a look at the anchor."""

    offset: int
    log_id: bytes


class Judge:
    """Follows one cluster's log from a head, and continues with a log recovered from the state
    in the tables.

    It stops when ``stopped`` or ``stray`` is set, which holds the reason. ``certain``: the anchor
    was intact when the log ended at this offset, so strays before it may be skipped.
    """

    def __init__(self, head: Head, certain: int = 0) -> None:
        self.start = head
        self.stopped: LogError | None = None
        self.stray: Stray | None = None
        self._certain = certain
        self._chain = Chain(head.log_id, head.epoch, head.state_id, head.next_offset, head.anchor)

    @property
    def head(self) -> Head:
        chain = self._chain
        strays = self.start.strays + chain.strays
        return Head(
            chain.log_id, chain.epoch, chain.state_id, chain.next_offset, chain.anchor, strays
        )

    def offer(self, offset: int, value: bytes) -> Epoch | None:
        """Judge a record. Return the epoch of a winner, else None.

        The result is None too for a record that was judged before, and for any record after a stop.
        """
        if self.stopped or self.stray or offset < self._chain.next_offset:
            return None
        try:
            return self._offer(offset, value)
        except LogError as error:
            error.args = (f"{error}{_REMEDIES.get(type(error), '')}",)
            self.stopped = error
            return None

    def _offer(self, offset: int, value: bytes) -> Epoch | None:
        chain = self._chain
        verdict = chain.judge(offset, value)
        if verdict is Verdict.WINNER:
            epoch = decode_winner(offset, value)
            chain.win(offset, value)
            return epoch
        if verdict in STOPS:
            raise stopped_by(chain, verdict, offset, value)
        if verdict is Verdict.STRAY and chain.epoch and offset >= self._certain:
            self.stray = Stray(offset, value[LOG_ID])
            return None
        if verdict is Verdict.STRAY:
            goes_on = crossing(chain, offset, value)
            if goes_on is not None:
                chain.win(offset, value)
                return goes_on
        chain.skip(offset, value, verdict)
        return None
