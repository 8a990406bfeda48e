"""Looking through the whole history, a bounded slice at a time: for what a question means, or to count.

However long the log is, a slice ends after so many epochs and so much time, and says where the next one
begins. In between other work of the event loop gets its turn.

Time goes by the log's own clock, which is inside the state ids and never goes back. It is not behind the clocks
of those who wrote, but may be ahead of some; ``at_ms``, which people see, is each writer's own. So a span of
time is found by the log's clock, with a margin, and then every epoch's own time is compared.
"""

import asyncio
import contextlib
import time
from collections import deque
from typing import Final, NamedTuple

from stele.domain.epoch_search import Question, as_searched, fits
from stele.domain.epoch_stats import Counted, Counting, EpochStats
from stele.domain.facts import Epoch
from stele.domain.requests.ids import state_time_ms
from stele.log.audit import Needles, decode_audit
from stele.log.chain import STATE_ID
from stele.log.errors import OffsetGoneError
from stele.log.history import EpochNotFoundError, History, Winner

MOST_EPOCHS: Final = 20_000
"""Of a slice."""
MOST_S: Final = 0.5
"""After so long a slice ends at the next pace."""
FIRST_PACE: Final = 256
"""Epochs that are read at first: what is asked for is often near the end."""
GREATEST_PACE: Final = 16_384
"""Epochs read in one go, and by whom goes on; each beginning may read a thousand that are not looked at."""
MARGIN_MS: Final = 60_000
"""How far the log's clock may be from a writer's for an epoch to be found by its time."""
NEAR: Final = 1024
"""So many epochs are looked through rather than halved again."""
TURN_S: Final = 0.002
"""After so long other work gets its turn."""


class Found(NamedTuple):
    """``epochs`` the newest first. The next slice is of what is before ``next_before``; 0: there is none."""

    epochs: list[Epoch]
    looked_at: int
    next_before: int


class Turns:
    """``given`` after each small piece of work, so that none holds up the event loop for long."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    async def given(self) -> None:
        if time.monotonic() - self._began_s > TURN_S:
            await asyncio.sleep(0)
            self._began_s = time.monotonic()


async def search(history: History, question: Question, before: int, limit: int) -> Found:
    """The newest ``limit`` epochs before ``before`` that the question means, or fewer where a slice ends.

    Raises TimeoutError when the broker or the archive is too slow.
    """
    pace = FIRST_PACE if before > history.newest else GREATEST_PACE
    before = await _before_time(history, question, min(before, history.newest + 1))
    begun_s, found, looked_at = time.monotonic(), list[Epoch](), 0
    while before > history.oldest + 1 and looked_at < MOST_EPOCHS:
        first = max(history.oldest + 1, before - pace)
        try:
            part, too_old = await _matching(history, question, first, before, limit - len(found))
        except (EpochNotFoundError, OffsetGoneError):
            if pace == 1:
                return Found(found, looked_at, 0)  # the log is kept no further back
            pace = max(1, pace // 4)
            continue
        looked_at += before - first
        found += part
        if len(found) >= limit:
            return Found(found, looked_at, found[-1].epoch)
        if too_old:
            return Found(found, looked_at, 0)
        before, pace = first, min(GREATEST_PACE, pace * 4)
        if time.monotonic() - begun_s > MOST_S:
            break
    return Found(found, looked_at, before if before > history.oldest + 1 else 0)


async def count(history: History, first: int, last: int) -> EpochStats:
    """The epochs from ``first`` on, up to ``last`` or where a slice ends; raises as ``History.epochs`` does."""
    begun_s, turns, counting = time.monotonic(), Turns(), Counting()
    before = await _offset_before(history, first)
    async for winner in history.winners(first, min(last + 1 - first, MOST_EPOCHS)):
        counting.add(_counted(winner, before))
        before = winner.offset
        await turns.given()
        if time.monotonic() - begun_s > MOST_S:
            break
    return counting.stats()


async def _offset_before(history: History, first: int) -> int | None:
    """Where the winner before this epoch stands; offsets count from 0. None when it is not kept any more."""
    with contextlib.suppress(EpochNotFoundError, OffsetGoneError):
        async for winner in history.winners(first - 1, 1):
            return winner.offset
    return -1 if first == 1 else None


def _counted(winner: Winner, before: int | None) -> Counted:
    """``before`` is the offset of the winner before it. A topic that was made anew counts from 0 again."""
    audit = decode_audit(winner.value)
    beside = 0 if before is None else max(0, winner.offset - before - 1)
    size_bytes, at_ms = len(winner.value), audit.at_ms
    return Counted(
        winner.epoch, winner.offset, at_ms, size_bytes, audit.command, audit.actor, beside
    )


async def _matching(
    history: History, question: Question, first: int, before: int, most: int
) -> tuple[list[Epoch], bool]:
    """The newest of those that are meant, the newest first; and whether there was one too old by its time."""
    found, too_old, turns = deque[Epoch](maxlen=most), False, Turns()
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
    """An epoch behind all that the question's last moment leaves, and not far behind; ``before`` at most."""
    newest_ms, low = question.until_ms + MARGIN_MS, history.oldest + 1
    if before <= low or await _time_of(history, before - 1) <= newest_ms:
        return before
    while before - low > NEAR:
        middle = (low + before) // 2
        try:
            is_after = await _time_of(history, middle) > newest_ms
        except (EpochNotFoundError, OffsetGoneError):
            is_after = False  # the log is kept no further back than somewhere behind it
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
    """The time of the log at this epoch, in milliseconds since 1970."""
    return state_time_ms(winner.value[STATE_ID])
