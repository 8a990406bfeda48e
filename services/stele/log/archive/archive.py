"""The archive of one catch-up replica: a folder with its snapshots and segments."""

from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import Final

from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.registry import KNOWN_FEATURES
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived
from stele.log.archive.segments import Limits, Segments
from stele.log.archive.snapshot_folder import Kept, Snapshots
from stele.log.archive.spans import LAST_EPOCH, NotArchivedError, Span
from stele.log.chain import LOG_ID, RECENT, anchor_of
from stele.log.errors import CorruptRecordError
from stele.log.fold import Fold
from stele.log.start import BEGINNING, Start

SNAPSHOTS: Final = "snapshots"
SEGMENTS: Final = "segments"

OnEpoch = Callable[[Archived, Epoch, Image], None]


class Archive:
    """Snapshots and segments of one log. Every method works on the disk: call it beside the event loop.

    What is read of it needs no features but those that are ``supported``.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits = Limits(),  # noqa: B008
        supported: Set[str] = KNOWN_FEATURES,
    ) -> None:
        self.supported = supported
        self.snapshots = Snapshots(folder / SNAPSHOTS, supported)
        self.segments = Segments(folder / SEGMENTS, limits)

    @property
    def damaged(self) -> list[str]:
        """Files that were set aside, and why."""
        return [*self.snapshots.damaged, *self.segments.damaged]

    def forget_deleted(self) -> int:
        """What somebody has deleted from the folder counts for nothing from now on; how many files."""
        return self.snapshots.forget_deleted() + self.segments.forget_deleted()

    def begin(self, *, decided: bool, at_most: int | None = None) -> tuple[Start, Kept | None]:
        """The newest snapshot that can be read, not after epoch ``at_most``; else the beginning of the log.

        Raises UnreadableSnapshotError.
        """
        for kept in self.snapshots.all():
            if at_most is None or kept.head.epoch <= at_most:
                start = self.snapshots.start(kept, decided=decided)
                if start is not None:
                    return start, kept
        return BEGINNING, None

    def fold_on(
        self, start: Start, last: int, on_epoch: OnEpoch = lambda record, epoch, image: None
    ) -> Start:
        """Fold the epochs after ``start`` up to ``last``, as far as they are there.

        Raises LogError, DamagedFileError; NotArchivedError when the first is not there though later ones are.
        """
        records = self.after(start.image.epoch, last)
        return folded(start, records, on_epoch, self.supported)

    def after(self, epoch: int, last: int) -> Iterator[Archived]:
        """The epochs after ``epoch`` up to ``last``, as far as they are there; raises as ``fold_on`` does."""
        if last > epoch:
            for record in self.segments.read(epoch + 1):
                if record.epoch > last:
                    return
                yield record

    def places_before(self, start: Start) -> Start:
        """With the places of the winners before the one that ``start`` ends with, as far as they are there."""
        epoch = start.image.epoch
        try:
            records = [*self.after(max(0, epoch - RECENT), epoch - 1)]
        except (NotArchivedError, DamagedFileError):
            return start
        return with_places(start, records)

    def newest_image(self) -> int:
        """The newest epoch whose image can be had: no gap before it, back to a snapshot or the first epoch."""
        spans = self.segments.spans()
        begins = {0, *(kept.head.epoch for kept in self.snapshots.all())}
        ends = (s.last for s in spans for at in begins if s.first <= at + 1 and at <= s.last)
        return max(*begins, *ends, 0)

    def states(self, newest: int) -> dict[int, bytes]:
        """State ids of the ``newest`` epochs, of each snapshot, and of the ends of older spans: also those of
        epochs that are missing, as far as the next one follows from them. Raises DamagedFileError.
        """
        found = {k.head.epoch: bytes.fromhex(k.head.state_id) for k in self.snapshots.all()}
        spans = self.segments.spans()
        for span in spans[:-1]:
            with suppress(DamagedFileError, NotArchivedError):  # then there is less to tell
                for epoch in (span.first, span.last):
                    found |= _linked(next(self.segments.read(epoch)))
        if spans:
            first = max(spans[-1].first, spans[-1].last - newest + 1)
            for record in self.segments.read(first):
                found |= _linked(record)
        found.pop(0, None)
        return found

    def set_aside_after(self, epoch: int, log_id: str) -> int:
        """Put the epochs after ``epoch`` where nobody reads them, and snapshots after it that are not of a log
        after ``log_id``; how many epochs. They were lost, and stay for whoever wants to look.

        Raises DamagedFileError, OSError.
        """
        for kept in self.snapshots.all():
            if kept.head.epoch > epoch and kept.head.log_id <= log_id:
                self.snapshots.set_aside(kept, "the log was recovered from an epoch before it")
        self.snapshots.sync()
        return self.segments.set_aside(Span(epoch + 1, LAST_EPOCH))

    def set_aside_up_to(self, epoch: int) -> int:
        """Put the epochs that lead to ``epoch``, and snapshots of them, where nobody reads them: what is in the
        log after them does not follow. How many epochs.

        Raises DamagedFileError, OSError.
        """
        spans = (s for s in self.segments.spans() if s.first <= epoch <= s.last)
        span = Span(next(spans, Span(epoch, epoch)).first, epoch)
        for kept in self.snapshots.all():
            if span.first <= kept.head.epoch <= span.last:
                self.snapshots.set_aside(kept, "what is in the log does not follow from it")
        self.snapshots.sync()
        return self.segments.set_aside(span)

    def trim(self, epoch: int) -> int:
        """Delete epochs and snapshots before ``epoch``; how many epochs. Raises DamagedFileError, OSError."""
        gone = self.segments.trim(epoch)
        for kept in self.snapshots.all():
            if kept.head.epoch < epoch:
                self.snapshots.forget(kept)
        return gone

    def known_at(self, epoch: int, state_id: bytes) -> Kept | None:
        """The snapshot of this very state, whose file has just been read to its end."""
        for kept in self.snapshots.all():
            if (kept.head.epoch, kept.head.state_id) == (epoch, state_id.hex()):
                return self.snapshots.checked(kept)
        return None

    def folded_to(
        self, epoch: int, state_id: bytes, pause: Callable[[], None] = lambda: None
    ) -> tuple[Start, int]:
        """What the epochs up to this one lead to, and its writer's time. ``pause`` is called at each epoch.

        Raises LogError, DamagedFileError; NotArchivedError when they do not lead there.
        """
        at_ms = 0

        def noted(record: Archived, _epoch: Epoch, _image: Image) -> None:
            nonlocal at_ms
            at_ms = record.at_ms
            pause()

        begun, _ = self.begin(decided=True, at_most=epoch - 1)
        start = self.fold_on(begun, epoch, noted)
        if (start.image.epoch, start.image.state_id) != (epoch, state_id):
            raise NotArchivedError(epoch)
        return start, at_ms

    def state_before(self, epoch: int) -> bytes | None:
        """The state id that the epoch follows; None when it is not known here. Raises DamagedFileError."""
        if any(span.first <= epoch <= span.last for span in self.segments.spans()):
            return next(self.segments.read(epoch)).links[0]
        return self.state_id_of(epoch - 1)

    def state_id_of(self, epoch: int) -> bytes | None:
        """The state id that an epoch made; None when it is not here. Raises DamagedFileError."""
        if any(span.first <= epoch <= span.last for span in self.segments.spans()):
            return next(self.segments.read(epoch)).links[1]
        kept = self.snapshots.newest(epoch)
        if kept is not None and kept.head.epoch == epoch:
            return bytes.fromhex(kept.head.state_id)
        return None


def _linked(record: Archived) -> dict[int, bytes]:
    """The states before and after it, by their epochs."""
    before, after = record.links
    return {record.epoch - 1: before, record.epoch: after}


def with_places(start: Start, records: Iterable[Archived]) -> Start:
    """With the places of those winners that came before the one that ``start`` ends with. What is of an older
    log may stand nowhere any more.
    """
    image, anchor = start.image, start.anchor
    before = tuple(
        anchor_of(each.offset, each.value)
        for each in records
        if anchor is not None and each.offset < anchor.offset and each.value[LOG_ID] == image.log_id
    )
    return start._replace(before=before)


def folded(
    start: Start,
    records: Iterable[Archived],
    on_epoch: OnEpoch = lambda record, epoch, image: None,
    supported: Set[str] = KNOWN_FEATURES,
) -> Start:
    """What follows from these records, which come right after ``start``. Raises LogError."""
    fold = Fold(*start, across_recoveries=True, supported=supported)
    for record in records:
        fold.chain.jump(record.offset)
        epoch = fold.offer(record.offset, record.value)
        if epoch is None:
            raise CorruptRecordError(
                record.offset, f"epoch {record.epoch} of the archive does not follow"
            )
        on_epoch(record, epoch, fold.image)
    recent = fold.chain.recent
    return Start(fold.image, fold.next_offset, fold.chain.anchor, recent[:-1])


def archived(offset: int, value: bytes, epoch: Epoch) -> Archived:
    """A winner as the archive keeps it."""
    return Archived(epoch.epoch, offset, epoch.at_ms, value)
