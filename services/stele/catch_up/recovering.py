"""Recovering the log from this archive: the first record of what it goes on as, and a snapshot behind it.

The record goes to the end of the topic, whatever the topic still holds; the first recovery that stands there
counts, whoever wrote it. Then this process ends, and begins behind the snapshot, as everybody else does.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from stele.catch_up.asked import LARGEST
from stele.catch_up.keeper import Keeper
from stele.domain.base import Rejection
from stele.domain.recovery.record import NewLog, Why, recovered
from stele.domain.requests.decided import to_facts
from stele.log.archive.archive import Archive, folded
from stele.log.archive.records import Archived
from stele.log.archive.snapshots import head_of
from stele.log.codec import decode_epoch, encode_epoch
from stele.log.errors import RecoveredError
from stele.log.port import Log, LogPast, Record
from stele.log.recovery import first_recovery, start_after
from stele.log.start import Start
from stele.log.state_ids import next_state_id
from stele.runtime.answers.catch_up import RecoverableAnswer, RecoveredAnswer
from stele.runtime.logs import get_logger
from stele.runtime.retries import until_it_works

READ_RECORDS: Final = 2000
WRITE_S: Final = 30.0
LOOK_S: Final = 0.1
ENTROPY_BITS: Final = 74

T = TypeVar("T")

log = get_logger(__name__)


class NotRecoverable(Exception):
    """The log is not recovered from here; the text says why and what to do."""


class RecoverQuestion(NamedTuple):
    """Go on after ``epoch``, which has ``state_id``: who asks, why, and the newest epoch and log that anybody
    knew of. ``told_epoch`` is the newest that this replica could give when it was asked for its history.
    """

    epoch: int
    state_id: bytes
    known_epoch: int
    known_log_id: bytes
    actor: str
    reason: str
    force: bool
    told_epoch: int = LARGEST


Ends = Callable[[], Awaitable[tuple[int, int]]]


async def recover(
    keeper: Keeper, topic: Log, ends: Ends, asked: RecoverQuestion, more: list[Archived]
) -> RecoveredAnswer:
    """The log goes on after the epoch that is asked for; ``more`` are epochs that follow what is here.

    The reader of this process has ended. Raises NotRecoverable, LogError, DamagedFileError, OSError, and
    TimeoutError when the topic does not take the record.
    """
    start = await asyncio.to_thread(_image, keeper.archive, asked, more)
    begin, end = await _answered(ends)
    there = await recovery_in(_AskedAgain(topic), start.image.log_id, begin, end)
    was_there = there is not None
    if there is None:
        await asyncio.to_thread(_check_not_grown, keeper.archive, asked)
        there, was_there = await _write(topic, ends, end, start, asked)
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
    keeper: Keeper, topic: LogPast, ends: Ends, asked: RecoverQuestion, more: list[Archived]
) -> RecoverableAnswer:
    """What ``recover`` would be refused for by what the archive and the topic hold now; nothing is written.

    A topic whose leader does not answer is not looked at. Raises NotRecoverable, LogError,
    DamagedFileError.
    """
    start = await asyncio.to_thread(_image_beside, keeper.archive, asked, more)
    try:
        begin, end = await ends()
        there = await recovery_in(topic, start.image.log_id, begin, end)
    except TimeoutError as error:
        return RecoverableAnswer(not_looked_at=str(error))
    if there is not None:
        _after(start, there)
    else:
        await asyncio.to_thread(_check_not_grown, keeper.archive, asked)
    return RecoverableAnswer()


def _after(start: Start, there: Record) -> Start:
    """Where readers begin behind the recovery that is there. Raises NotRecoverable if that is not from here."""
    try:
        return start_after(start.image, there)
    except RecoveredError as error:
        raise NotRecoverable(
            f"The log was recovered before, from another epoch: {error} Start this replica again: it takes"
            f" over what the others hold. If nobody has anything of log {error.recovered.log_id} any more,"
            " delete the topic and recover again: it goes on from here then. The dry run shows who has what of"
            " which log."
        ) from error


def lacking(archive: Archive, asked: RecoverQuestion, more: list[Archived]) -> list[Archived]:
    """What this archive lacks of ``more``, as can be said before anything is folded or stopped. Blocks. Raises
    NotRecoverable where both do not lead to the state that is asked for, DamagedFileError.
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
    """Raises NotRecoverable where the archive has got later epochs since it was asked what it holds, so that
    nobody has chosen to give these up.
    """
    last = archive.newest_image()
    if last > max(asked.told_epoch, asked.epoch) and not asked.force:
        raise NotRecoverable(
            f"This archive has epochs up to {last} by now, and had told of {asked.told_epoch}: those after"
            f" {asked.epoch} would be given up, of which nobody knew. Recover again."
        )


def _image(archive: Archive, asked: RecoverQuestion, more: list[Archived]) -> Start:
    """The image to go on from; what this archive lacks of it is kept first. In a thread."""
    fresh = lacking(archive, asked, more)
    if fresh:
        archive.segments.adopt(fresh)
    return image_at(archive, asked.epoch, asked.state_id)


def _image_beside(archive: Archive, asked: RecoverQuestion, more: list[Archived]) -> Start:
    """The same, and nothing is kept."""
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
    """What the archive leads to at this epoch. Blocks. Raises NotRecoverable when that is another state."""
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
    """The first recovery of this log, or of one that came from it, that the topic holds. Raises LogError, and
    TimeoutError where records before ``end`` are not given: nobody knows what these are.
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
    """What a topic has that ends behind ``offset``. Raises LogError, and TimeoutError where it gives nothing:
    reading has a client of its own, which may have asked a leader that was replaced.
    """
    records = await topic.read(offset, limit)
    if not records:
        raise TimeoutError(
            f"the topic ends behind offset {offset}, and gives nothing from there on"
        )
    return records


class _AskedAgain:
    """A topic that is asked again for what it does not give."""

    def __init__(self, topic: LogPast) -> None:
        self._topic = topic

    async def read(self, offset: int, limit: int) -> list[Record]:
        """Raises LogError, TimeoutError."""
        return await _answered(lambda: _given(self._topic, offset, limit))


async def _answered(
    ask: Callable[[], Awaitable[T]], passing: tuple[type[Exception], ...] = (TimeoutError,)
) -> T:
    """What a broker answers; where that is an error which passes it is asked again. Raises TimeoutError."""

    def is_passing(error: Exception) -> bool:
        if isinstance(error, passing):
            log.warning("a recovery waits for the brokers", why=str(error))
        return isinstance(error, passing)

    async with asyncio.timeout(WRITE_S):
        async for attempt in until_it_works(on=is_passing):
            with attempt:
                return await ask()
    raise AssertionError("it is tried until it works")


async def _write(
    topic: Log, ends: Ends, before: int, start: Start, asked: RecoverQuestion
) -> tuple[Record, bool]:
    """Append the record, and give the first recovery from offset ``before`` on, where the topic was looked
    through to; and whether it is another's, which came meanwhile.

    Raises NotRecoverable, LogError, TimeoutError.
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
        _, end = await ends()
        return await recovery_in(topic, start.image.log_id, before, end)

    async with asyncio.timeout(WRITE_S):
        while True:
            found = await _answered(look_through, (TimeoutError, KafkaException))
            if found is not None:
                return found, found.value != value
            await asyncio.sleep(LOOK_S)


def keep(archive: Archive, start: Start, after: Start, there: Record) -> None:
    """The first epoch of the new log, and a snapshot of it; what came after the old one's end is set aside.
    Blocks.
    """
    lost = archive.set_aside_after(start.image.epoch, start.image.log_id.hex())
    if lost:
        log.error("epochs were lost by the recovery, and set aside", epochs=lost)
    epoch = decode_epoch(there.value)
    archive.segments.adopt([Archived(epoch.epoch, there.offset, epoch.at_ms, there.value)])
    assert after.anchor is not None
    head = head_of(after.image, after.next_offset, after.anchor, epoch.at_ms)
    archive.snapshots.write(after.image, head, to_facts(after.image.decided))
