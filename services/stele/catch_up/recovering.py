"""Recover the log from this archive: write the first record of the new log, and a snapshot of it.

The record goes to the end of the topic, whatever the topic still holds. The first recovery in the
topic counts, whichever process wrote it. Then this process ends, and restarts after the snapshot,
as all others do.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from stele.catch_up.keeper import Keeper
from stele.domain.base import Rejection
from stele.domain.recovery import NewLog, Why, recovered
from stele.domain.request_memory import to_facts
from stele.log.archive.archive import Archive, folded
from stele.log.archive.container import Archived
from stele.log.archive.snapshots import head_of
from stele.log.codec import decode_epoch, encode_epoch
from stele.log.errors import RecoveredError
from stele.log.fold import Start
from stele.log.port import Log, LogPast, Record
from stele.log.record_builder import ENTROPY_BITS, next_state_id
from stele.log.recovery import first_recovery, start_after
from stele.runtime.answers.catch_up import RecoverableAnswer, RecoveredAnswer
from stele.runtime.logs import get_logger
from stele.runtime.retries import until_it_works

LARGEST: Final = 1 << 62
"""Greater than every epoch."""
READ_RECORDS: Final = 2000
BROKER_LIMIT_S: Final = 30.0
LOOK_S: Final = 0.1

T = TypeVar("T")

log = get_logger(__name__)


class NotRecoverable(Exception):
    """The log cannot be recovered from here. The text states the reason and what to do."""


class RecoverQuestion(NamedTuple):
    """Asks to continue after ``epoch``, which has ``state_id``.

    ``actor`` and ``reason`` go into the log. ``known_epoch`` and ``known_log_id`` are the newest
    that any process has seen. ``told_epoch`` is the newest epoch that this replica could offer when
    its history was requested.
    """

    epoch: int
    state_id: bytes
    known_epoch: int
    known_log_id: bytes
    actor: str
    reason: str
    force: bool
    told_epoch: int = LARGEST


async def recover(
    keeper: Keeper, topic: Log, asked: RecoverQuestion, more: list[Archived]
) -> RecoveredAnswer:
    """Continue the log after the requested epoch.

    ``more`` are epochs that follow those in the archive.

    The reader of this process has ended. Raises NotRecoverable, LogError, DamagedFileError,
    OSError, and TimeoutError when the topic does not take the record.
    """
    start = await asyncio.to_thread(_image, keeper.archive, asked, more)
    begin, end = await _answered(topic.ends)
    there = await recovery_in(_AskedAgain(topic), start.image.log_id, begin, end)
    was_there = there is not None
    if there is None:
        await asyncio.to_thread(_check_not_grown, keeper.archive, asked)
        there, was_there = await _write(topic, end, start, asked)
    after = _after(start, there)
    await asyncio.to_thread(keep, keeper.archive, start, after, there)
    log.warning(
        "the log is recovered",
        log_id=after.image.log_id.hex(),
        epoch=after.image.epoch,
        offset=there.offset,
        was_there=was_there,
    )
    return RecoveredAnswer(
        replica_id="",
        log_id=after.image.log_id.hex(),
        epoch=after.image.epoch,
        offset=there.offset,
        last_epoch=start.image.epoch,
        known_epoch=max(asked.known_epoch, start.image.epoch),
        was_there=was_there,
    )


async def check(
    keeper: Keeper, topic: Log, asked: RecoverQuestion, more: list[Archived]
) -> RecoverableAnswer:
    """Raise what ``recover`` would raise, judged by the present archive and topic.

    No file or record is written. A topic whose leader does not answer is not checked. Raises
    NotRecoverable, LogError, DamagedFileError.
    """
    start = await asyncio.to_thread(_image_beside, keeper.archive, asked, more)
    try:
        begin, end = await topic.ends()
        there = await recovery_in(topic, start.image.log_id, begin, end)
    except TimeoutError as error:
        return RecoverableAnswer(not_looked_at=str(error))
    if there is not None:
        _after(start, there)
    else:
        await asyncio.to_thread(_check_not_grown, keeper.archive, asked)
    return RecoverableAnswer()


def _after(start: Start, there: Record) -> Start:
    """Return where readers begin after the existing recovery.

    Raises NotRecoverable when that recovery continues from another epoch.
    """
    try:
        return start_after(start.image, there)
    except RecoveredError as error:
        raise NotRecoverable(
            f"The log was recovered before, from another epoch: {error} Restart this replica: it takes"
            f" over the others' epochs. If no replica has anything of log {error.recovered.log_id} any more,"
            " delete the topic and recover again: the log then continues from here. The dry run shows the"
            " epochs of each replica."
        ) from error


def lacking(archive: Archive, asked: RecoverQuestion, more: list[Archived]) -> list[Archived]:
    """Return those of ``more`` that this archive lacks, before any folding or stopping. Blocks.

    Raises NotRecoverable when archive and ``more`` do not lead to the requested state, and
    DamagedFileError.
    """
    last = archive.newest_image()
    fresh = [record for record in more if last < record.epoch <= asked.epoch]
    epoch = min(last, asked.epoch)
    state_id = archive.state_id_of(epoch) if epoch else None
    if fresh and (fresh[0].epoch != last + 1 or state_id not in (None, fresh[0].links[0])):
        raise NotRecoverable(
            f"Epoch {fresh[0].epoch} does not follow epoch {last}, the last of this archive."
        )
    if fresh:
        epoch, state_id = fresh[-1].epoch, fresh[-1].links[1]
    _check_is_asked_for(epoch, state_id or b"", asked.epoch, asked.state_id)
    return fresh


def _check_not_grown(archive: Archive, asked: RecoverQuestion) -> None:
    """Raise NotRecoverable when the archive has gained later epochs since it reported its history.

    The operator has not chosen to give these up.
    """
    last = archive.newest_image()
    if last > max(asked.told_epoch, asked.epoch) and not asked.force:
        raise NotRecoverable(
            f"This archive now has epochs up to {last}, and had reported {asked.told_epoch}: those after"
            f" {asked.epoch} would be lost without notice. Recover again."
        )


def _image(archive: Archive, asked: RecoverQuestion, more: list[Archived]) -> Start:
    """Return the image to continue from, and first archive the epochs that it lacks.

    Runs in a thread.
    """
    fresh = lacking(archive, asked, more)
    if fresh:
        archive.segments.adopt(fresh)
    return image_at(archive, asked.epoch, asked.state_id)


def _image_beside(archive: Archive, asked: RecoverQuestion, more: list[Archived]) -> Start:
    """Return the same image as ``_image`` without archiving anything."""
    fresh = lacking(archive, asked, more)
    if not fresh:
        return image_at(archive, asked.epoch, asked.state_id)
    last = archive.newest_image()
    return folded(
        image_at(archive, last, archive.state_id_of(last) or b""),
        fresh,
        supported=archive.supported,
    )


def image_at(archive: Archive, epoch: int, state_id: bytes) -> Start:
    """Return the start after this epoch of the archive.

    Blocks. Raises NotRecoverable if its state differs.
    """
    begun, _ = archive.begin(decided=True, at_most=epoch)
    start = archive.fold_on(begun, epoch)
    _check_is_asked_for(start.image.epoch, start.image.state_id, epoch, state_id)
    return start


def _check_is_asked_for(epoch: int, state_id: bytes, asked: int, asked_state_id: bytes) -> None:
    if (epoch, state_id) != (asked, asked_state_id):
        raise NotRecoverable(
            f"This archive leads to epoch {epoch} with state id {state_id.hex()}, not to epoch {asked} with"
            f" {asked_state_id.hex()}."
        )


async def recovery_in(topic: LogPast, log_id: bytes, begin: int, end: int) -> Record | None:
    """Return the first recovery in the topic of this log, or of a log that descends from it.

    Raises LogError, and TimeoutError when records before ``end`` are not delivered: their content
    is unknown.
    """
    offset = begin
    while offset < end:
        records = await _given(topic, offset, min(READ_RECORDS, end - offset))
        found = first_recovery(records, log_id)
        if found is not None:
            return found
        offset = records[-1].offset + 1
    return None


async def _given(topic: LogPast, offset: int, limit: int) -> list[Record]:
    """Read a topic that is known to end after ``offset``.

    Raises LogError, and TimeoutError when it delivers nothing. The reading client may have asked a
    replaced leader.
    """
    records = await topic.read(offset, limit)
    if not records:
        raise TimeoutError(
            f"the topic ends behind offset {offset}, and gives nothing from there on"
        )
    return records


class _AskedAgain:
    """A topic whose reads are repeated until they return records."""

    def __init__(self, topic: LogPast) -> None:
        self._topic = topic

    async def read(self, offset: int, limit: int) -> list[Record]:
        """Read records, with retries. Raises LogError, TimeoutError."""
        return await _answered(lambda: _given(self._topic, offset, limit))


async def _answered(
    ask: Callable[[], Awaitable[T]], passing: tuple[type[Exception], ...] = (TimeoutError,)
) -> T:
    """Return a broker's answer, and retry on ``passing`` errors.

    Raises TimeoutError after ``BROKER_LIMIT_S``.
    """

    def is_passing(error: Exception) -> bool:
        if isinstance(error, passing):
            log.warning("a recovery waits for the brokers", why=str(error))
        return isinstance(error, passing)

    async with asyncio.timeout(BROKER_LIMIT_S):
        async for attempt in until_it_works(on=is_passing):
            with attempt:
                return await ask()
    raise AssertionError("it is tried until it works")


async def _write(
    topic: Log, before: int, start: Start, asked: RecoverQuestion
) -> tuple[Record, bool]:
    """Append the record.

    Return the first recovery from offset ``before`` on, and whether another wrote it.

    The topic was searched up to ``before`` already. Raises NotRecoverable, LogError, TimeoutError.
    """
    look = await _answered(lambda: topic.look(None))
    now_ms = time.time_ns() // 1_000_000
    new = NewLog(
        log_id=next_state_id(
            max(start.image.log_id, asked.known_log_id), now_ms, secrets.randbits(ENTROPY_BITS)
        ),
        state_id=next_state_id(start.image.state_id, now_ms, secrets.randbits(ENTROPY_BITS)),
        topic_id=look.topic_id,
        at_ms=now_ms,
    )
    why = Why(actor=asked.actor, reason=asked.reason, origin="stele recover")
    epoch = recovered(start.image, new, why, asked.known_epoch)
    if isinstance(epoch, Rejection):
        raise NotRecoverable(f"{epoch.message} {epoch.hint}")
    value = encode_epoch(epoch)
    topic.append(value)

    async def look_through() -> Record | None:
        _, end = await topic.ends()
        return await recovery_in(topic, start.image.log_id, before, end)

    # The position in the topic decides. Read it back, because another replica may have recovered
    # first.
    async with asyncio.timeout(BROKER_LIMIT_S):
        while True:
            found = await _answered(look_through, (TimeoutError, KafkaException))
            if found is not None:
                return found, found.value != value
            await asyncio.sleep(LOOK_S)


def keep(archive: Archive, start: Start, after: Start, there: Record) -> None:
    """Archive the first epoch of the new log and a snapshot of it.

    Later epochs of the old log are set aside. Blocks.
    """
    lost = archive.set_aside_after(start.image.epoch, start.image.log_id.hex())
    if lost:
        log.error("epochs were lost by the recovery, and set aside", epochs=lost)
    epoch = decode_epoch(there.value)
    archive.segments.adopt([Archived(epoch.epoch, there.offset, epoch.at_ms, there.value)])
    assert after.anchor is not None
    head = head_of(after.image, after.next_offset, after.anchor, epoch.at_ms)
    archive.snapshots.write(after.image, head, to_facts(after.image.decided))
