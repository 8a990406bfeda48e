"""All that a log ever said, folded from its first epoch: by its archives as far as the topic lacks it."""

from typing import Final, NamedTuple

from stele.log.archive_store.source import Source
from stele.log.chain import FROZEN, LOG_ID
from stele.log.errors import CorruptRecordError
from stele.log.fold import Fold
from stele.log.port import LogPast

READ_RECORDS: Final = 2000


class Replayed(NamedTuple):
    """How it ended, and how many epochs came from archives."""

    fold: Fold
    archived: int


async def first_epoch(log: LogPast, begin: int) -> int:
    """The epoch that the first record of the topic is about; 0 when there is none."""
    for record in await log.read(begin, 1):
        return int(FROZEN.unpack_from(record.value)[4])
    return 0


async def fold_archive_and_topic(
    source: Source, log: LogPast, begin: int, end: int, last: int | None = None
) -> Replayed:
    """From archives until the topic goes on, then from there. Raises LogError, and what ``source`` raises."""
    fold, following, there = Fold(across_recoveries=True), 1, begin
    log_id = (
        await source.about()
    ).log_id  # what an older one left in the topic may end before that was recovered
    newest = max((span.last for span in await source.spans()), default=1)
    needed = newest if last is None else min(newest, last)
    while following <= needed:
        records = await source.records(following, needed)
        for record in records:
            fold.chain.jump(record.offset)
            if fold.offer(record.offset, record.value) is None:
                raise CorruptRecordError(
                    record.offset,
                    f"epoch {record.epoch} of the archive does not follow from those before it."
                    " `stele log verify` tells which replica is wrong.",
                )
        following = records[-1].epoch + 1
        offset, value = records[-1].offset, records[-1].value
        is_of_log = value[LOG_ID].hex() == log_id
        if is_of_log and begin <= offset < end and (offset, value) in await log.read(offset, 1):
            there = offset + 1
            break
    return Replayed(await fold_topic(fold, log, there, end, last), following - 1)


async def fold_topic(
    fold: Fold, log: LogPast, offset: int, end: int, last: int | None = None
) -> Fold:
    """Fold the records from ``offset`` to before ``end``, or up to epoch ``last``. Raises LogError."""
    while offset < end:
        records = await log.read(offset, min(READ_RECORDS, end - offset))
        if not records:
            return fold
        for place, value in records:
            if fold.image.epoch == last:
                return fold
            fold.chain.jump(place)  # what is read here is all that is there
            fold.offer(place, value)
        offset = records[-1].offset + 1
    return fold
