"""Getting what an archive lacks from other replicas, or the store: a snapshot to begin with, and epochs."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from stele.catch_up import from_store
from stele.catch_up.anchored import anchored
from stele.catch_up.keeper import Keeper, KeeperClosedError
from stele.catch_up.shared import set_aside_others, told_by
from stele.catch_up.sources import Givers, Source, replicas, set_aside, stored
from stele.domain.archive.facts import ArchiveTrimmed
from stele.domain.image import EMPTY, NO_LOG, Image
from stele.log.archive.archive import archived
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived
from stele.log.archive.snapshots import head_in
from stele.log.archive.spans import NotArchivedError, Span
from stele.log.blobs.port import StoreError
from stele.log.chain import anchor_of
from stele.log.codec import decode_epoch
from stele.log.errors import OffsetGoneError, TruncatedError
from stele.log.port import EpochsLog, LogPast
from stele.log.start import Start
from stele.runtime.answers.catch_up import ArchiveAnswer, Known, SnapshotAnswer
from stele.runtime.catch_up import ANSWER_S, CatchUpUnavailable
from stele.runtime.logs import get_logger

FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 30.0
PIECE_EPOCHS: Final = 65_536
"""Epochs that become a segment at most."""
PIECE_BYTES: Final = 64 * 1024 * 1024

log = get_logger(__name__)


async def reachable(start: Start, keeper: Keeper, givers: Givers, topic: EpochsLog) -> Start:
    """``start`` where the topic still has what follows it, else what follows a snapshot of somebody else. A log
    that others have recovered from this one is taken over; once it is known, no other is.

    Waits for Kafka. Raises TruncatedError when nobody gives a snapshot that is known to be of the topic's log,
    UnreadableSnapshotError, OSError.
    """
    own = start.image
    newer = _recovered_as(own, await _told(givers, own))
    if newer:
        taken = await _adopted(keeper, givers, topic, 0, own, newer)
        if taken is not None:
            return taken
        log.warning("a recovered log has no snapshot yet", log_id=newer)
    begin = await _begin(topic)
    stands = start.anchor.offset if start.anchor is not None else 0
    if stands >= begin:
        return start
    adopted = await _adopted(keeper, givers, topic, begin, own, newer)
    if adopted is None and givers.store is not None:
        store, cluster = givers.store, givers.cluster
        adopted = await from_store.adopted(keeper, store, topic, cluster, begin, own, newer)
    if adopted is None:
        raise TruncatedError(
            stands,
            f"the topic begins later, at {begin}, than the archive ends, at epoch {own.epoch}, and nobody"
            " gives a snapshot that it goes on from. Start the other replicas; if there are no more,"
            " `stele recover`.",
        )
    return adopted


async def _begin(topic: EpochsLog) -> int:
    while True:
        try:
            return (await topic.ends()).begin
        except TimeoutError as error:
            log.warning("Kafka does not tell where the log begins", why=str(error))
            await asyncio.sleep(FIRST_PAUSE_S)


async def _told(givers: Givers, own: Image) -> dict[str, ArchiveAnswer]:
    """What the replicas of this cluster hold, by their addresses."""
    answers = await givers.others.archives()
    strangers = _strangers(answers, givers.cluster, own.cluster_id)
    return {url: answer for url, answer in answers if url not in strangers}


def _recovered_as(own: Image, told: dict[str, ArchiveAnswer]) -> str:
    """The newest log that replicas follow and that was recovered from the one of ``own``; empty when none was.

    What this archive has of the old log after its end, or of another history before it, was lost by the
    recovery, and is set aside. An empty archive takes over any recovered log: nobody can read that from the
    beginning of its topic.
    """
    mine, is_empty = own.log_id.hex(), own.log_id == NO_LOG
    recovered = (
        answer.log_id
        for answer in told.values()
        for before in answer.incarnations
        if is_empty or before.log_id == mine
    )
    return max(recovered, default="")


async def _adopted(
    keeper: Keeper, givers: Givers, topic: LogPast, begin: int, own: Image, newer: str
) -> Start | None:
    """Behind a snapshot of another replica that the topic's log has led to. What this archive, which leads to
    ``own``, has of the snapshot's log stays, as far as it is known to be the same.
    """
    others, archive = givers.others, keeper.archive
    for url, snapshot, readers, is_believed in await _offers(givers, begin, own, newer):
        try:
            files = await others.files(url, snapshot, decided=True)
            if not await _leads_there(topic, files[0], is_believed):
                log.warning("a snapshot may not be of the log", url=url, epoch=snapshot.epoch)
                continue
            await set_aside_others(archive, own, files, told_by(others, url, readers))
            kept = await asyncio.to_thread(archive.snapshots.adopt, *files)
        except (CatchUpUnavailable, DamagedFileError) as error:
            log.warning("a snapshot was not got", url=url, epoch=snapshot.epoch, why=str(error))
            continue
        start = await asyncio.to_thread(archive.snapshots.start, kept, decided=True)
        if start is not None:
            keeper.restart(start)
            log.info("a snapshot of another replica is kept", url=url, epoch=snapshot.epoch)
            return start
    return None


class _Offer(NamedTuple):
    """A snapshot that the replica at ``url`` gives."""

    url: str
    snapshot: SnapshotAnswer
    readers: list[str]
    """Other replicas that read its log."""
    is_believed: bool
    """Where the topic does not tell whether it is of the log: it reads that itself, or nobody else does."""


async def _offers(givers: Givers, begin: int, own: Image, newer: str) -> list[_Offer]:
    """Snapshots of replicas of this cluster whose anchor is not before offset ``begin``. They are of the log
    ``newer``, or of what others have recovered since; where there is none, of any but those before ``own``'s.

    The newest log comes first; of one log those of who reads it, and of them the nearest.
    """
    told = await _told(givers, own)
    newer = max(newer, _recovered_as(own, told))
    answers = await givers.others.starts(ANSWER_S, decided=1, tail=0)
    troubled = {url for url, answer in told.items() if answer.trouble}
    troubled |= {url for url, answer in answers if answer.stopped}
    found = list[_Offer]()
    for url, answer in answers:
        snapshot = answer.snapshot
        if url not in told or snapshot is None or snapshot.anchor_offset < begin:
            continue
        if snapshot.log_id < own.log_id.hex() or (newer and snapshot.log_id != newer):
            continue
        well = (each for each in told if each not in {url, *troubled})
        readers = [each for each in well if told[each].log_id == snapshot.log_id]
        found.append(_Offer(url, snapshot, readers, url not in troubled or not readers))
    return sorted(
        found, key=lambda each: (each.snapshot.log_id, each.url not in troubled), reverse=True
    )


async def _leads_there(topic: LogPast, snapshot: bytes, is_believed: bool) -> bool:
    """Whether the topic's log has led to this snapshot. Where the topic begins behind it nothing can be
    compared, and who gives it is believed or not.

    Raises DamagedFileError, UnreadableSnapshotError.
    """
    try:
        return await anchored(topic, head_in(snapshot)) is Known.SAME
    except OffsetGoneError:
        return is_believed


def _strangers(answers: list[tuple[str, ArchiveAnswer]], cluster: str, cluster_id: str) -> set[str]:
    """Replicas that keep the log of another cluster, at addresses that somebody has mistaken."""
    found = dict[str, str]()
    for url, answer in answers:
        ids = {each for each in (answer.cluster_id, cluster_id) if each}
        if answer.cluster not in ("", cluster) or len(ids) > 1:
            found[url] = answer.cluster_id or answer.cluster
    if found:
        log.error("catch-up replicas of another cluster are left alone", replicas=found)
    return {*found}


async def keep_beginning(keeper: Keeper, topic: LogPast, start: Start) -> None:
    """Keep the record behind which reading begins, where the archive lacks it and the topic has it. Of a log
    that was just recovered only who recovered it has the first epoch beside its snapshot, and may die.

    Raises OSError.
    """
    epoch, anchor = start.image.epoch, start.anchor
    if anchor is None or any(s.first <= epoch <= s.last for s in keeper.archive.segments.spans()):
        return
    with contextlib.suppress(TimeoutError, KafkaException, OffsetGoneError, DamagedFileError):
        for record in await topic.read(anchor.offset, 1):
            if anchor_of(*record) == anchor:
                found = [archived(*record, decode_epoch(record.value))]
                await _kept(keeper, found, start.image, is_in_the_log=True)


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


async def _kept(keeper: Keeper, found: list[Archived], end: Image, *, is_in_the_log: bool) -> bool:
    """Keep epochs that lead to what is here after them, or to ``end``; whether they do. That says nothing of
    what is here before them, from which they may not follow: it is set aside where what is after them
    ``is_in_the_log``.

    Raises DamagedFileError, OSError, KeeperClosedError.
    """
    archive, first, last = keeper.archive, found[0], found[-1]
    after: bytes | None = end.state_id
    if end.epoch != last.epoch:
        after = await asyncio.to_thread(archive.state_before, last.epoch + 1)
    before = await asyncio.to_thread(archive.state_before, first.epoch)
    follows = before in (None, first.links[0])
    if after != last.links[1] or not (follows or is_in_the_log):
        return False
    if not follows:
        lost = await keeper.set_aside_up_to(first.epoch - 1)
        log.error("epochs from which the log does not go on are set aside", epochs=lost)
    await keeper.adopt(found)
    return True


async def fill(keeper: Keeper, givers: Givers, began: int, image: Image = EMPTY) -> str:
    """Get a piece of what is missing up to epoch ``began``; what is left then, in words, empty when nothing is.
    The archive begins where ``image``, that of the newest epoch that was read, says. The newest is asked for
    first; what nobody gives keeps nobody from older ones.

    Raises OSError.
    """
    trimmed = image.archive.trimmed
    begins, left = 1 if trimmed is None else trimmed.epoch, ""
    try:
        for gap in gaps(keeper.archive.segments.spans(), began, begins):
            why = await _fill_gap(keeper, givers, gap, image, is_newest=not left)
            left = left or f"epochs {gap.first} to {gap.last}{why}"
            if not why:
                break
    except KeeperClosedError as error:
        return str(error)
    if left or trimmed is None:
        return left
    return await _first_snapshot(keeper, givers, trimmed)


async def _fill_gap(
    keeper: Keeper, givers: Givers, gap: Span, image: Image, *, is_newest: bool
) -> str:
    """Get the newest piece of it; why that is not got, in words that follow on its name. What is behind the
    newest gap is in the log. Raises OSError, KeeperClosedError.
    """
    said, is_other = list[str](), False
    for asked in (replicas, stored, set_aside):
        try:
            given = await asked(keeper.archive, givers)
        except StoreError as error:
            said.append(str(error))
            continue
        for source in given:
            try:
                found = await _newest_piece(source, gap)
                if await _kept(keeper, found, image, is_in_the_log=is_newest):
                    log.info("epochs of others are kept", first=found[0].epoch, last=gap.last)
                    return ""
                is_other = True
            except NotArchivedError:
                continue
            except (CatchUpUnavailable, DamagedFileError, StoreError) as error:
                said.append(str(error))
    if is_other:
        return "; what was given is of another history"
    said += (f"{url}: {why}" for url, why in sorted(givers.others.silent.items()))
    return f" ({'; '.join(said)})" if said else ", which nobody has"


async def _newest_piece(source: Source, gap: Span) -> list[Archived]:
    """Epochs up to the last of the gap, as many as become a segment at most: what is after the gap tells
    whether they are in the log, and nothing does of epochs that end before.

    Raises NotArchivedError when the source does not have the last one, and what ``records`` does.
    """
    begins = [span.first for span in source.spans if span.first <= gap.last <= span.last]
    if not begins:
        raise NotArchivedError(gap.last)
    epochs = PIECE_EPOCHS
    while True:
        found = await source.records(max(gap.first, gap.last - epochs + 1, *begins), gap.last)
        size_bytes = sum(len(record.value) for record in found)
        while found[-1].epoch < gap.last and size_bytes < PIECE_BYTES:
            more = await source.records(found[-1].epoch + 1, gap.last)
            found += more
            size_bytes += sum(len(record.value) for record in more)
        if found[-1].epoch == gap.last:
            return found
        epochs = max(1, len(found) // 2)


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
