"""The life of a replica: what it follows, which jobs run beside it, and how it ends.

No broker is named.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

from stele.catch_up.announcements import ReplicaHoldings, Submits, send_due_commands
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
from stele.catch_up.mirror import ArchiveMirror
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
from stele.domain.image import Image
from stele.domain.rules.retention import Point
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived
from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.log.errors import TruncatedError
from stele.log.fold import Start
from stele.log.follower import LogFollower
from stele.log.port import Log
from stele.runtime.announce import THIS_BUILD, Build, announced
from stele.runtime.answers.catch_up import RecoverableAnswer, RecoveredAnswer
from stele.runtime.callers import Callers
from stele.runtime.follow import Followed, on_stray, reading, run_beside
from stele.runtime.logs import get_logger
from stele.runtime.service import Stop, wait_at_most
from stele.runtime.settings import ConfigurationError
from stele.runtime.starting import AskEnds

NAME: Final = "catch-up"
LOST_PAUSE_S: Final = 2.0
LAST_ANSWER_S: Final = 0.5
"""Delay before the process ends, in seconds, so that the last answer is sent."""

log = get_logger(__name__)


class Ports(NamedTuple):
    """The replica's access to everything but its folder and the other replicas.

    ``end`` ends the process.
    """

    open_log: Callable[[], Log]
    is_topic_missing: Callable[[], Awaitable[bool]]
    """Raises NotRecoverable when the answer is unknown."""
    make_topic: Callable[[], Awaitable[bool]]
    """Create the log's topic if it is missing, and return whether it was. Raises NotRecoverable."""
    delete: Delete
    commander: Callable[[], AbstractAsyncContextManager[Submits]]
    end: Callable[[], None]


class CatchUpReplica:
    """One catch-up replica: its archive, and all that follows, serves, fills and trims it."""

    def __init__(
        self,
        settings: CatchUpSettings,
        identity: ReplicaIdentity,
        address: str,
        archive: Archive,
        peers: ArchivePeers,
        ports: Ports,
        callers: Callers | None = None,
    ) -> None:
        """Other processes reach it at ``address``."""
        self.keeper = Keeper(archive, settings.snapshots_kept, settings.sync_interval_s)
        self._settings = settings
        self._identity = identity
        self._address = address
        self._archive = archive
        self._peers = peers
        self._ports = ports
        self._callers = callers

    @asynccontextmanager
    async def running(
        self, stop: Stop, build: Build = THIS_BUILD
    ) -> AsyncIterator[tuple[Followed, CatchUpApi]]:
        """Archive the log, run all background jobs and stay announced inside the block.

        Yields the followed log and the API to serve. Requests ``stop`` when a job ends. Raises
        ConfigurationError when the archive is another cluster's, or when the folder is a copy that
        another process uses too.
        """
        keeper, settings, store = self.keeper, self._settings, self._peers.store
        async with self._archiving() as (followed, ends):
            follower = followed.follower
            image: Callable[[], Image] = lambda: follower.image  # noqa: E731
            api = CatchUpApi(
                self._identity,
                self._archive,
                follower,
                partial(self.recover_and_end, follower),
                partial(self.check_recoverable, follower),
                keeper.written,
                self._callers,
            )
            mirror = None if store is None else ArchiveMirror(store, self._archive, image, settings)
            stored = None if mirror is None else lambda: mirror.answer
            api.store = stored or api.store
            trimmer = Trimmer(keeper, image, self._identity, stored)
            work = asyncio.ensure_future(self._work(followed, ends, api, trimmer, mirror))
            async with (
                announced(NAME, settings, image, followed.caught_up.is_set, build),
                run_beside(work, stop),
            ):
                yield followed, api

    @asynccontextmanager
    async def _archiving(self) -> AsyncIterator[tuple[Followed, AskEnds]]:
        """Follow the log inside the block, after what the archive holds, and archive each winner.

        Yields the followed log and a function that returns the ends of the topic.
        """
        keeper, peers, end = self.keeper, self._peers, self._ports.end
        epochs = self._ports.open_log()
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
            supported=self._archive.supported,
        )
        if out_of_reach is None:
            reads = reading(follower, epochs, peers.others, end, is_replica=True)
        else:
            reads = _waiting(follower, epochs, out_of_reach, reach, keeper, end)
        async with reads as followed:
            yield followed, epochs.ends

    async def _work(
        self,
        followed: Followed,
        ends: AskEnds,
        api: CatchUpApi,
        trimmer: Trimmer,
        mirror: ArchiveMirror | None,
    ) -> None:
        """Run all background jobs. Ends when the disk fails. Raises ConfigurationError."""
        follower, ports = followed.follower, self._ports
        image = lambda: follower.image  # noqa: E731
        is_certain = lambda: follower.failure is None and not follower.is_suspended  # noqa: E731
        own = partial(self.holdings, trimmer)
        divergence = partial(restart_after_divergence, self._settings.data_dir, self._identity)
        began = follower.image.epoch
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.keeper.run())
                group.create_task(_fill(self.keeper, self._peers, api, began, follower))
                # A replica that is still behind would announce and truncate by an old state.
                await followed.caught_up.wait()
                group.create_task(send_due_commands(ports.commander, image, own))
                group.create_task(truncate(ports.delete, image, ends, is_certain))
                group.create_task(trimmer.run())
                group.create_task(divergence(image, ports.end))
                if mirror is not None:
                    group.create_task(mirror.run())
        except* ConfigurationError as found:
            copied = found
        else:
            return
        raise ConfigurationError(str(copied.exceptions[0]))

    async def recover_and_end(
        self, follower: LogFollower, asked: RecoverQuestion, more: list[Archived]
    ) -> RecoveredAnswer:
        """Recover the log, answer, and end the process, in this order. Raises as ``recover`` does.

        A missing topic is created here. Readers wait for it until then, and none fails. A replica
        that lacks the requested epoch stays as it is, because another recovery may need its
        archive.
        """
        keeper, ports = self.keeper, self._ports
        async with keeper.recovering:
            was_missing = await ports.make_topic()
            if not was_missing:
                _check_is_needed(follower, asked)
            # Check before the reader stops. A refused recovery must leave this replica running.
            await asyncio.to_thread(lacking, self._archive, asked, more)
            follower.stop()
            await keeper.close()
            topic = ports.open_log()
            try:
                return await recover(keeper, topic, asked, more)
            finally:
                await topic.close()
                asyncio.get_running_loop().call_later(LAST_ANSWER_S, ports.end)

    async def check_recoverable(
        self, follower: LogFollower, asked: RecoverQuestion, more: list[Archived]
    ) -> RecoverableAnswer:
        """Raise what a recovery would raise, without creating, writing or ending anything."""
        async with self.keeper.recovering:
            if await self._ports.is_topic_missing():
                await asyncio.to_thread(lacking, self._archive, asked, more)
                return RecoverableAnswer()
            _check_is_needed(follower, asked)
            topic = self._ports.open_log()
            try:
                return await check(self.keeper, topic, asked, more)
            finally:
                await topic.close()

    def holdings(self, trimmer: Trimmer) -> ReplicaHoldings:
        """Return what this replica can answer for now. Blocks.

        Files that were deleted by hand are no longer included.
        """
        archive, settings = self._archive, self._settings
        if deleted := archive.forget_deleted():
            log.error("files of the archive were deleted by somebody", files=deleted)
        snapshots = archive.snapshots.all()
        held = (archive.snapshots.hashed(kept) for kept in snapshots[: settings.snapshots_kept])
        return ReplicaHoldings(
            self._identity,
            settings.dc,
            settings.rack,
            self._address,
            tuple(each for each in held if each is not None),
            tuple(
                Point(k.head.epoch, bytes.fromhex(k.head.state_id)) for k in archive.snapshots.all()
            ),
            tuple(archive.segments.spans()),
            trimmer.vote,
        )


def _check_is_needed(follower: LogFollower, asked: RecoverQuestion) -> None:
    """Raise NotRecoverable when this replica reads the log without trouble and ``force`` is not
    set.
    """
    if follower.failure is None and not asked.force:
        raise NotRecoverable(
            f"This replica reads the log without trouble, at epoch {follower.image.epoch}: there is nothing to"
            " recover. Where a working log is to be given up, say --force."
        )


@asynccontextmanager
async def _waiting(
    follower: LogFollower,
    epochs: Log,
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


async def _fill(
    keeper: Keeper, peers: ArchivePeers, api: CatchUpApi, began: int, follower: LogFollower
) -> None:
    """Fetch missing epochs, forever, because a file may turn out to be damaged later.

    Pauses are shorter when the log is lost, because an operator waits for the result.
    """

    async def pause(most_s: float) -> None:
        if follower.failure is None:
            await wait_at_most(follower.failed, most_s)
        else:
            await asyncio.sleep(min(most_s, LOST_PAUSE_S))

    pause_s = FIRST_PAUSE_S
    while True:
        before = [*gaps(keeper.archive.segments.spans(), began)]
        api.filling = await fill(keeper, peers, began, follower.image)
        if not api.filling:
            await pause(LAST_PAUSE_S)
            began = keeper.last
            continue
        got_on = [*gaps(keeper.archive.segments.spans(), began)] != before
        pause_s = FIRST_PAUSE_S if got_on else min(2 * pause_s, LAST_PAUSE_S)
        if not got_on:
            log.warning("epochs are missing in the archive", missing=api.filling)
            await pause(pause_s)
