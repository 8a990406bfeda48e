"""Checking all of a replica's archive where it is: every record, the chain of state ids, and that the epochs
between two snapshots lead from the state of the one to that of the other. It blocks: run it in a thread.
"""

from collections.abc import Callable
from typing import NamedTuple

from stele.domain.snapshot import state_hash
from stele.log.archive.archive import Archive
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived
from stele.log.archive.snapshot_folder import Kept
from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.log.archive.spans import NotArchivedError
from stele.log.archive_store.verify import Verdict, why_other
from stele.log.errors import LogError
from stele.log.fold import Fold
from stele.log.start import BEGINNING, Start

MOST_FLAWS = 1000


class Progress(NamedTuple):
    """Epochs ``first`` to ``epoch`` were looked at, of those up to ``last``; and snapshots."""

    first: int
    epoch: int
    last: int
    snapshots: int


OnProgress = Callable[[Progress], None]


def check(archive: Archive, on_progress: OnProgress = lambda progress: None) -> Verdict:
    """Read all that was there when it began. ``on_progress`` is called at each epoch, and stops it by raising.

    What turns out to be damaged is set aside by whoever reads it. Raises OSError.
    """
    return _Checker(archive, on_progress).run()


class _Checker:
    """Goes through the epochs once; ``_fold`` has the state that they lead to, None where it is not known."""

    def __init__(self, archive: Archive, on_progress: OnProgress) -> None:
        self._archive = archive
        self._on_progress = on_progress
        spans = archive.segments.spans()
        self._first = spans[0].first if spans else 0
        self._last = spans[-1].last if spans else 0
        snapshots = archive.snapshots.all()[::-1]
        self._snapshots = [kept for kept in snapshots if kept.head.epoch <= self._last]
        self._size_bytes = archive.segments.size_bytes + sum(k.size_bytes for k in snapshots)
        self._fold: Fold | None = _fold_of(BEGINNING) if self._first == 1 else None
        self._state_id = ""
        self._folded = 0
        self._good = list[int]()
        self._flaws = list[str]()
        self._damaged = list[str]()

    def run(self) -> Verdict:
        following = self._first
        while following and following <= self._last:
            begin = self._next_there(following)
            if begin != following:
                self._flaws.append(f"Epochs {following} to {begin - 1} are missing.")
                self._fold = None
                self._compare_before(begin)
            following = self._go_through(begin)
        self._compare_before(self._last + 1)
        fold = self._fold
        at_end = fold is not None and fold.image.epoch == self._last > 0
        return Verdict(
            blobs=len(self._good) + len(self._archive.segments.spans()),
            size_bytes=self._size_bytes,
            first_epoch=self._first,
            last_epoch=self._last,
            state_id=self._state_id,
            state_hash=state_hash(fold.image) if fold is not None and at_end else "",
            snapshots=tuple(self._good),
            folded_epochs=self._folded,
            flaws=tuple(self._flaws[:MOST_FLAWS]),
            damaged=tuple(self._damaged),
        )

    def _next_there(self, epoch: int) -> int:
        """The first epoch from this one on that is there; one more than the last where there is none."""
        for first, last in self._archive.segments.spans():
            if last >= epoch:
                return max(first, epoch)
        return self._last + 1

    def _go_through(self, first: int) -> int:
        """From ``first`` on to the end, a gap, or what is damaged; the epoch to go on with."""
        following = first
        try:
            for record in self._archive.segments.read(first):
                if record.epoch > self._last:
                    break
                self._take(record)
                following = record.epoch + 1
        except NotArchivedError:
            pass  # it was there a moment ago: what became of it is seen by who looks for the next one
        except DamagedFileError as error:
            self._flaws.append(f"After epoch {following - 1}: {error}")
            self._damaged.append(str(error))
            self._fold = None
            following += following == self._next_there(following)
        return following

    def _take(self, record: Archived) -> None:
        self._state_id = record.links[1].hex()
        if self._fold is not None and self._fold.image.epoch + 1 != record.epoch:
            self._fold = None  # of a snapshot whose next epochs are missing
        if self._fold is not None:
            try:
                self._fold.chain.jump(record.offset)
                if self._fold.offer(record.offset, record.value) is None:
                    self._flaws.append(
                        f"Epoch {record.epoch} does not follow from those before it."
                    )
                    self._fold = None
                else:
                    self._folded += 1
            except LogError as error:
                self._flaws.append(f"Epoch {record.epoch}: {error}")
                self._fold = None
        self._compare_before(record.epoch + 1)
        done = Progress(self._first, record.epoch, self._last, len(self._good))
        self._on_progress(done)

    def _compare_before(self, following: int) -> None:
        """Compare the snapshots of epochs before ``following``, and go on from the last of them."""
        while self._snapshots and self._snapshots[0].head.epoch < following:
            self._compare(self._snapshots.pop(0))

    def _compare(self, kept: Kept) -> None:
        epoch, snapshots = kept.head.epoch, self._archive.snapshots
        if snapshots.named(kept.head.name) is None:
            return  # a newer one has taken its place meanwhile
        try:
            start = snapshots.start(kept, decided=True)
        except UnreadableSnapshotError as error:
            self._flaws.append(f"The snapshot of epoch {epoch}: {error}")
            return
        if start is None:
            self._flaws.append(f"The snapshot of epoch {epoch} is damaged, and was set aside.")
            self._damaged.append(kept.path.name)
            return
        fold = self._fold
        if fold is not None and fold.image.epoch == epoch:
            flaw = why_other(start, Start(fold.image, fold.next_offset, fold.chain.anchor))
            if flaw:
                self._flaws.append(flaw)
                return  # the epochs are the history: what follows is compared with what they lead to
        self._good.append(epoch)
        if fold is None:
            self._fold = _fold_of(start)


def _fold_of(start: Start) -> Fold:
    return Fold(*start, across_recoveries=True)
