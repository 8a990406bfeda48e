"""Where a process begins to read its log: after the newest snapshot, or at the log's beginning.

The beginning is used while the topic has it and is short. A snapshot counts only when the topic
still holds the winner at its end, which is the reader's anchor. If the process acknowledged epochs
in an earlier life, a replica's archive must also show that this is the same history. Replicas that
stopped reading come last: an unclean election may have removed what they hold.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from stele.log.archive.container import DamagedFileError
from stele.log.deliveries import note_start_wait
from stele.log.errors import NoBeginningError, OffsetGoneError, OtherHistoryError, RecoveredError
from stele.log.fold import BEGINNING, BEGINNING_FOR_FOLLOWERS, Start
from stele.log.follower import Floor
from stele.log.port import Ends
from stele.runtime.answers.catch_up import Known, StartAnswer
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable
from stele.runtime.logs import get_logger

SHORT_RECORDS: Final = 5_000
"""Records that are read in a quarter of a second, which is what a snapshot costs."""
GRACE_S: Final = 1.0
"""Wait for further answers after the first, in seconds. The first replica may hold the least."""
FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 10.0

log = get_logger(__name__)

AskEnds = Callable[[], Awaitable[Ends]]


class Beginning(NamedTuple):
    """Where to begin, and the newest epoch known to exist.

    A log that ends before ``floor`` is incomplete.
    """

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
    """Return where to begin.

    Waits while the topic has lost its beginning and no replica offers a snapshot.

    ``floor`` is what this process has acknowledged itself. The end of the replicas' archives is a
    floor too. To get it, most replicas are awaited, up to ``patience_s``.

    Raises OtherHistoryError when the log is not that of the floor, UnreadableSnapshotError.
    """
    pause_s, deadline_s = FIRST_PAUSE_S, time.monotonic() + patience_s
    waits = False
    while True:
        try:
            span = await ends()
        except TimeoutError as error:
            note_start_wait(str(error))
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
        note_start_wait("The topic begins later than the log, and no replica gives a snapshot.")
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
    """Return whether most replicas have answered.

    A replica that has just been reset may be empty or incomplete.
    """
    return 2 * len(answers) > catch_up.replicas or not catch_up.replicas


async def floor_of_most(catch_up: CatchUp, given_up: Callable[[], set[str]]) -> Floor | None:
    """Return the floor of the replicas, once most of them answer; None when their archives are
    empty.

    Replicas do not count while they keep one of the ``given_up`` logs, from which another was
    recovered.
    """
    while True:
        answers = await catch_up.starts(GRACE_S, tail=0)
        if _are_most(answers, catch_up):
            return _floor_of([each for each in answers if each[1].log_id not in given_up()])
        await asyncio.sleep(LAST_PAUSE_S)


def _least(floor: Floor | None, answers: Answers) -> Floor | None:
    """Return the later of a process's own floor and the replicas', if these confirm the same
    log.
    """
    held = _floor_of(answers)
    if floor is None or not floor.epoch:
        return held
    is_later = held is not None and held.epoch > floor.epoch
    return held if is_later and any(a.known is Known.SAME for _, a in answers) else floor


def _floor_of(answers: Answers) -> Floor | None:
    """Return the newest epoch on any replica's disk, within the newest log that any of them
    follows.
    """
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
            continue  # read from the log's beginning instead
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
    """Compare the floor with the replicas' archives.

    Raises OtherHistoryError when they differ, or when the archives begin after the floor.

    A replica that has missed a recovery may hold the history that the recovery gave up. It is
    ignored when another replica follows the present log, and when it cannot read the log itself.
    """
    for url, answer in _of_newest_log(answers):
        if floor is not None and 0 < floor.epoch < answer.begins:
            raise OtherHistoryError(
                0,
                f"epoch {floor.epoch}, the newest that this process acknowledged, was deleted from the archive,"
                f" which begins at epoch {answer.begins} (archive_keep_days, archive_keep_epochs): it is"
                " unknown whether it is of the same history.",
            )
        if floor is not None and answer.known is Known.OTHER and not answer.stopped:
            raise OtherHistoryError(
                0,
                f"epoch {floor.epoch} has another state id in the archive at {url} than"
                f" {floor.state_id.hex()}, which this process acknowledged.",
            )


def _of_newest_log(answers: Answers) -> Answers:
    """Keep the answers of the newest log.

    Later epochs of an older log were given up by a recovery.
    """
    newest = max((answer.log_id for _, answer in answers), default="")
    return [found for found in answers if found[1].log_id == newest]


def _worth(answered: tuple[str, StartAnswer]) -> tuple[bool, str, int]:
    """Sort key: replicas that read the log first, then the newest snapshot.

    Log ids are ordered by time. An older log may have had later epochs, which a recovery gave up.
    """
    _, answer = answered
    snapshot = answer.snapshot
    return not answer.stopped, *(("", 0) if snapshot is None else (snapshot.log_id, snapshot.epoch))


# When a process ends in order to restart from a snapshot.
#
# A reader that fell behind a truncation ends at once. A reader ends too when it is past the topic's
# end although the topic has its last winner: the missing records were no winners.
#
# A reader that stopped because its log is gone, or is another one, stays and reports why. Its
# newest epochs may be all that is left. It ends once a catch-up replica reports that the log was
# recovered.
#
# A reader that meets a recovery ends at once if it had read the log to its end. Otherwise it stays:
# it has just begun, without a snapshot of the new log, and would fail at the same record again. A
# process that has no catch-up replicas restarts anyway, unless it is one.


LOOK_S: Final = 2.0


def end_in_order() -> None:
    """End this process in the same way as when a supervisor requests it."""
    signal.raise_signal(signal.SIGTERM)


def is_lasting(failure: Exception | None) -> bool:
    """Return whether this failure persists until an operator recovers the log."""
    return not isinstance(failure, OffsetGoneError | RecoveredError | NoBeginningError)


async def restart_after_failure(
    failed: asyncio.Event,
    failure: Callable[[], Exception | None],
    log_id: Callable[[], bytes],
    catch_up: CatchUp,
    end: Callable[[], None] = end_in_order,
    has_read: Callable[[], bool] = lambda: True,
    *,
    is_replica: bool = False,
) -> None:
    """Wait for a failure that a restart can resolve, and end the process.

    ``has_read``: the log was read to its end. ``is_replica``: this process is a catch-up replica.
    """
    await failed.wait()
    why = failure()
    if is_lasting(why):
        log.error("the log cannot be read any further, until it is recovered", why=str(why))
        await recovered(log_id().hex(), catch_up)
    elif isinstance(why, RecoveredError) and not (
        has_read() or not (is_replica or catch_up.replicas)
    ):
        log.error(
            "the log was recovered, and no replica offers a snapshot of it yet",
            why=str(why),
            hint="Start the replica that wrote the recovery, or run `stele recover` again.",
        )
        await recovered(log_id().hex(), catch_up)
    log.error(
        "the log continues in another topic: this process restarts from a snapshot", why=str(why)
    )
    end()


async def recovered(log_id: str, catch_up: CatchUp) -> None:
    """Return once a replica follows a log that was recovered from this one."""
    while True:
        for _, answer in await catch_up.archives():
            if any(before.log_id == log_id for before in answer.incarnations):
                return
        await asyncio.sleep(LOOK_S)
