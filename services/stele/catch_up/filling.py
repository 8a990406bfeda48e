"""Fetch missing epochs, and a snapshot to start from, from other replicas or the store."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from stele.catch_up.keeper import Keeper, KeeperClosedError
from stele.domain.image import EMPTY, NO_LOG, ZERO_STATE, Image
from stele.domain.model.archive import ArchiveTrimmed
from stele.domain.rules.retention import Point
from stele.log.archive.archive import Archive, archived
from stele.log.archive.container import Archived, DamagedFileError, EpochSpan, NotArchivedError
from stele.log.archive.segments import Segment, up_to
from stele.log.archive.snapshots import SnapshotHead, head_in, start_of
from stele.log.archive_store.source import EpochSource
from stele.log.archive_store.stored import NoArchiveError, StoredArchive, stored_archive
from stele.log.blobs.port import BlobMissingError, BlobStore, BlobStoreError
from stele.log.chain import anchor_of, digest_of
from stele.log.codec import decode_epoch
from stele.log.errors import OffsetGoneError, TruncatedError
from stele.log.fold import Start
from stele.log.port import Log, LogPast
from stele.runtime.answers.catch_up import ArchiveAnswer, Known, SnapshotAnswer
from stele.runtime.catch_up import ANSWER_S, CatchUp, CatchUpUnavailable, ReplicaSource
from stele.runtime.logs import get_logger

# Sources of missing epochs: other replicas, the store, and segments that were set aside here.


class ArchivePeers(NamedTuple):
    """The other replicas, and the store of the cluster, if there is one."""

    others: CatchUp
    store: BlobStore | None
    cluster: str


class _SetAside:
    """A segment that was set aside, as a source."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.spans = (EpochSpan(segment.first, segment.last),)

    async def records(self, first: int, last: int) -> list[Archived]:
        return await asyncio.to_thread(up_to, self._segment, first, last)


async def replicas(archive: Archive, peers: ArchivePeers) -> list[EpochSource]:
    """Return the replicas that answer: those that read the own log first, then the nearest.

    A replica that reads the own log must answer from that log, since it may have switched to
    another log in between. A replica that missed a recovery, or cannot read the log, may still have
    the same older epochs. Its requests carry no log id.
    """
    newest = archive.snapshots.newest()
    log_id = "" if newest is None else newest.head.log_id
    answers = await peers.others.archives()
    ordered = sorted(answers, key=lambda each: each[1].log_id != log_id)
    return [
        ReplicaSource(
            peers.others,
            [(url, answer)],
            log_id if answer.log_id == log_id and not answer.trouble else "",
        )
        for url, answer in ordered
    ]


async def stored(_: Archive, peers: ArchivePeers) -> list[EpochSource]:
    """Return the store's archive, if there is one. Raises BlobStoreError."""
    if peers.store is None:
        return []
    try:
        return [await stored_archive(peers.store, peers.cluster)]
    except NoArchiveError:
        return []


async def set_aside(archive: Archive, _: ArchivePeers) -> list[EpochSource]:
    """Return the segments set aside because no source could confirm them, or that turned out not
    to be lost.
    """
    segments = await asyncio.to_thread(archive.segments.lost)
    return [_SetAside(each) for each in segments]


# Find the part of an archive that belongs to the log of an adopted snapshot.
#
# The rest is set aside. A recovery or an unclean election removed it from the log, and serving it
# would give readers a wrong past.
#
# State ids decide: contiguous epochs that end with the same state id are equal. When no source can
# decide, epochs count as different. They are taken back once epochs of the log lead to them
# (``filling``).


EpochLookup = Callable[[int, bytes], Awaitable[Known]]
"""Returns whether an epoch with this state id is in the log."""

log = get_logger(__name__)


async def _adopt(
    keeper: Keeper, own: Image, files: Sequence[bytes], lookup: EpochLookup
) -> Start | None:
    """Adopt a snapshot, and return the start after it; None if it cannot be read after all.

    Epochs of the archive that are not known to be in the snapshot's log are set aside. ``own`` is
    the state to which the archive leads. The snapshot must be readable before anything is set
    aside.

    Raises DamagedFileError, UnreadableSnapshotError, OSError, and the errors of ``lookup``.
    """
    archive = keeper.archive
    opened = [io.BytesIO(content) for content in files]
    other = await asyncio.to_thread(partial(start_of, *opened, supported=archive.supported))
    shared = await newest_shared(archive, last_shared(own, other.image), lookup)
    lost = await asyncio.to_thread(archive.set_aside_after, shared, own.log_id.hex())
    if lost:
        log.error("epochs that may not be in the log are set aside", after=shared, epochs=lost)
    kept = await asyncio.to_thread(archive.snapshots.adopt, *files)
    start = await asyncio.to_thread(archive.snapshots.start, kept, decided=True)
    if start is not None:
        keeper.restart(start)
    return start


def last_shared(own: Image, other: Image) -> Point:
    """Return the newest epoch that both images' logs may share, with its state id in ``other``'s
    log.

    A log from which ``other``'s log does not descend shares nothing.
    """
    if own.log_id in (NO_LOG, other.log_id):
        return Point(other.epoch, other.state_id)
    mine = own.log_id.hex()
    found = [each for each in other.founding.incarnations if each.log_id == mine]
    if not found:
        return Point(0, ZERO_STATE)
    return Point(found[-1].last_epoch, bytes.fromhex(found[-1].state_id))


async def newest_shared(archive: Archive, last: Point, lookup: EpochLookup) -> int:
    """Return the newest epoch up to which the archive equals the log, whose epoch ``last`` is
    known.

    The result is 0 when no source confirms any. Raises DamagedFileError, and the errors of
    ``lookup``.
    """

    async def known(epoch: int) -> Known:
        state_id = await asyncio.to_thread(archive.state_id_of, epoch)
        if state_id is None:
            return Known.UNKNOWN
        if epoch == last.epoch:
            return Known.SAME if state_id == last.state_id else Known.OTHER
        return await lookup(epoch, state_id)

    for held in _spans_up_to(archive, last.epoch):
        at_end = await known(held.last)
        if at_end is Known.SAME:
            return held.last
        if at_end is Known.OTHER:
            same = await _last_shared_in(held, known)
            if same:
                return same
    return 0


async def _last_shared_in(held: EpochSpan, known: Callable[[int], Awaitable[Known]]) -> int:
    """Return the newest confirmed epoch of the span, whose last one differs, by binary search.

    0: none.
    """
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


def lookup_in_replicas(others: CatchUp, url: str, more: Sequence[str]) -> EpochLookup:
    """Return a lookup that asks the replica at ``url``, which offers the snapshot, and then
    those in ``more``.

    It raises CatchUpUnavailable when the first one does not answer.
    """

    async def lookup(epoch: int, state_id: bytes) -> Known:
        told = await others.known(url, epoch, state_id)
        for another in more:
            if told is not Known.UNKNOWN:
                break
            try:
                told = await others.known(another, epoch, state_id)
            except CatchUpUnavailable as error:
                log.warning("a replica does not tell of an epoch", epoch=epoch, why=str(error))
        return told

    return lookup


def _spans_up_to(archive: Archive, last: int) -> Iterator[EpochSpan]:
    """Yield the archive's content to epoch ``last``, the newest first: contiguous epochs and
    snapshots.
    """
    spans = archive.segments.spans()
    points = (EpochSpan(kept.head.epoch, kept.head.epoch) for kept in archive.snapshots.all())
    alone = [at for at in points if not any(s.first <= at.first <= s.last for s in spans)]
    for span in sorted([*spans, *alone], reverse=True):
        if span.first <= last:
            yield EpochSpan(span.first, min(span.last, last))


# Check that the topic still holds the winner that a snapshot ends with.
#
# An unclean election may remove a winner. A replica that stopped since, a replica that has not
# noticed it, and the store may still end with that winner.


TRIES: Final = 3
PAUSE_S: Final = 0.5
"""A new leader is usually elected within a second. If not, callers ask again later."""


async def compare_anchor(topic: LogPast, head: SnapshotHead) -> Known:
    """Return whether the topic has this winner at its offset (``SAME``) or another record
    (``OTHER``).

    The result is ``UNKNOWN`` when Kafka does not answer, or when the topic ends before the offset.
    A deposed leader may report such an earlier end.

    Raises OffsetGoneError when the topic begins after the offset.
    """
    why = f"the topic ends before offset {head.anchor_offset}"
    for tried in range(TRIES):
        if tried:
            await asyncio.sleep(PAUSE_S)
        try:
            records = await topic.read(head.anchor_offset, 1)
        except (TimeoutError, KafkaException) as error:
            why = str(error)
            continue
        if records:
            offset, value = records[0]
            found = offset, digest_of(value).hex()
            is_same = found == (head.anchor_offset, head.anchor_digest)
            return Known.SAME if is_same else Known.OTHER
    log.warning("whether a snapshot is of the log is unknown", epoch=head.epoch, why=why)
    return Known.UNKNOWN


# Fetch a snapshot to start from out of the blob store when no other replica offers one.


NEWEST_TRIED: Final = 3
"""Snapshots that are tried when newer ones are damaged."""


async def adopted_from_store(
    keeper: Keeper,
    store: BlobStore,
    topic: LogPast,
    cluster: str,
    begin: int,
    own: Image,
    newer: str,
) -> Start | None:
    """Return the start after the newest stored snapshot that lies in the log of ``topic``, or None.

    The topic begins at offset ``begin``. The snapshot's log must not be older than ``own``'s log,
    or than ``newer``, which replicas reported. Epochs of this archive, ending at ``own``, that the
    store lacks are set aside.

    Raises UnreadableSnapshotError, OSError.
    """
    oldest = max(own.log_id.hex(), newer)
    try:
        stored = await stored_archive(store, cluster)
        shots = [shot for shot in stored.shots if shot.log_id >= oldest]
        for shot in shots[:NEWEST_TRIED]:
            try:
                files = await stored.files(shot)
                head = head_in(files[0])
                if head.anchor_offset < begin:
                    return None
                if await compare_anchor(topic, head) is not Known.SAME:
                    text = "a snapshot in the store may not be of the log"
                    log.warning(text, store=store.url, epoch=shot.epoch)
                    continue
                start = await _adopt(keeper, own, files, lookup_in_store(stored))
            except DamagedFileError as error:
                log.error("a snapshot in the store is damaged", store=store.url, why=str(error))
                continue
            if start is not None:
                log.info("a snapshot of the store is kept", store=store.url, epoch=shot.epoch)
                return start
    except (NoArchiveError, OffsetGoneError):
        return None
    except BlobStoreError as error:
        log.warning("the store gives no snapshot", store=store.url, why=str(error))
    return None


def lookup_in_store(stored: StoredArchive) -> EpochLookup:
    """Return a lookup in the store. The lookup raises BlobStoreError."""

    async def lookup(epoch: int, state_id: bytes) -> Known:
        try:
            there = await stored.state_id_of(epoch)
        except (BlobMissingError, DamagedFileError) as error:
            log.error("an epoch in the store cannot be read", epoch=epoch, why=str(error))
            there = None
        if there is None:
            return Known.UNKNOWN
        return Known.SAME if there == state_id.hex() else Known.OTHER

    return lookup


FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 30.0
PIECE_EPOCHS: Final = 65_536
"""Most epochs in one segment."""
PIECE_BYTES: Final = 64 * 1024 * 1024


async def reachable(start: Start, keeper: Keeper, peers: ArchivePeers, topic: Log) -> Start:
    """Return ``start`` if the topic still holds what follows it, else the start after an adopted
    snapshot.

    A log that others recovered from this one is taken over. Once such a log is known, no other is
    taken.

    Waits for Kafka. Raises TruncatedError when no source has a snapshot that is known to be of the
    topic's log; UnreadableSnapshotError, OSError.
    """
    own = start.image
    newer = _recovered_as(own, await _archives(peers, own))
    if newer:
        taken = await _adopted(keeper, peers, topic, 0, own, newer)
        if taken is not None:
            return taken
        log.warning("a recovered log has no snapshot yet", log_id=newer)
    begin = await _begin(topic)
    stands = start.anchor.offset if start.anchor is not None else 0
    if stands >= begin:
        return start
    adopted = await _adopted(keeper, peers, topic, begin, own, newer)
    if adopted is None and peers.store is not None:
        store, cluster = peers.store, peers.cluster
        adopted = await adopted_from_store(keeper, store, topic, cluster, begin, own, newer)
    if adopted is None:
        raise TruncatedError(
            stands,
            f"the topic begins later, at {begin}, than the archive ends, at epoch {own.epoch}, and nobody"
            " offers a snapshot to continue from. Start the other replicas; if there are none,"
            " `stele recover`.",
        )
    return adopted


async def _begin(topic: Log) -> int:
    while True:
        try:
            return (await topic.ends()).begin
        except TimeoutError as error:
            log.warning("Kafka does not tell where the log begins", why=str(error))
            await asyncio.sleep(FIRST_PAUSE_S)


async def _archives(peers: ArchivePeers, own: Image) -> dict[str, ArchiveAnswer]:
    """Return the archives that the replicas of this cluster report, by address."""
    answers = await peers.others.archives()
    strangers = _strangers(answers, peers.cluster, own.cluster_id)
    return {url: answer for url, answer in answers if url not in strangers}


def _recovered_as(own: Image, told: dict[str, ArchiveAnswer]) -> str:
    """Return the id of the newest log that replicas follow and that was recovered from ``own``'s
    log, or "".

    Epochs of the old log after the recovery point, or of another history before it, are lost and
    set aside. An empty archive takes over any recovered log, because its topic cannot be read from
    the beginning.
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
    keeper: Keeper, peers: ArchivePeers, topic: LogPast, begin: int, own: Image, newer: str
) -> Start | None:
    """Adopt another replica's snapshot that lies in the topic's log, and return the start after it.

    Epochs of the snapshot's log that this archive (ending at ``own``) holds stay, as far as they
    are proven equal.
    """
    others = peers.others
    for url, snapshot, readers, is_believed in await _offers(peers, begin, own, newer):
        try:
            files = await others.files(url, snapshot, decided=True)
            if not await _is_in_topic(topic, files[0], is_believed):
                log.warning("a snapshot may not be of the log", url=url, epoch=snapshot.epoch)
                continue
            start = await _adopt(keeper, own, files, lookup_in_replicas(others, url, readers))
        except (CatchUpUnavailable, DamagedFileError) as error:
            log.warning("a snapshot was not got", url=url, epoch=snapshot.epoch, why=str(error))
            continue
        if start is not None:
            log.info("a snapshot of another replica is kept", url=url, epoch=snapshot.epoch)
            return start
    return None


class _Offer(NamedTuple):
    """A snapshot that the replica at ``url`` offers."""

    url: str
    snapshot: SnapshotAnswer
    readers: list[str]
    """Addresses of other replicas that read its log."""
    is_believed: bool
    """Accept the snapshot when the topic cannot confirm it: its replica reads the log, or no
    other replica does.
    """


async def _offers(peers: ArchivePeers, begin: int, own: Image, newer: str) -> list[_Offer]:
    """Return the snapshots of this cluster's replicas whose anchor is at offset ``begin`` or later.

    They are of the log ``newer`` or of one recovered from it. Without such a log, any log counts
    that is not older than ``own``'s. The newest log comes first. Within one log, replicas that read
    it come first, then the nearest.
    """
    told = await _archives(peers, own)
    newer = max(newer, _recovered_as(own, told))
    answers = await peers.others.starts(ANSWER_S, decided=1, tail=0)
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


async def _is_in_topic(topic: LogPast, snapshot: bytes, is_believed: bool) -> bool:
    """Return whether the topic's log contains this snapshot.

    If the topic begins after the anchor, they cannot be compared, and ``is_believed`` decides.

    Raises DamagedFileError, UnreadableSnapshotError.
    """
    try:
        return await compare_anchor(topic, head_in(snapshot)) is Known.SAME
    except OffsetGoneError:
        return is_believed


def _strangers(answers: list[tuple[str, ArchiveAnswer]], cluster: str, cluster_id: str) -> set[str]:
    """Return the addresses of replicas that keep another cluster's log.

    Their addresses are misconfigured.
    """
    found = dict[str, str]()
    for url, answer in answers:
        ids = {each for each in (answer.cluster_id, cluster_id) if each}
        if answer.cluster not in ("", cluster) or len(ids) > 1:
            found[url] = answer.cluster_id or answer.cluster
    if found:
        log.error("catch-up replicas of another cluster are left alone", replicas=found)
    return {*found}


async def archive_first_record(keeper: Keeper, topic: LogPast, start: Start) -> None:
    """Archive the record that reading starts after, if the archive lacks it and the topic has it.

    Just after a recovery, only the replica that recovered the log has its first epoch beside the
    snapshot. That replica may die.

    Raises OSError.
    """
    epoch, anchor = start.image.epoch, start.anchor
    if anchor is None or any(s.first <= epoch <= s.last for s in keeper.archive.segments.spans()):
        return
    with contextlib.suppress(TimeoutError, KafkaException, OffsetGoneError, DamagedFileError):
        for record in await topic.read(anchor.offset, 1):
            if anchor_of(*record) == anchor:
                found = [archived(*record, decode_epoch(record.value))]
                await _archive_epochs(keeper, found, start.image, is_in_the_log=True)


def gaps(spans: list[EpochSpan], began: int, begins: int = 1) -> Iterator[EpochSpan]:
    """Yield the missing epochs, the newest gap first.

    Epochs after ``began`` come from the topic. Epochs before ``begins`` are deleted everywhere.
    """
    first = began + 1
    for span in reversed(spans):
        if span.first > began:
            continue
        if span.last + 1 < first and begins < first:
            yield EpochSpan(max(span.last + 1, begins), first - 1)
        first = min(first, span.first)
    if begins < first:
        yield EpochSpan(begins, first - 1)


async def _archive_epochs(
    keeper: Keeper, found: list[Archived], end: Image, *, is_in_the_log: bool
) -> bool:
    """Archive epochs that lead to the epoch after them, or to ``end``. Return whether they do.

    The older epochs in this archive may be of another history. If the next epoch is known to be in
    the log (``is_in_the_log``), such older epochs are set aside.

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
        # The newer epochs are in the log, so the older ones that do not lead to them are not.
        lost = await keeper.set_aside_up_to(first.epoch - 1)
        log.error("epochs outside of the log's history are set aside", epochs=lost)
    await keeper.adopt(found)
    return True


async def fill(keeper: Keeper, peers: ArchivePeers, began: int, image: Image = EMPTY) -> str:
    """Fetch one piece of the missing epochs up to ``began``.

    Return what is still missing as text, or "". The archive begins where ``image``, the state at
    the newest epoch read, declares. The newest gap is fetched first. A gap that no source can fill
    does not stop older gaps from being filled.

    Raises OSError.
    """
    trimmed = image.archive.trimmed
    begins, left = 1 if trimmed is None else trimmed.epoch, ""
    try:
        for gap in gaps(keeper.archive.segments.spans(), began, begins):
            why = await _fill_gap(keeper, peers, gap, image, is_newest=not left)
            left = left or f"epochs {gap.first} to {gap.last}{why}"
            if not why:
                break
    except KeeperClosedError as error:
        return str(error)
    if left or trimmed is None:
        return left
    return await _first_snapshot(keeper, peers, trimmed)


async def _fill_gap(
    keeper: Keeper, peers: ArchivePeers, gap: EpochSpan, image: Image, *, is_newest: bool
) -> str:
    """Fetch the newest piece of the gap.

    Return "" or the reason for failure, as a suffix of the gap's name.

    The epoch after the newest gap is in the log. Raises OSError, KeeperClosedError.
    """
    said, is_other = list[str](), False
    for asked in (replicas, stored, set_aside):
        try:
            given = await asked(keeper.archive, peers)
        except BlobStoreError as error:
            said.append(str(error))
            continue
        for source in given:
            try:
                found = await _newest_piece(source, gap)
                if await _archive_epochs(keeper, found, image, is_in_the_log=is_newest):
                    log.info("epochs of others are kept", first=found[0].epoch, last=gap.last)
                    return ""
                is_other = True
            except NotArchivedError:
                continue
            except (CatchUpUnavailable, DamagedFileError, BlobStoreError) as error:
                said.append(str(error))
    if is_other:
        return "; what was given is of another history"
    said += (f"{url}: {why}" for url, why in sorted(peers.others.silent.items()))
    return f" ({'; '.join(said)})" if said else ", which no replica has"


async def _newest_piece(source: EpochSource, gap: EpochSpan) -> list[Archived]:
    """Return epochs that end at the last one of the gap, at most one segment of them.

    The epoch after the gap proves that they are in the log. Epochs that end earlier cannot be
    proven.

    Raises NotArchivedError when the source lacks the last epoch, and the errors of ``records``.
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
        # The piece is full before the last epoch of the gap. Start later, with fewer epochs.
        epochs = max(1, len(found) // 2)


async def _first_snapshot(keeper: Keeper, peers: ArchivePeers, trimmed: ArchiveTrimmed) -> str:
    """Fetch the snapshot at which the archive begins, unless the epochs here already lead to it."""
    archive = keeper.archive
    if archive.segments.first < trimmed.epoch:
        return ""
    if any(kept.head.epoch == trimmed.epoch for kept in archive.snapshots.all()):
        return ""
    for url, answer in await peers.others.starts(at_most=trimmed.epoch, decided=1, tail=0):
        snapshot = answer.snapshot
        if snapshot is None or snapshot.epoch != trimmed.epoch:
            continue
        try:
            files = await peers.others.files(url, snapshot, decided=True)
            kept = await asyncio.to_thread(archive.snapshots.adopt, *files)
        except (CatchUpUnavailable, DamagedFileError) as error:
            log.warning("a snapshot was not got", url=url, epoch=snapshot.epoch, why=str(error))
            continue
        if kept.hash == trimmed.hash:
            return ""
        archive.snapshots.set_aside(kept, "it is not what the members agreed on")
    return f"the snapshot of epoch {trimmed.epoch}, at the archive's beginning"
