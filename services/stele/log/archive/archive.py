"""The archive of one catch-up replica: a folder with its snapshots and segments."""

from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import Final

from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.registry import KNOWN_FEATURES
from stele.log.archive.container import (
    LAST_EPOCH,
    Archived,
    DamagedFileError,
    EpochSpan,
    NotArchivedError,
)
from stele.log.archive.segments import SegmentLimits, Segments
from stele.log.archive.snapshots import Kept, Snapshots
from stele.log.chain import LOG_ID, RECENT, anchor_of
from stele.log.errors import CorruptRecordError
from stele.log.fold import BEGINNING, Fold, Start

SNAPSHOTS: Final = "snapshots"
SEGMENTS: Final = "segments"

OnEpoch = Callable[[Archived, Epoch, Image], None]


class Archive:
    """Snapshots and segments of one log. Methods access the disk: call them outside the event loop.

    ``supported`` are the features of this process. It does not read content that needs others.
    """

    def __init__(
        self,
        folder: Path,
        limits: SegmentLimits = SegmentLimits(),  # noqa: B008
        supported: Set[str] = KNOWN_FEATURES,
    ) -> None:
        self.supported = supported
        self.snapshots = Snapshots(folder / SNAPSHOTS, supported)
        self.segments = Segments(folder / SEGMENTS, limits)

    @property
    def damaged(self) -> list[str]:
        """Paths of the files that were set aside, each with the reason."""
        return [*self.snapshots.damaged, *self.segments.damaged]

    def forget_deleted(self) -> int:
        """Forget files that were deleted from the folder by others; return how many."""
        return self.snapshots.forget_deleted() + self.segments.forget_deleted()

    def begin(self, *, decided: bool, at_most: int | None = None) -> tuple[Start, Kept | None]:
        """Return the newest readable snapshot not after ``at_most``, else the log's beginning.

        With ``decided`` it includes the memory of decided requests. Raises UnreadableSnapshotError.
        """
        for kept in self.snapshots.all():
            if at_most is None or kept.head.epoch <= at_most:
                # ``start`` sets a damaged snapshot aside; the next older one follows.
                start = self.snapshots.start(kept, decided=decided)
                if start is not None:
                    return start, kept
        return BEGINNING, None

    def fold_on(
        self, start: Start, last: int, on_epoch: OnEpoch = lambda record, epoch, image: None
    ) -> Start:
        """Fold the epochs after ``start`` up to ``last``, as far as the archive has them.

        Raises LogError and DamagedFileError. Raises NotArchivedError when the first epoch is
        missing although later ones exist.
        """
        records = self.after(start.image.epoch, last)
        return folded(start, records, on_epoch, self.supported)

    def after(self, epoch: int, last: int) -> Iterator[Archived]:
        """Yield the epochs after ``epoch`` up to ``last``, as far as the archive has them.

        Raises as ``fold_on`` does.
        """
        if last > epoch:
            for record in self.segments.read(epoch + 1):
                if record.epoch > last:
                    return
                yield record

    def places_before(self, start: Start) -> Start:
        """Return ``start`` with the anchors of the winners before its last one, if available."""
        epoch = start.image.epoch
        try:
            records = [*self.after(max(0, epoch - RECENT), epoch - 1)]
        except (NotArchivedError, DamagedFileError):
            return start
        return with_places(start, records)

    def newest_image(self) -> int:
        """Return the newest epoch whose image can be computed.

        No gap separates it from a snapshot or from the first epoch.
        """
        spans = self.segments.spans()
        begins = {0, *(kept.head.epoch for kept in self.snapshots.all())}
        ends = (s.last for s in spans for at in begins if s.first <= at + 1 and at <= s.last)
        return max(*begins, *ends, 0)

    def states(self, newest: int) -> dict[int, bytes]:
        """Return state ids by epoch: of the ``newest`` epochs, of snapshots and of older spans.

        Older spans contribute their first and last epochs. A missing epoch is included if the next
        epoch names its state id. Raises DamagedFileError.
        """
        found = {k.head.epoch: bytes.fromhex(k.head.state_id) for k in self.snapshots.all()}
        spans = self.segments.spans()
        for span in spans[:-1]:
            with suppress(DamagedFileError, NotArchivedError):  # then the answer has fewer epochs
                for epoch in (span.first, span.last):
                    found |= _linked(next(self.segments.read(epoch)))
        if spans:
            first = max(spans[-1].first, spans[-1].last - newest + 1)
            for record in self.segments.read(first):
                found |= _linked(record)
        found.pop(0, None)
        return found

    def set_aside_after(self, epoch: int, log_id: str) -> int:
        """Set aside the epochs after ``epoch``, which were lost; return how many.

        Snapshots after ``epoch`` are set aside too, unless their log is later than ``log_id``. The
        files remain for inspection, but are not read. Raises DamagedFileError, OSError.
        """
        for kept in self.snapshots.all():
            if kept.head.epoch > epoch and kept.head.log_id <= log_id:
                self.snapshots.set_aside(kept, "the log was recovered from an epoch before it")
        # The renames must be on the disk before this returns: the lost snapshots must not be read
        # again after a power failure.
        self.snapshots.sync()
        return self.segments.set_aside(EpochSpan(epoch + 1, LAST_EPOCH))

    def set_aside_up_to(self, epoch: int) -> int:
        """Set aside the span of epochs that ends at ``epoch``, with its snapshots; return how many.

        It is for epochs from which the next ones in the log do not follow. Raises DamagedFileError,
        OSError.
        """
        spans = (s for s in self.segments.spans() if s.first <= epoch <= s.last)
        span = EpochSpan(next(spans, EpochSpan(epoch, epoch)).first, epoch)
        for kept in self.snapshots.all():
            if span.first <= kept.head.epoch <= span.last:
                self.snapshots.set_aside(kept, "what is in the log does not follow from it")
        self.snapshots.sync()
        return self.segments.set_aside(span)

    def trim(self, epoch: int) -> int:
        """Delete epochs and snapshots before ``epoch``; return how many epochs.

        Raises DamagedFileError, OSError.
        """
        gone = self.segments.trim(epoch)
        for kept in self.snapshots.all():
            if kept.head.epoch < epoch:
                self.snapshots.forget(kept)
        return gone

    def known_at(self, epoch: int, state_id: bytes) -> Kept | None:
        """Return the snapshot of exactly this state, after a check of its file, or None."""
        for kept in self.snapshots.all():
            if (kept.head.epoch, kept.head.state_id) == (epoch, state_id.hex()):
                return self.snapshots.checked(kept)
        return None

    def folded_to(
        self, epoch: int, state_id: bytes, pause: Callable[[], None] = lambda: None
    ) -> tuple[Start, int]:
        """Fold to ``epoch``; return the start there and its writer's time in ms.

        ``pause`` is called at each epoch. Raises LogError and DamagedFileError. Raises
        NotArchivedError when the epochs do not lead to ``state_id``.
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
        """Return the state id before ``epoch``; None if it is unknown. Raises DamagedFileError."""
        if any(span.first <= epoch <= span.last for span in self.segments.spans()):
            return next(self.segments.read(epoch)).links[0]
        return self.state_id_of(epoch - 1)

    def state_id_of(self, epoch: int) -> bytes | None:
        """Return the state id of an epoch; None if it is unknown. Raises DamagedFileError."""
        if any(span.first <= epoch <= span.last for span in self.segments.spans()):
            return next(self.segments.read(epoch)).links[1]
        kept = self.snapshots.newest(epoch)
        if kept is not None and kept.head.epoch == epoch:
            return bytes.fromhex(kept.head.state_id)
        return None


def _linked(record: Archived) -> dict[int, bytes]:
    """Return the state ids before and after a record, by their epochs."""
    before, after = record.links
    return {record.epoch - 1: before, record.epoch: after}


def with_places(start: Start, records: Iterable[Archived]) -> Start:
    """Return ``start`` with the anchors of those winners that precede its last one.

    Winners of an older log are left out, because the topic may no longer hold them.
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
    """Fold the records that directly follow ``start``; return the new start. Raises LogError."""
    fold = Fold(*start, across_recoveries=True, supported=supported)
    for record in records:
        # The archive holds winners only, so the offsets between them are not a gap.
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
    """Return a winner in the form that the archive keeps."""
    return Archived(epoch.epoch, offset, epoch.at_ms, value)
