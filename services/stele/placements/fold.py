"""Folding one cluster's records into rows: which epochs won, which ranges came and went. Pure.

Facts carry their results, so a row needs no strategy code: ``ring.ranges.apply`` is all there is.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from stele.domain.image import ZERO_STATE
from stele.domain.ring.ranges import Placement, PlacementError, Range, RangeReplicas, apply
from stele.log.errors import CorruptRecordError, LogError, UnknownFeatureError
from stele.log.fold import KNOWN_FEATURES


class TruncatedLogError(LogError):
    """The log's first records are gone, and this fold has nothing to begin from."""


class Change(msgspec.Struct, frozen=True):
    """A PlacementChanged, or with ``dropped`` a PlacementDropped, as the query projects it."""

    placement: str
    dropped: bool = False
    removed: tuple[Range, ...] = ()
    added: tuple[RangeReplicas, ...] = ()


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record where it stands in its topic; the fields that placements need, decoded.

    ``readable`` is false when the body is no Avro of its schema; only a winner must be readable.
    """

    offset: int
    prev_state_id: bytes
    readable: bool = True
    epoch: int = 0
    state_id: bytes = b""
    request_id: str = ""
    command: str = ""
    actor: str = ""
    reason: str = ""
    origin: str = ""
    at_ms: int = 0
    required_features: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


class Place(msgspec.Struct, frozen=True):
    """Where a fold stands: the epoch it reached, its state id, and the offset to read next."""

    epoch: int = 0
    state_id: bytes = ZERO_STATE
    next_offset: int = 0


class Held(msgspec.Struct, frozen=True):
    """A current row and the epoch that it came in."""

    row: RangeReplicas
    from_epoch: int


HeldRows = dict[int, Held]
"""The rows of one placement by their start."""


class HistoryRow(msgspec.Struct, frozen=True):
    """A row from ``from_epoch`` on and before ``to_epoch``; None: it is current."""

    placement: str
    row: RangeReplicas
    from_epoch: int
    to_epoch: int | None


LoadRows = Callable[[str], HeldRows | None]
"""The rows of a placement before the batch; None when there is no such placement."""

FRESH: Final = Place()


class ClusterFold:
    """Folds a batch of one cluster's records, given in the order of their offsets.

    Afterwards ``place`` is where the fold stands, ``winners`` are the records that became epochs,
    ``history`` the rows that came or went, and ``touched`` the (placement, start) that differ.
    """

    def __init__(self, place: Place, load: LoadRows) -> None:
        self.place = place
        self.winners: list[LogRecord] = []
        self.losers = 0
        self.touched: set[tuple[str, int]] = set()
        self._load = load
        self._placements: dict[str, HeldRows | None] = {}
        self._history: dict[tuple[str, int, int], HistoryRow] = {}

    def offer(self, record: LogRecord) -> bool:
        """True when the record won its epoch. Raises LogError where a reader must stop."""
        if self.place == FRESH and record.offset > 0:
            raise TruncatedLogError(
                record.offset,
                "the records before are gone, so the placements cannot be folded from here. "
                "Put back the checkpoint of this service, or restore the topic.",
            )
        if record.offset < self.place.next_offset:
            return False
        if record.prev_state_id != self.place.state_id:
            self.losers += 1
            self.place = msgspec.structs.replace(self.place, next_offset=record.offset + 1)
            return False
        _check(record, self.place)
        for change in record.changes:
            self._apply(record, change)
        self.winners.append(record)
        self.place = Place(record.epoch, record.state_id, record.offset + 1)
        return True

    @property
    def history(self) -> list[HistoryRow]:
        """Rows that were opened or closed, each as it stands at the end of the batch."""
        return [self._history[key] for key in sorted(self._history)]

    def current(self, placement: str, start: int) -> Held | None:
        """The row at a key now; None when it is gone."""
        rows = self._rows(placement)
        return None if rows is None else rows.get(start)

    @property
    def changed(self) -> dict[str, HeldRows | None]:
        """The placements that differ from before the batch; None for one that was dropped."""
        names = sorted({placement for placement, _ in self.touched})
        return {name: self._placements[name] for name in names}

    def _rows(self, placement: str) -> HeldRows | None:
        if placement not in self._placements:
            self._placements[placement] = self._load(placement)
        return self._placements[placement]

    def _apply(self, record: LogRecord, change: Change) -> None:
        before = self._rows(change.placement)
        if change.dropped:
            gone = [Range(held.row.start, held.row.end) for held in (before or {}).values()]
            self._close(record.epoch, change.placement, gone)
            self._placements[change.placement] = None
            return
        removed = change.removed if before is not None else ()
        try:
            _check_rows(before, change)
        except PlacementError as error:
            raise CorruptRecordError(record.offset, f"{change.placement}: {error}") from error
        self._close(record.epoch, change.placement, removed)
        self._open(record.epoch, change.placement, change.added)

    def _close(self, epoch: int, placement: str, gone: tuple[Range, ...] | list[Range]) -> None:
        rows = self._placements[placement]
        for range_ in gone:
            assert rows is not None
            held = rows.pop(range_.start)
            key = (placement, range_.start, held.from_epoch)
            self.touched.add(key[:2])
            if held.from_epoch == epoch:  # came and went within one epoch: it never was
                del self._history[key]
            else:
                self._history[key] = HistoryRow(placement, held.row, held.from_epoch, epoch)

    def _open(self, epoch: int, placement: str, added: tuple[RangeReplicas, ...]) -> None:
        rows = self._placements[placement]
        if rows is None:
            rows = self._placements[placement] = {}
        for row in added:
            rows[row.start] = Held(row, epoch)
            self.touched.add((placement, row.start))
            self._history[placement, row.start, epoch] = HistoryRow(placement, row, epoch, None)


def _check(record: LogRecord, place: Place) -> None:
    """The checks of ``log.fold``, in its order. Raises LogError."""
    if not record.readable:
        raise CorruptRecordError(record.offset, "the bytes end or break inside the record")
    if record.epoch != place.epoch + 1:
        text = f"it says epoch {record.epoch} where {place.epoch + 1} follows"
        raise CorruptRecordError(record.offset, text)
    unknown = sorted({*record.required_features} - KNOWN_FEATURES)
    if unknown:
        needs = f"it needs {', '.join(unknown)}. Upgrade this process."
        raise UnknownFeatureError(record.offset, needs)


def _check_rows(before: HeldRows | None, change: Change) -> None:
    """The same check as ``domain.evolve`` makes. Raises PlacementError."""
    if before is None:
        Placement.of(change.added)
    else:
        rows = (before[start].row for start in sorted(before))
        apply(Placement.of(rows), change.removed, change.added)
