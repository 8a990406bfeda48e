"""All that a log ever said, folded from its first epoch: by its archives as far as the topic lacks it."""

import asyncio
from typing import Final, NamedTuple

from stele.log.archive.archive import folded
from stele.log.archive_store.source import Source
from stele.log.chain import FROZEN, LOG_ID
from stele.log.fold import Fold
from stele.log.port import LogPast, Record
from stele.log.start import BEGINNING

READ_RECORDS: Final = 2000
ASKED_AGAIN: Final = 20
ASK_AGAIN_S: Final = 0.5
"""A leader that was replaced tells an old end for some seconds at most."""


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
    """From archives until the topic goes on, then from there. Raises LogError, TimeoutError, and what
    ``source`` raises.
    """
    start, following, there = BEGINNING, 1, begin
    newest = max((span.last for span in await source.spans()), default=1)
    needed = newest if last is None else min(newest, last)
    about = await source.about()
    while following <= needed:
        records = await source.records(following, needed)
        start = folded(start, records)
        newest_read = records[-1]
        following, offset, value = newest_read.epoch + 1, newest_read.offset, newest_read.value
        is_of_log = (
            value[LOG_ID].hex() == about.log_id
        )  # an older one may end before it was recovered
        if is_of_log and begin <= offset < end and (offset, value) in await log.read(offset, 1):
            there = offset + 1
            break
    fold = Fold(*start, across_recoveries=True)
    return Replayed(await fold_topic(fold, log, there, end, last), following - 1)


async def fold_topic(
    fold: Fold, log: LogPast, offset: int, end: int, last: int | None = None
) -> Fold:
    """Fold the records from ``offset`` to before ``end``, or up to epoch ``last``. Raises LogError, and
    TimeoutError where records before ``end`` are not given.
    """
    while offset < end:
        records = await _given(log, offset, end)
        for place, value in records:
            if fold.image.epoch == last:
                return fold
            fold.chain.jump(place)  # what is read here is all that is there
            fold.offer(place, value)
        offset = records[-1].offset + 1
    return fold


async def _given(log: LogPast, offset: int, end: int) -> list[Record]:
    """Some records from ``offset`` on, at least one. Raises LogError, TimeoutError."""
    for _ in range(ASKED_AGAIN):
        records = await log.read(offset, min(READ_RECORDS, end - offset))
        if records:
            return records
        await asyncio.sleep(ASK_AGAIN_S)  # an old leader was asked
    raise TimeoutError(f"the topic ends at {end}, and gives nothing from offset {offset} on")
