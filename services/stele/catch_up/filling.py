"""Getting what an archive lacks from other replicas, or the store: a snapshot to begin with, and epochs."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from stele.catch_up import from_store
from stele.catch_up.keeper import Keeper
from stele.domain.archive.facts import ArchiveTrimmed
from stele.domain.image import NO_LOG, Image
from stele.log.archive.archive import Archive, archived
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived
from stele.log.archive.snapshots import shared_with
from stele.log.archive.spans import NotArchivedError, Span
from stele.log.blobs.port import BlobStore, StoreError
from stele.log.chain import digest_of
from stele.log.codec import decode_epoch
from stele.log.errors import OffsetGoneError, TruncatedError
from stele.log.port import LogPast
from stele.log.start import Start
from stele.runtime.answers.catch_up import Known
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable
from stele.runtime.logs import get_logger
from stele.runtime.starting import AskEnds

FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 30.0
PIECE_EPOCHS: Final = 65_536
"""Epochs that become a segment at most."""
PIECE_BYTES: Final = 64 * 1024 * 1024

log = get_logger(__name__)


class Givers(NamedTuple):
    """Who may have what this archive lacks: other replicas, and the store of the cluster, if there is one."""

    others: CatchUp
    store: BlobStore | None
    cluster: str


async def reachable(start: Start, keeper: Keeper, givers: Givers, ends: AskEnds) -> Start:
    """``start`` where the topic still has what follows it, else what follows a snapshot of somebody else. A log
    that others have recovered from this one is taken over.

    Waits for Kafka. Raises TruncatedError when nobody gives a snapshot, UnreadableSnapshotError, OSError.
    """
    taken = await _taken_over(start, keeper, givers)
    if taken is not None:
        return taken
    begin = await _begin(ends)
    stands = start.anchor.offset if start.anchor is not None else 0
    if stands >= begin:
        return start
    adopted = await _adopted(keeper, givers, begin, start.image)
    if adopted is None and givers.store is not None:
        store = givers.store
        adopted = await from_store.adopted(keeper, store, givers.cluster, begin, start.image)
    if adopted is None:
        raise TruncatedError(
            stands,
            f"the topic begins later, at {begin}, than the archive ends, at epoch {start.image.epoch}, and"
            " nobody gives a snapshot. Start the other replicas; if there are no more, `stele recover`.",
        )
    return adopted


async def _begin(ends: AskEnds) -> int:
    while True:
        try:
            return (await ends()).begin
        except TimeoutError as error:
            log.warning("Kafka does not tell where the log begins", why=str(error))
            await asyncio.sleep(FIRST_PAUSE_S)


async def _taken_over(start: Start, keeper: Keeper, givers: Givers) -> Start | None:
    """Where to begin when a replica follows a log that was recovered from this archive's: None when none does.

    What this archive has of the old log after its end, or of another history before it, was lost by the
    recovery, and is set aside. An empty archive takes over any recovered log: nobody can read that from the
    beginning of its topic.
    """
    mine, is_empty = start.image.log_id.hex(), start.image.log_id == NO_LOG
    recovered = {
        answer.log_id
        for _, answer in await givers.others.archives()
        for before in answer.incarnations
        if is_empty or before.log_id == mine
    }
    if not recovered:
        return None
    newest = max(recovered)
    found = await _adopted(keeper, givers, 0, start.image, newest)
    if found is None:
        log.warning("a recovered log has no snapshot yet", log_id=newest)
    return found


async def _adopted(
    keeper: Keeper,
    givers: Givers,
    begin: int,
    own: Image,
    log_id: str = "",
) -> Start | None:
    """Behind a snapshot of another replica of this cluster whose anchor is not before offset ``begin``, and
    which is of log ``log_id``, or of any. What this archive, which leads to ``own``, has of the snapshot's log
    stays, as far as it is the same there.
    """
    others, mine = givers.others, own.log_id.hex()
    strangers = await _strangers(givers, own.cluster_id)
    for url, answer in await others.starts(decided=1, tail=0):
        snapshot = answer.snapshot
        if snapshot is None or snapshot.anchor_offset < begin or url in strangers:
            continue
        if log_id and snapshot.log_id != log_id:
            continue
        try:
            image, decided = await others.files(url, snapshot, decided=True)
            last, _ = await asyncio.to_thread(shared_with, own, image, keeper.archive.supported)
            shared = await _shared(keeper, others, url, last)
            lost = await asyncio.to_thread(keeper.archive.set_aside_after, shared, mine)
            kept = await asyncio.to_thread(keeper.archive.snapshots.adopt, image, decided)
        except (CatchUpUnavailable, DamagedFileError) as error:
            log.warning("a snapshot was not got", url=url, epoch=snapshot.epoch, why=str(error))
            continue
        if lost:
            log.error(
                "epochs are not in the log any more, and set aside", after=shared, epochs=lost
            )
        start = await asyncio.to_thread(keeper.archive.snapshots.start, kept, decided=True)
        if start is not None:
            keeper.restart(start)
            log.info("a snapshot of another replica is kept", url=url, epoch=snapshot.epoch)
            return start
    return None


async def _strangers(givers: Givers, cluster_id: str) -> set[str]:
    """Replicas that keep the log of another cluster, at addresses that somebody has mistaken."""
    found = dict[str, str]()
    for url, answer in await givers.others.archives():
        ids = {each for each in (answer.cluster_id, cluster_id) if each}
        if answer.cluster not in ("", givers.cluster) or len(ids) > 1:
            found[url] = answer.cluster_id or answer.cluster
    if found:
        log.error("catch-up replicas of another cluster are left alone", replicas=found)
    return {*found}


async def _shared(keeper: Keeper, others: CatchUp, url: str, last: int) -> int:
    """The newest epoch up to ``last`` until which this archive has the same as the replica at ``url``, as
    far as that can tell. Raises CatchUpUnavailable, DamagedFileError.
    """
    archive = keeper.archive

    async def known(epoch: int) -> Known:
        state_id = await asyncio.to_thread(archive.state_id_of, epoch)
        return Known.UNKNOWN if state_id is None else await others.known(url, epoch, state_id)

    same, other = 0, min(last, archive.segments.last)
    if other == 0 or await known(other) is not Known.OTHER:
        return last
    while same + 1 < other:
        middle = (same + other) // 2
        if await known(middle) is Known.SAME:
            same = middle
        else:
            other = middle
    return same


async def keep_beginning(keeper: Keeper, topic: LogPast, start: Start) -> None:
    """Keep the record behind which reading begins, where the archive lacks it and the topic has it. Of a log
    that was just recovered only who recovered it has the first epoch beside its snapshot, and may die.

    Raises OSError.
    """
    epoch, anchor = start.image.epoch, start.anchor
    if anchor is None or any(s.first <= epoch <= s.last for s in keeper.archive.segments.spans()):
        return
    with contextlib.suppress(TimeoutError, KafkaException, OffsetGoneError):
        for record in await topic.read(anchor.offset, 1):
            if record.offset == anchor.offset and digest_of(record.value) == anchor.digest:
                await keeper.adopt([archived(*record, decode_epoch(record.value))])


def gaps(spans: list[Span], began: int, begins: int = 1) -> Iterator[Span]:
    """The epochs that are missing, the newest first; those after ``began`` come from the topic, and before
    ``begins`` nobody has any.
    """
    first = began + 1
    for span in reversed(spans):
        if span.first > began:
            continue
        if span.last + 1 < first and begins < first:
            yield Span(max(span.last + 1, begins), first - 1)
        first = min(first, span.first)
    if begins < first:
        yield Span(begins, first - 1)


def _fits(archive: Archive, found: list[Archived]) -> bool:
    """Whether epochs follow from what is here before them, and what is here after them follows from them."""
    first, last = found[0], found[-1]
    before, after = archive.state_before(first.epoch), archive.state_before(last.epoch + 1)
    return before in (None, first.links[0]) and after in (None, last.links[1])


async def fill(
    keeper: Keeper, givers: Givers, began: int, trimmed: ArchiveTrimmed | None = None
) -> str:
    """Get a piece of what is missing; what is left then, in words, empty when nothing is. The archive begins
    where ``trimmed`` says. The newest is asked for first; what nobody gives keeps nobody from older ones.

    Raises OSError.
    """
    begins, left = 1 if trimmed is None else trimmed.epoch, ""
    for gap in gaps(keeper.archive.segments.spans(), began, begins):
        why = await _fill_gap(keeper, givers, gap)
        left = left or f"epochs {gap.first} to {gap.last}{why}"
        if not why:
            break
    if left or trimmed is None:
        return left
    return await _first_snapshot(keeper, givers, trimmed)


async def _fill_gap(keeper: Keeper, givers: Givers, gap: Span) -> str:
    """Get the newest piece of it; why that is not got, in words that follow on its name. Raises OSError."""
    first = max(gap.first, gap.last - PIECE_EPOCHS + 1)
    try:
        found = await _given(givers, first, gap.last)
        size_bytes = sum(len(record.value) for record in found)
        while found[-1].epoch < gap.last and size_bytes < PIECE_BYTES:
            more = await _given(givers, found[-1].epoch + 1, gap.last)
            found += more
            size_bytes += sum(len(record.value) for record in more)
        if not await asyncio.to_thread(_fits, keeper.archive, found):
            return "; what was given is of another history"
        await keeper.adopt(found)
    except NotArchivedError:
        return ", which nobody has"
    except (CatchUpUnavailable, DamagedFileError, StoreError) as error:
        return f" ({error})"
    log.info("epochs of others are kept", first=found[0].epoch, last=found[-1].epoch)
    return ""


async def _first_snapshot(keeper: Keeper, givers: Givers, trimmed: ArchiveTrimmed) -> str:
    """Get the snapshot that the archive begins with, unless it follows from what is here."""
    archive = keeper.archive
    if archive.segments.first < trimmed.epoch:
        return ""
    if any(kept.head.epoch == trimmed.epoch for kept in archive.snapshots.all()):
        return ""
    for url, answer in await givers.others.starts(at_most=trimmed.epoch, decided=1, tail=0):
        snapshot = answer.snapshot
        if snapshot is None or snapshot.epoch != trimmed.epoch:
            continue
        try:
            files = await givers.others.files(url, snapshot, decided=True)
            kept = await asyncio.to_thread(archive.snapshots.adopt, *files)
        except (CatchUpUnavailable, DamagedFileError) as error:
            log.warning("a snapshot was not got", url=url, epoch=snapshot.epoch, why=str(error))
            continue
        if kept.hash == trimmed.hash:
            return ""
        archive.snapshots.set_aside(kept, "it is not what the members agreed on")
    return f"the snapshot of epoch {trimmed.epoch}, with which the archive begins"


async def _given(givers: Givers, first: int, last: int) -> list[Archived]:
    """From the replicas, else from the store. Raises as both do."""
    try:
        return await givers.others.records(first, last)
    except (CatchUpUnavailable, NotArchivedError):
        if givers.store is None:
            raise
        return await from_store.records(givers.store, givers.cluster, first, last)
