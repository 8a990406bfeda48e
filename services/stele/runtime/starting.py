"""Where a process begins to read its log: behind the newest snapshot, or at the log's beginning.

The beginning will do while the topic has it and is short. A snapshot counts only when the topic still holds the
winner that it ends with, since that is what a reader goes by; and, for a process that acknowledged something
in an earlier life, when a replica's archive shows that this is the same history. Replicas that have stopped
reading come last: an unclean election may have taken back what they hold.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from stele.log.archive.container import DamagedFileError
from stele.log.errors import OtherHistoryError
from stele.log.follower import Floor
from stele.log.port import Ends
from stele.log.start import BEGINNING, BEGINNING_FOR_FOLLOWERS, Start
from stele.runtime.answers.catch_up import Known, StartAnswer
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable
from stele.runtime.logs import get_logger

SHORT_RECORDS: Final = 5_000
"""Read in a quarter of a second, which is what a snapshot costs."""
GRACE_S: Final = 1.0
"""The first replica that answers may be the one that knows the least: others are waited for so long."""
FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 10.0

log = get_logger(__name__)

AskEnds = Callable[[], Awaitable[Ends]]


class Beginning(NamedTuple):
    """Where to begin, and the newest epoch that is known to have been there: nothing is at its end below it."""

    start: Start
    floor: Floor | None


async def begin(
    catch_up: CatchUp,
    cluster: str,
    ends: AskEnds,
    floor: Floor | None,
    *,
    decided: bool,
    patience_s: float = 0.0,
) -> Beginning:
    """Waits while the topic has lost its beginning and no replica gives a snapshot.

    ``floor`` is what this process acknowledged itself. What the replicas hold is one too; for it most of them
    are waited for, up to ``patience_s``. Raises OtherHistoryError when the log is not the one that the floor is
    of, UnreadableSnapshotError.
    """
    pause_s, deadline_s = FIRST_PAUSE_S, time.monotonic() + patience_s
    waits = False
    while True:
        try:
            span = await ends()
        except TimeoutError as error:
            log.warning("Kafka does not tell where the log begins", why=str(error))
            await asyncio.sleep(pause_s)
            continue
        answers = await _ask(catch_up, span, floor, decided=decided)
        if not _are_most(answers, catch_up) and time.monotonic() < deadline_s:
            if not waits:
                waits = True
                log.info("waits for most catch-up replicas", at_most_s=patience_s)
            await asyncio.sleep(FIRST_PAUSE_S)
            continue
        if waits and not _are_most(answers, catch_up):
            log.warning(
                "begins without most catch-up replicas",
                answered=len(answers),
                of=catch_up.replicas,
                why=catch_up.silent,
                hint="Start catch-up, and look whether STELE_CATCH_UP_URLS names it: what it holds shows"
                " whether the log has lost its end.",
            )
        _check_floor(answers, floor)
        least = _least(floor, answers)
        start = await _from_replicas(catch_up, cluster, span, floor, answers, decided=decided)
        if start is not None:
            log.info("begins with a snapshot", epoch=start.image.epoch)
            return Beginning(start, least)
        if span.begin == 0 and not any(answer.recovered for _, answer in answers):
            if span.end > SHORT_RECORDS:
                log.info("no replica gives a snapshot: the whole log is read", records=span.end)
            return Beginning(BEGINNING if decided else BEGINNING_FOR_FOLLOWERS, least)
        log.warning(
            "the topic begins later than the log, and no replica gives a snapshot",
            begin_offset=span.begin,
            hint="Start catch-up, and look whether STELE_CATCH_UP_URLS names it.",
        )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_PAUSE_S)


Answers = list[tuple[str, StartAnswer]]


async def _ask(catch_up: CatchUp, span: Ends, floor: Floor | None, *, decided: bool) -> Answers:
    question: dict[str, object] = {"decided": int(decided), "tail": int(span.begin == 0)}
    if floor is not None and floor.epoch:
        question |= {"floor_epoch": floor.epoch, "floor_state_id": floor.state_id.hex()}
    return await catch_up.starts(GRACE_S, **question)


def _are_most(answers: Answers, catch_up: CatchUp) -> bool:
    """One that has just been started anew has nothing yet, or not all."""
    return 2 * len(answers) > catch_up.replicas or not catch_up.replicas


async def floor_of_most(catch_up: CatchUp, given_up: Callable[[], set[str]]) -> Floor | None:
    """What the replicas hold, once most of them answer; None when they hold nothing. Those do not count that
    still have one of the ``given_up`` logs, from which another was recovered.
    """
    while True:
        answers = await catch_up.starts(GRACE_S, tail=0)
        if _are_most(answers, catch_up):
            return _floor_of([each for each in answers if each[1].log_id not in given_up()])
        await asyncio.sleep(LAST_PAUSE_S)


def _least(floor: Floor | None, answers: Answers) -> Floor | None:
    """The later one of a process's own floor and the replicas', when these show that it is of the same log."""
    held = _floor_of(answers)
    if floor is None or not floor.epoch:
        return held
    is_later = held is not None and held.epoch > floor.epoch
    return held if is_later and any(a.known is Known.SAME for _, a in answers) else floor


def _floor_of(answers: Answers) -> Floor | None:
    """The newest epoch that any replica has on its disk, of the newest log that any of them knows."""
    newest = max(((a.log_id, a.last, a.last_state_id) for _, a in answers), default=None)
    if newest is None or not newest[2]:
        return None
    return Floor(newest[1], bytes.fromhex(newest[2]), "a catch-up replica holds", newest[0])


async def _from_replicas(
    catch_up: CatchUp,
    cluster: str,
    span: Ends,
    floor: Floor | None,
    answers: Answers,
    *,
    decided: bool,
) -> Start | None:
    found = _of_newest_log(answers)
    is_read = any(not answer.stopped for _, answer in found)
    for url, answer in sorted(found, key=_worth, reverse=True):
        snapshot = answer.snapshot
        if snapshot is None or snapshot.anchor_offset < span.begin:
            continue
        will_do = span.end <= SHORT_RECORDS or (is_read and answer.stopped)
        if span.begin == 0 and will_do and not answer.recovered:
            continue  # the log is read from its beginning
        is_past_floor = floor is not None and 0 < floor.epoch <= snapshot.epoch
        if is_past_floor and answer.known is not Known.SAME:
            continue
        try:
            start = await catch_up.load(url, snapshot, decided=decided)
            start = await catch_up.with_places(url, start)
        except (CatchUpUnavailable, DamagedFileError) as error:
            log.warning("a snapshot was not got", url=url, epoch=snapshot.epoch, why=str(error))
            continue
        if start.image.cluster == cluster:
            return start
        log.warning("a replica is of another cluster", url=url, cluster=start.image.cluster)
    return None


def _check_floor(answers: Answers, floor: Floor | None) -> None:
    """A replica that has missed a recovery may hold the history that this gave up: it says nothing of the floor
    where another one knows the log of now, nor where it cannot read the log itself.
    """
    for url, answer in _of_newest_log(answers):
        if floor is not None and 0 < floor.epoch < answer.begins:
            raise OtherHistoryError(
                0,
                f"epoch {floor.epoch}, the newest that this process acknowledged, was deleted from the archive,"
                f" which begins at epoch {answer.begins} (archive_keep_days, archive_keep_epochs): nobody can"
                " tell any more whether it is of the same history.",
            )
        if floor is not None and answer.known is Known.OTHER and not answer.stopped:
            raise OtherHistoryError(
                0,
                f"epoch {floor.epoch} has another state id in the archive at {url} than"
                f" {floor.state_id.hex()}, which this process acknowledged.",
            )


def _of_newest_log(answers: Answers) -> Answers:
    """A replica that has missed a recovery may have later epochs, which are none any more."""
    newest = max((answer.log_id for _, answer in answers), default="")
    return [found for found in answers if found[1].log_id == newest]


def _worth(answered: tuple[str, StartAnswer]) -> tuple[bool, str, int]:
    """Who reads the log, and then the newest snapshot. Ids of logs are ordered by time; an older log may have
    had later epochs, which a recovery gave up.
    """
    _, answer = answered
    snapshot = answer.snapshot
    return not answer.stopped, *(("", 0) if snapshot is None else (snapshot.log_id, snapshot.epoch))
