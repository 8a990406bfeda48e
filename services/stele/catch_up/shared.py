"""What an archive has of the log of a snapshot that it goes on behind. All else is set aside: it was lost by a
recovery, or by an unclean election, and would be given out as the log's past.

State ids tell: epochs that follow one another up to the same one are the same. Where nobody tells, nothing is
taken for granted: what is set aside is taken back once epochs that are in the log lead there (``filling``).
"""

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial

from stele.domain.archive.retention import Point
from stele.domain.image import NO_LOG, ZERO_STATE, Image
from stele.log.archive.archive import Archive
from stele.log.archive.snapshots import start_of
from stele.log.archive.spans import Span
from stele.runtime.answers.catch_up import Known
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable
from stele.runtime.logs import get_logger

Tells = Callable[[int, bytes], Awaitable[Known]]
"""Whether an epoch with this state id is in the log."""

log = get_logger(__name__)


async def set_aside_others(
    archive: Archive, own: Image, files: Iterable[bytes], tells: Tells
) -> None:
    """Set aside what ``archive``, which leads to ``own``, has and is not known to be in the log of the snapshot
    with these files; once that could be read.

    Raises DamagedFileError, UnreadableSnapshotError, OSError, and what ``tells`` does.
    """
    opened = [io.BytesIO(content) for content in files]
    start = await asyncio.to_thread(partial(start_of, *opened, supported=archive.supported))
    shared = await newest_shared(archive, last_shared(own, start.image), tells)
    lost = await asyncio.to_thread(archive.set_aside_after, shared, own.log_id.hex())
    if lost:
        log.error(
            "epochs that nobody knows to be in the log are set aside", after=shared, epochs=lost
        )


def last_shared(own: Image, other: Image) -> Point:
    """The newest epoch that the logs of both images may share, and its state in the other one. A log that the
    other one does not come from shares nothing.
    """
    if own.log_id in (NO_LOG, other.log_id):
        return Point(other.epoch, other.state_id)
    mine = own.log_id.hex()
    found = [each for each in other.founding.incarnations if each.log_id == mine]
    if not found:
        return Point(0, ZERO_STATE)
    return Point(found[-1].last_epoch, bytes.fromhex(found[-1].state_id))


async def newest_shared(archive: Archive, last: Point, tells: Tells) -> int:
    """The newest epoch up to which the archive has what the log has, whose epoch ``last`` is known; 0: nobody
    tells of any. Raises DamagedFileError, and what ``tells`` does.
    """

    async def known(epoch: int) -> Known:
        state_id = await asyncio.to_thread(archive.state_id_of, epoch)
        if state_id is None:
            return Known.UNKNOWN
        if epoch == last.epoch:
            return Known.SAME if state_id == last.state_id else Known.OTHER
        return await tells(epoch, state_id)

    for held in _held(archive, last.epoch):
        at_end = await known(held.last)
        if at_end is Known.SAME:
            return held.last
        if at_end is Known.OTHER:
            same = await _before_the_fork(held, known)
            if same:
                return same
    return 0


async def _before_the_fork(held: Span, known: Callable[[int], Awaitable[Known]]) -> int:
    """The newest epoch of these that is known to be the same, where the last one is another; 0: none is."""
    same, low, other = 0, held.first - 1, held.last
    while low + 1 < other:
        middle = (low + other) // 2
        told = await known(middle)
        if told is Known.OTHER:
            other = middle
        else:
            low = middle
            same = middle if told is Known.SAME else same
    return same


def told_by(others: CatchUp, url: str, more: Sequence[str]) -> Tells:
    """The replica at ``url``, which gives the snapshot; where it does not know, the first of ``more`` who does.
    Raises CatchUpUnavailable where the first one does not answer.
    """

    async def tells(epoch: int, state_id: bytes) -> Known:
        told = await others.known(url, epoch, state_id)
        for another in more:
            if told is not Known.UNKNOWN:
                break
            try:
                told = await others.known(another, epoch, state_id)
            except CatchUpUnavailable as error:
                log.warning("a replica does not tell of an epoch", epoch=epoch, why=str(error))
        return told

    return tells


def _held(archive: Archive, last: int) -> Iterator[Span]:
    """What there is up to epoch ``last``, the newest first: epochs that follow one another, and snapshots."""
    spans = archive.segments.spans()
    points = (Span(kept.head.epoch, kept.head.epoch) for kept in archive.snapshots.all())
    alone = [at for at in points if not any(s.first <= at.first <= s.last for s in spans)]
    for span in sorted([*spans, *alone], reverse=True):
        if span.first <= last:
            yield Span(span.first, min(span.last, last))
