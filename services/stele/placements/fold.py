"""Fold one cluster's epochs into rows: the ranges that were added and removed. Pure.

The services' own ``evolve`` makes the images. The rows are the differences between two of them.
"""

import msgspec

from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY_FOR_FOLLOWERS, NO_LOG, ZERO_STATE, Image
from stele.domain.model.ring import differences
from stele.domain.ring.ranges import RangeReplicas
from stele.log.chain import LOG_ID, STOPS, Anchor, Chain, Verdict
from stele.log.errors import (
    CorruptRecordError,
    LogError,
    MissedRecordsError,
    NoBeginningError,
    RecoveredError,
)
from stele.log.fold import continuation, decode_winner, stopped_by


class CurrentRow(msgspec.Struct, frozen=True):
    """A current row and the epoch that added it."""

    row: RangeReplicas
    from_epoch: int


HeldRows = dict[int, CurrentRow]
"""The rows of one placement by their start."""


class PastRow(msgspec.Struct, frozen=True):
    """A row that was valid from ``from_epoch`` until before ``to_epoch``."""

    placement: str
    row: RangeReplicas
    from_epoch: int
    to_epoch: int


Key = tuple[str, int]
"""Placement and start of a row."""


class FoldError(Exception):
    """A cluster's epochs contradict each other or its tables.

    The text names them and what to do.
    """


class ClusterFold:
    """The image of one cluster, and its rows with the epochs that added them.

    ``placements`` are the rows in the tables at epoch ``begun``. Epochs up to it change only the
    image.
    """

    def __init__(self, begun: int = 0, placements: dict[str, HeldRows] | None = None) -> None:
        self.image = EMPTY_FOR_FOLLOWERS
        self.begun = begun
        self.placements = placements or {}

    @property
    def behind(self) -> bool:
        """True while the folded events do not reach what the tables hold."""
        return self.image.epoch < self.begun

    def begin(self, image: Image) -> tuple[list[PastRow], set[Key]]:
        """Continue from a snapshot.

        Return as ``apply`` does, without rows that existed only in lost epochs.

        For a row that differs at the snapshot, the old one ended and the new one began there at the
        latest.
        """
        self.image = image
        if image.epoch < self.begun:
            return [], set()
        if image.epoch == self.begun:
            self._check_held()
            return [], set()
        are = {
            (name, row.start): row
            for name, placement in image.ring.placements.items()
            for row in placement.rows
        }
        went = [
            PastRow(name, held.row, held.from_epoch, image.epoch)
            for name, rows in self.placements.items()
            for start, held in rows.items()
            if are.get((name, start)) != held.row
        ]
        for past in went:
            del self.placements[past.placement][past.row.start]
        came = {key for key in are if key[1] not in self.placements.get(key[0], {})}
        for name, start in came:
            self.placements.setdefault(name, {})[start] = CurrentRow(are[name, start], image.epoch)
        self.placements = {name: rows for name, rows in self.placements.items() if rows}
        return went, came | {(past.placement, past.row.start) for past in went}

    def apply(self, epoch: Epoch) -> tuple[list[PastRow], set[Key]]:
        """Return the ended rows and the changed keys.

        Raises FoldError, after which the fold is invalid.
        """
        before, self.image = self.image, _evolved(self.image, epoch)
        if epoch.epoch < self.begun:
            return [], set()
        if epoch.epoch == self.begun:
            self._check_held()
            return [], set()
        return self._follow(before)

    def _follow(self, before: Image) -> tuple[list[PastRow], set[Key]]:
        now = self.image.epoch
        went: list[PastRow] = []
        touched: set[Key] = set()
        old, new = before.ring.placements, self.image.ring.placements
        for name in sorted({*old, *new}):
            if old.get(name) is new.get(name):
                continue
            rows = self.placements.setdefault(name, {})
            removed, added = differences(old.get(name), new.get(name))
            went += [PastRow(name, row, rows.pop(row.start).from_epoch, now) for row in removed]
            rows.update((row.start, CurrentRow(row, now)) for row in added)
            touched |= {(name, row.start) for row in (*removed, *added)}
            if not rows:
                del self.placements[name]
        return went, touched

    def _check_held(self) -> None:
        held = {
            name: [rows[start].row for start in sorted(rows)]
            for name, rows in self.placements.items()
        }
        placements = self.image.ring.placements
        if held != {name: [*placements[name].rows] for name in placements}:
            raise FoldError(
                f"the table placements holds other rows of epoch {self.begun} than the events make. Remove the "
                "folders of placements and placements_past, then start again: they are rebuilt from the events."
            )


def _evolved(image: Image, epoch: Epoch) -> Image:
    try:
        return evolve(image, epoch)
    except Exception as error:  # a winner that does not fit stops its cluster alone
        raise FoldError(
            f"epoch {epoch.epoch} does not fit the one before: {error!r}. Restore the topic."
        ) from error


# One cluster's log from the head of table events on: ``log.chain`` judges, winners are decoded.
#
# Pure.


_REMEDIES = {
    CorruptRecordError: " Restore the topic, then start again.",
    MissedRecordsError: " If they are gone, restore the topic or the table events, then start again.",
    NoBeginningError: " The job continues with a snapshot, once a catch-up replica offers one.",
    RecoveredError: " The job continues with a snapshot, once a catch-up replica offers one.",
}
"""Remedies for errors whose own text has none."""


class EventsHead(msgspec.Struct, frozen=True):
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


FRESH = EventsHead()


class Stray(msgspec.Struct, frozen=True):
    """A record of another log, which must not be skipped before a look at the anchor."""

    offset: int
    log_id: bytes


class RecordJudge:
    """Follows one cluster's log from a head, and continues with a log recovered from the state
    in the tables.

    It stops when ``stopped`` or ``stray`` is set, which holds the reason. ``certain``: the anchor
    was intact when the log ended at this offset, so strays before it may be skipped.
    """

    def __init__(self, head: EventsHead, certain: int = 0) -> None:
        self.start = head
        self.stopped: LogError | None = None
        self.stray: Stray | None = None
        self._certain = certain
        self._chain = Chain(head.log_id, head.epoch, head.state_id, head.next_offset, head.anchor)

    @property
    def head(self) -> EventsHead:
        chain = self._chain
        strays = self.start.strays + chain.strays
        return EventsHead(
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
            continued = continuation(chain, offset, value)
            if continued is not None:
                chain.win(offset, value)
                return continued
        chain.skip(offset, value, verdict)
        return None
