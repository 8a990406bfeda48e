"""Search or count the whole history, one bounded slice at a time.

However long the log is, a slice ends after a limited number of epochs and a limited time. It
returns where the next slice begins. Other tasks of the event loop run in between.

The log's clock is inside the state ids and never goes back. It is not behind the writers' clocks,
but may be ahead of some. ``at_ms``, which people see, is the clock of each writer. Therefore a span
of time is found by the log's clock with a margin, and then the ``at_ms`` of every epoch is
compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from typing import Final, NamedTuple

from stele.domain.epoch_search import Question, as_searched, fits
from stele.domain.epoch_stats import CountedWinner, Counting, EpochStats
from stele.domain.facts import Epoch
from stele.domain.model.requests import state_time_ms
from stele.log.avro import Reader, reader_of
from stele.log.avro_writer import write_string
from stele.log.chain import FROZEN_BYTES, FROZEN_FIELDS, STATE_ID
from stele.log.codec import DecodeError
from stele.log.errors import OffsetGoneError
from stele.log.history import EpochNotFoundError, History, Winner
from stele.log.schemas import HEADER_BYTES, Schema, load_schemas

# Read actor, command and time of a record without decoding its facts, and search it for texts.
#
# Facts are at the end of a record and make up nearly all of it. A search through millions of
# records decodes only the few that may match.


_FIELDS: Final = ("request_id", "command", "actor", "reason", "origin", "at_ms")


class Audit(NamedTuple):
    """The fields of an epoch before its facts. ``at_ms`` is the time on its writer's clock."""

    request_id: str
    command: str
    actor: str
    reason: str
    origin: str
    at_ms: int


def decode_audit(value: bytes) -> Audit:
    """Decode the fields before the facts. Raises DecodeError."""
    read = _readers().get(value[:HEADER_BYTES])
    if read is None:
        text = f"no schema of Epoch has fingerprint {value[:HEADER_BYTES].hex()}"
        raise DecodeError(text, unknown_schema=True)
    try:
        record, _ = read(value, FROZEN_BYTES)
    except (IndexError, ValueError) as error:
        raise DecodeError(f"the bytes end or break inside the record: {error!r}") from error
    return Audit(*(record[name] for name in _FIELDS))


class Needles:
    """Byte strings that a record must contain to match a question.

    ``exact``: the record contains one text of each set, as a whole Avro string. ``words``: it
    contains each of them, in lower case. A record that contains all of them may still not match.
    """

    def __init__(self, exact: Iterable[Iterable[str]], words: Iterable[bytes] = ()) -> None:
        self._exact = [tuple(map(string_bytes, texts)) for texts in exact]
        self._words = tuple(words)

    def may_be_in(self, value: bytes) -> bool:
        """Return False if the record cannot match."""
        for texts in self._exact:
            if not any(text in value for text in texts):
                return False
        if not self._words:
            return True
        small = value.lower()
        return all(word in small for word in self._words)


def string_bytes(text: str) -> bytes:
    """Return a text in Avro's encoding: its size and its UTF-8 bytes."""
    out = bytearray()
    write_string(out, text)
    return bytes(out)


@cache
def _readers() -> dict[bytes, Reader]:
    """Return, by header, the readers of an epoch's fields between its frozen part and its facts."""
    schemas = load_schemas()
    newest = _between(schemas.newest["Epoch"])
    return {
        header: reader_of(_between(schema), newest)
        for header, (name, schema) in schemas.by_header.items()
        if name == "Epoch"
    }


def _between(schema: Schema) -> Schema:
    fields = schema["fields"][len(FROZEN_FIELDS) :]
    return {**schema, "fields": [*takewhile(lambda field: field["name"] != "facts", fields)]}


MOST_EPOCHS: Final = 20_000
"""Most epochs of a slice."""
MOST_S: Final = 0.5
"""Time after which a slice ends with the current read."""
FIRST_PACE: Final = 256
"""Epochs of the first read: matches are often near the end."""
GREATEST_PACE: Final = 16_384
"""Most epochs of one read, and the size of reads in later slices. A read may fetch up to a thousand
more epochs than it uses."""
MARGIN_MS: Final = 60_000
"""Largest difference of the log's clock and a writer's at which an epoch is found by time."""
NEAR: Final = 1024
"""The bisection ends at this many epochs, which are then searched one by one."""
TURN_S: Final = 0.002
"""Time after which other tasks run."""


class SearchSlice(NamedTuple):
    """Result of a slice: matching ``epochs``, the newest first, and the begin of the next slice.

    ``looked_at`` counts the epochs that were searched. The next slice covers the epochs before
    ``next_before``; 0: there is none.
    """

    epochs: list[Epoch]
    looked_at: int
    next_before: int


class LoopYield:
    """Yields to the event loop from time to time. Call ``given`` after each small piece of work."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    async def given(self) -> None:
        """Let other tasks run if ``TURN_S`` has passed."""
        if time.monotonic() - self._began_s > TURN_S:
            await asyncio.sleep(0)
            self._began_s = time.monotonic()


async def search(history: History, question: Question, before: int, limit: int) -> SearchSlice:
    """Return the newest matching epochs before ``before``, at most ``limit``.

    The end of a slice may leave fewer. Raises TimeoutError when the broker or the archive is too
    slow.
    """
    pace = FIRST_PACE if before > history.newest else GREATEST_PACE
    before = await _before_time(history, question, min(before, history.newest + 1))
    begun_s, found, looked_at = time.monotonic(), list[Epoch](), 0
    while before > history.oldest + 1 and looked_at < MOST_EPOCHS:
        first = max(history.oldest + 1, before - pace)
        try:
            part, too_old = await _matching(history, question, first, before, limit - len(found))
        except (EpochNotFoundError, OffsetGoneError):
            # Truncation may have removed a part of this range: narrow down to the oldest epoch.
            if pace == 1:
                return SearchSlice(found, looked_at, 0)  # older epochs are not kept
            pace = max(1, pace // 4)
            continue
        looked_at += before - first
        found += part
        if len(found) >= limit:
            return SearchSlice(found, looked_at, found[-1].epoch)
        if too_old:
            return SearchSlice(found, looked_at, 0)
        before, pace = first, min(GREATEST_PACE, pace * 4)
        if time.monotonic() - begun_s > MOST_S:
            break
    return SearchSlice(found, looked_at, before if before > history.oldest + 1 else 0)


async def count(history: History, first: int, last: int) -> EpochStats:
    """Count the epochs from ``first`` up to ``last`` or the end of a slice.

    Raises as ``History.epochs`` does.
    """
    begun_s, turns, counting = time.monotonic(), LoopYield(), Counting()
    before = await _offset_before(history, first)
    async for winner in history.winners(first, min(last + 1 - first, MOST_EPOCHS)):
        counting.add(_counted(winner, before))
        before = winner.offset
        await turns.given()
        if time.monotonic() - begun_s > MOST_S:
            break
    return counting.stats()


async def _offset_before(history: History, first: int) -> int | None:
    """Return the offset of the winner before this epoch, -1 before epoch 1, None if not kept."""
    with contextlib.suppress(EpochNotFoundError, OffsetGoneError):
        async for winner in history.winners(first - 1, 1):
            return winner.offset
    return -1 if first == 1 else None


def _counted(winner: Winner, before: int | None) -> CountedWinner:
    """Return the counted row of a winner. ``before`` is the offset of the winner before it.

    Offsets may go back, because a topic that was created again counts from 0.
    """
    audit = decode_audit(winner.value)
    beside = 0 if before is None else max(0, winner.offset - before - 1)
    size_bytes, at_ms = len(winner.value), audit.at_ms
    return CountedWinner(
        winner.epoch, winner.offset, at_ms, size_bytes, audit.command, audit.actor, beside
    )


async def _matching(
    history: History, question: Question, first: int, before: int, most: int
) -> tuple[list[Epoch], bool]:
    """Return the newest matches, newest first, and if an epoch was too old for the question."""
    found, too_old, turns = deque[Epoch](maxlen=most), False, LoopYield()
    needles = Needles(question.exact(), map(as_searched, question.text))
    oldest_ms = question.since_ms - MARGIN_MS
    async for winner in history.winners(first, before - first):
        if log_time_ms(winner) < oldest_ms:
            too_old = True
        elif needles.may_be_in(winner.value) and _in_time(question, winner):
            epoch = winner.decode()
            if fits(question, epoch):
                found.append(epoch)
        await turns.given()
    return [*reversed(found)], too_old


def _in_time(question: Question, winner: Winner) -> bool:
    return question.since_ms <= decode_audit(winner.value).at_ms <= question.until_ms


async def _before_time(history: History, question: Question, before: int) -> int:
    """Return an epoch shortly after the last one within the question's time; at most ``before``."""
    newest_ms, low = question.until_ms + MARGIN_MS, history.oldest + 1
    if before <= low or await _time_of(history, before - 1) <= newest_ms:
        return before
    while before - low > NEAR:
        middle = (low + before) // 2
        try:
            is_after = await _time_of(history, middle) > newest_ms
        except (EpochNotFoundError, OffsetGoneError):
            is_after = False  # the epoch is no longer kept, so the oldest one is after it
        if is_after:
            before = middle
        else:
            low = middle + 1
    return before


async def _time_of(history: History, epoch: int) -> int:
    async for winner in history.winners(epoch, 1):
        return log_time_ms(winner)
    raise history.missing(epoch, history.oldest + 1)


def log_time_ms(winner: Winner) -> int:
    """Return the log's clock at this epoch, in milliseconds since 1970."""
    return state_time_ms(winner.value[STATE_ID])
