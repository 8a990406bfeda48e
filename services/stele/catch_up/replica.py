"""The life of a replica: what it follows, which jobs run beside it, and how it ends.

No broker is named.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from stele.catch_up.announcements import HeldSnapshot, ReplicaHoldings, Submits, send_due_commands
from stele.catch_up.diverging import restart_after_divergence
from stele.catch_up.filling import (
    FIRST_PAUSE_S,
    LAST_PAUSE_S,
    ArchivePeers,
    archive_first_record,
    fill,
    gaps,
    reachable,
)
from stele.catch_up.http import CatchUpApi
from stele.catch_up.identity import ReplicaIdentity, check_cluster
from stele.catch_up.keeper import Keeper
from stele.catch_up.recovering import (
    NotRecoverable,
    RecoverQuestion,
    check,
    lacking,
    recover,
)
from stele.catch_up.settings import CatchUpSettings
from stele.catch_up.trimming import Delete, Trimmer, truncate
from stele.domain.facts import Epoch
from stele.domain.rules.retention import Point
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived
from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.log.errors import TruncatedError
from stele.log.fold import Start
from stele.log.follower import LogFollower
from stele.log.port import EpochsLog
from stele.runtime.answers.catch_up import RecoverableAnswer, RecoveredAnswer
from stele.runtime.follow import Followed, on_stray, reading
from stele.runtime.logs import get_logger
from stele.runtime.service import wait_at_most
from stele.runtime.settings import ConfigurationError
from stele.runtime.starting import AskEnds

LOST_PAUSE_S: Final = 2.0
LAST_ANSWER_S: Final = 0.5
"""Delay before the process ends, in seconds, so that the last answer is sent."""

log = get_logger(__name__)


class Ports(NamedTuple):
    """The replica's access to everything but its folder and the other replicas.

    ``end`` ends the process.
    """

    open_log: Callable[[], EpochsLog]
    is_topic_missing: Callable[[], Awaitable[bool]]
    """Raises NotRecoverable when the answer is unknown."""
    make_topic: Callable[[], Awaitable[bool]]
    """Create the log's topic if it is missing, and return whether it was. Raises NotRecoverable."""
    delete: Delete
    commander: Callable[[], AbstractAsyncContextManager[Submits]]
    end: Callable[[], None]


@asynccontextmanager
async def archiving(
    keeper: Keeper, peers: ArchivePeers, ports: Ports
) -> AsyncIterator[tuple[Followed, AskEnds]]:
    """Follow the log inside the block, after what the archive holds, and archive each winner.

    Yields the followed log and a function that returns the ends of the topic. Raises
    ConfigurationError when the archive is another cluster's.
    """
    epochs = ports.open_log()
    start = await asyncio.to_thread(keeper.begin)
    check_cluster(start.image.cluster, peers.cluster)
    reach = partial(reachable, start, keeper, peers, epochs)
    out_of_reach: TruncatedError | None = None
    try:
        start = await reach()
        await archive_first_record(keeper, epochs, start)
    except TruncatedError as error:
        out_of_reach = error

    def on_winner(offset: int, value: bytes, epoch: Epoch) -> None:
        keeper.on_winner(offset, value, epoch, follower.image)

    follower = LogFollower(
        epochs,
        start,
        on_stray=on_stray,
        on_winner=on_winner,
        has_room=keeper.has_room,
        supported=keeper.archive.supported,
    )
    if out_of_reach is None:
        reads = reading(follower, epochs, peers.others, ports.end, is_replica=True)
    else:
        reads = _waiting(follower, epochs, out_of_reach, reach, keeper, ports.end)
    async with reads as followed:
        yield followed, epochs.ends


@asynccontextmanager
async def _waiting(
    follower: LogFollower,
    epochs: EpochsLog,
    why: TruncatedError,
    reach: Callable[[], Coroutine[None, None, Start]],
    keeper: Keeper,
    end: Callable[[], None],
) -> AsyncIterator[Followed]:
    """Read nothing inside the block, and report why.

    The archive is still served, and the log can be recovered from it. The process restarts when the
    log becomes reachable.
    """

    async def until_reached() -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            if keeper.is_closed:
                return  # the log is being recovered from here
            try:
                await reach()
            except TruncatedError as error:
                log.warning("the log is out of reach", why=str(error))
                continue
            except (OSError, UnreadableSnapshotError) as error:
                log.error("what others gave cannot be kept", why=str(error))
            end()
            return

    follower.fail(why)
    task = asyncio.create_task(until_reached(), name="until-reached")
    try:
        yield Followed(follower)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await epochs.close()


class Jobs(NamedTuple):
    """The parts that the background jobs of a replica use.

    ``mirroring`` copies the archive to the store, if any.
    """

    folder: Path
    identity: ReplicaIdentity
    keeper: Keeper
    peers: ArchivePeers
    api: CatchUpApi
    trimmer: Trimmer
    own: Callable[[], ReplicaHoldings]
    mirroring: Callable[[], Coroutine[None, None, None]]


async def working(jobs: Jobs, followed: Followed, ends: AskEnds, ports: Ports) -> None:
    """Run all background jobs. Ends when the disk fails.

    Raises ConfigurationError when the folder is a copy that another process uses too.
    """
    try:
        await _working(jobs, followed, ends, ports)
    except* ConfigurationError as group:
        copied = group
    else:
        return
    raise ConfigurationError(str(copied.exceptions[0]))


async def _working(jobs: Jobs, followed: Followed, ends: AskEnds, ports: Ports) -> None:
    follower = followed.follower
    image = lambda: follower.image  # noqa: E731
    began = follower.image.epoch
    async with asyncio.TaskGroup() as group:
        group.create_task(jobs.keeper.run())
        group.create_task(_fill(jobs, began, follower))
        # A replica that is still behind would announce and truncate by an old state.
        await followed.caught_up.wait()
        group.create_task(send_due_commands(ports.commander, image, jobs.own))
        is_certain = lambda: follower.failure is None and not follower.is_suspended  # noqa: E731
        group.create_task(truncate(ports.delete, image, ends, is_certain))
        group.create_task(jobs.trimmer.run())
        group.create_task(restart_after_divergence(jobs.folder, jobs.identity, image, ports.end))
        group.create_task(jobs.mirroring())


async def recover_and_end(
    keeper: Keeper,
    followed: Followed,
    ports: Ports,
    asked: RecoverQuestion,
    more: list[Archived],
) -> RecoveredAnswer:
    """Recover the log, answer, and end the process, in this order. Raises as ``recover`` does.

    A missing topic is created here. Readers wait for it until then, and none fails. A replica that
    lacks the requested epoch stays as it is, because another recovery may need its archive.
    """
    async with keeper.recovering:
        return await _recover_and_end(keeper, followed.follower, ports, asked, more)


async def check_recoverable(
    keeper: Keeper,
    followed: Followed,
    ports: Ports,
    asked: RecoverQuestion,
    more: list[Archived],
) -> RecoverableAnswer:
    """Raise what ``recover_and_end`` would raise, without creating, writing or ending anything."""
    async with keeper.recovering:
        if await ports.is_topic_missing():
            await asyncio.to_thread(lacking, keeper.archive, asked, more)
            return RecoverableAnswer()
        _check_is_needed(followed.follower, asked)
        topic = ports.open_log()
        try:
            return await check(keeper, topic, topic.ends, asked, more)
        finally:
            await topic.close()


def _check_is_needed(follower: LogFollower, asked: RecoverQuestion) -> None:
    """Raise NotRecoverable when this replica reads the log without trouble and ``force`` is not
    set.
    """
    if follower.failure is None and not asked.force:
        raise NotRecoverable(
            f"This replica reads the log without trouble, at epoch {follower.image.epoch}: there is nothing to"
            " recover. Where a working log is to be given up, say --force."
        )


async def _recover_and_end(
    keeper: Keeper,
    follower: LogFollower,
    ports: Ports,
    asked: RecoverQuestion,
    more: list[Archived],
) -> RecoveredAnswer:
    was_missing = await ports.make_topic()
    if not was_missing:
        _check_is_needed(follower, asked)
    # Check before the reader stops. A refused recovery must leave this replica running.
    await asyncio.to_thread(lacking, keeper.archive, asked, more)
    follower.stop()
    await keeper.close()
    topic = ports.open_log()
    try:
        answer = await recover(keeper, topic, topic.ends, asked, more)
    finally:
        await topic.close()
        asyncio.get_running_loop().call_later(LAST_ANSWER_S, ports.end)
    return answer


async def _fill(jobs: Jobs, began: int, follower: LogFollower) -> None:
    """Fetch missing epochs, forever, because a file may turn out to be damaged later.

    Pauses are shorter when the log is lost, because an operator waits for the result.
    """

    async def pause(most_s: float) -> None:
        if follower.failure is None:
            await wait_at_most(follower.failed, most_s)
        else:
            await asyncio.sleep(min(most_s, LOST_PAUSE_S))

    keeper, api, pause_s = jobs.keeper, jobs.api, FIRST_PAUSE_S
    while True:
        before = [*gaps(keeper.archive.segments.spans(), began)]
        api.filling = await fill(keeper, jobs.peers, began, follower.image)
        if not api.filling:
            await pause(LAST_PAUSE_S)
            began = keeper.last
            continue
        got_on = [*gaps(keeper.archive.segments.spans(), began)] != before
        pause_s = FIRST_PAUSE_S if got_on else min(2 * pause_s, LAST_PAUSE_S)
        if not got_on:
            log.warning("epochs are missing in the archive", missing=api.filling)
            await pause(pause_s)


def holdings_of(
    identity: ReplicaIdentity,
    settings: CatchUpSettings,
    address: str,
    archive: Archive,
    trimmer: Trimmer,
) -> ReplicaHoldings:
    """Return what this replica can answer for now.

    Files that were deleted by hand are no longer included.
    """
    if deleted := archive.forget_deleted():
        log.error("files of the archive were deleted by somebody", files=deleted)
    snapshots = archive.snapshots.all()
    held = tuple(
        HeldSnapshot(kept.head, archive.snapshots.hash_of(kept), kept.size_bytes)
        for kept in snapshots[: settings.snapshots_kept]
    )
    return ReplicaHoldings(
        identity,
        settings.dc,
        settings.rack,
        address,
        tuple(each for each in held if each.hash),
        tuple(Point(k.head.epoch, bytes.fromhex(k.head.state_id)) for k in archive.snapshots.all()),
        tuple(archive.segments.spans()),
        trimmer.vote,
    )


async def no_mirror() -> None:
    """Replace the mirror when there is no store. Returns at once."""
