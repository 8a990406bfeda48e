"""The membership of a node: it follows the log, joins, and notes the cluster's decisions."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

import msgspec

from stele.agent.admission import (
    Advertised,
    Expelled,
    JoinRejected,
    admit,
    announcement_again,
    check_place,
    claims_too_much,
    expelled,
    join_ended,
    keep_announced,
    keep_synced,
    note_tokens,
    wait_for_membership,
)
from stele.agent.gate import (
    CATCHING_UP,
    Gate,
    NotThisReplica,
    floor_of,
    other_history,
    unknown_data_text,
)
from stele.agent.identity import DataDirectory
from stele.agent.older_copy import check_newest, newest_ack
from stele.agent.settings import AgentSettings
from stele.domain.image import Image
from stele.domain.model.membership import is_unclaimed
from stele.log.commander import Commander
from stele.log.errors import LogError, OtherHistoryError
from stele.log.follower import Floor, LogFollower
from stele.runtime.announce import THIS_BUILD, Announcer, Build
from stele.runtime.follow import Followed, following
from stele.runtime.http import Health
from stele.runtime.logs import get_logger
from stele.runtime.service import Stop

log = get_logger(__name__)


class Membership:
    """The membership of a directory's node.

    It serves and acknowledges nothing before the gate is open.
    """

    def __init__(
        self,
        settings: AgentSettings,
        directory: DataDirectory,
        advertised: Advertised,
        gate: Gate,
        followed: Followed,
    ) -> None:
        self.directory = directory
        self.advertised = advertised
        self.gate = gate
        self.followed = followed
        self._settings = settings

    @property
    def node_id(self) -> str:
        return self.directory.identity.node_id

    @property
    def follower(self) -> LogFollower:
        return self.followed.follower

    @asynccontextmanager
    async def admitting(self, stop: Stop) -> AsyncIterator[None]:
        """Admit the node while the block runs. Request ``stop`` when it can never be admitted.

        Raises JoinRejected and NotThisReplica after the block.
        """
        admission = asyncio.create_task(self._admit(stop))
        try:
            yield
        finally:
            if not admission.done():
                admission.cancel()
                await asyncio.wait([admission])
        if not admission.cancelled():
            admission.result()

    async def _admit(self, stop: Stop) -> None:
        """Become a member and note what the cluster decides.

        End the process when that is impossible.

        A member opens its gate before it announces changes, so it does not depend on the
        metadata-log. There are two exceptions: a node that supports less than its row lists, and a
        node that takes a free place. Both announce first.

        A former member keeps running and reports why it serves nothing. If it ended, a supervisor
        would restart it for ever. If the log cannot be read further, the image stays available for
        its recovery.
        """
        settings, gate, directory = self._settings, self.gate, self.directory
        follower = self.follower
        try:
            # The node sends no message before the log was read as far as this node has acknowledged
            # it.
            await gate.reach(self.followed.caught_up, stop)
            gate.check_host(follower.image)
            if await self._look_back(stop):
                return
            known = follower.image.node(self.node_id)
            why = join_ended(follower.image, directory.identity)
            if why:
                raise JoinRejected(why)
            check_place(known, self.advertised)
            note_tokens(known, self.advertised)
            waits = (
                settings.join == "no"
                if known is None
                else not (is_unclaimed(known.host_id) or claims_too_much(known, self.advertised))
            )
            # A member opens its gate first, because serving must not depend on the metadata-log.
            # With join=no the node waits here for its row.
            if waits:
                await gate.recognise(stop)
            async with Commander(settings.brokers, settings.cluster) as commander:
                await admit(directory, self.advertised, follower, commander, stop)
            await gate.recognise(stop)
            if known is None:  # the row may be of another process's request, or of an earlier start
                check_place(follower.image.node(self.node_id), self.advertised)
            async with self._announced(stop):
                await wait_for_membership(directory, follower, stop)
                await keep_synced(directory, follower, stop)
        except LogError as error:
            log.error("not admitted before the log is recovered", why=str(error))
            await stop.wait()
        except BaseException as error:
            if isinstance(error, Exception):
                log.error("not admitted", why=str(error))
            stop.request(f"not admitted: {error!r}")
            raise

    async def _look_back(self, stop: Stop) -> bool:
        """Read the node's last ack before it sends anything new.

        Return True if the process must restart. In that case its older copy was accepted, and the
        log as it was read may lack what the node promised.

        Raises NotThisReplica, OSError.
        """

        def waits(why: str) -> None:
            self.gate.ack_unknown = f"The node does not know its newest acknowledgement yet: {why}"

        settings = self._settings
        waits("it is read in the topic of acks.")
        newest = await newest_ack(settings.brokers, self.directory, stop, waits)
        promised = self.directory.identity.acknowledged
        await asyncio.to_thread(check_newest, self.directory, newest, settings.accept_older_copy)
        identity, image = self.directory.identity, self.follower.image
        is_read = (
            image.log_id.hex() == identity.log_id and image.epoch >= identity.acknowledged.epoch
        )
        if identity.acknowledged != promised and not is_read:
            waits("it restarts with its newest acknowledgement, which its older copy lacked.")
            stop.request(
                "the node's acknowledgement is recorded: it restarts, and reads the log up to there"
            )
            return True
        self.gate.ack_unknown = ""
        return False

    @asynccontextmanager
    async def _announced(self, stop: Stop) -> AsyncIterator[None]:
        """Keep the node's row in the log correct inside the block. Failures do not end the node."""
        settings, directory, advertised = self._settings, self.directory, self.advertised
        announcer = Announcer(
            partial(announcement_again, directory.identity, advertised),
            settings.brokers,
            settings.cluster,
        )
        keeping = keep_announced(directory, advertised, self.follower, announcer, stop)
        task = asyncio.create_task(keeping, name="announce")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))


Follow = Callable[[Floor | None], AbstractAsyncContextManager[Followed]]
"""Follows the log from a floor; see ``runtime.follow.following``."""


@asynccontextmanager
async def membership(
    settings: AgentSettings,
    directory: DataDirectory,
    address: str,
    follow: Follow | None = None,
    build: Build = THIS_BUILD,
) -> AsyncIterator[Membership]:
    """Follow the log inside the block, as the node of this directory.

    Other processes reach it at ``address``. It announces the features and the release of ``build``.

    Raises NotThisReplica when the log has another history than the directory.
    """
    accept = settings.accept_lost_epochs
    follow = follow or partial(following, settings)
    async with AsyncExitStack() as stack:
        floor = floor_of(directory.identity, accept)
        try:
            followed = await stack.enter_async_context(follow(floor))
        except OtherHistoryError as error:
            raise NotThisReplica(other_history(directory.identity, str(error))) from error
        # The gate listens before the first epoch is read, so that it misses none.
        gate = Gate(directory, followed.follower, accept, settings.claim_host_id)
        chosen = settings.chosen_tokens()
        advertised = Advertised(
            dc=settings.dc,
            rack=settings.rack,
            num_tokens=len(chosen) or settings.num_tokens,
            initial_tokens=chosen,
            shards=settings.shards,
            replaced_id=settings.replace_node,
            claims_host_id=settings.claim_host_id,
            address=address,
            supported_features=tuple(sorted(build.features)),
            release_version=build.release,
        )
        yield Membership(settings, directory, advertised, gate, followed)


def shut_out(node_id: str, image: Image, gate: Gate) -> Expelled | None:
    """Return the reason why the node serves nothing, or None when it serves.

    A permanent reason comes before a temporary one: a node that has left does not need to read
    further.
    """
    closed, out = gate.closed(), expelled(image, node_id)
    if closed is None or (out is not None and closed.code == CATCHING_UP):
        return out
    return Expelled(closed.code, closed.message, hint="")


def health_of(
    node_id: str,
    followed: Followed,
    gate: Gate,
    failure: str = "",
    unknown_data: Collection[str] = (),
) -> Health:
    """Return the health: ok while the log is followed and the node may serve.

    ``failure`` is a failure of the store's disk. A node that keeps rows of ``unknown_data`` is
    healthy, and reports them.
    """
    closed, reason = gate.closed(), ""
    out = expelled(followed.follower.image, node_id)
    if out is not None and not out.wanted:
        reason = f"{out.message} {out.hint}"
    elif failure:
        reason = failure
    elif gate.failure is not None or (closed is not None and closed.code == CATCHING_UP):
        reason = closed.message if closed is not None else ""
    health = followed.health()
    if health.ok and not reason:
        notices = filter(None, (health.reason, unknown_data_text(unknown_data)))
        return msgspec.structs.replace(health, reason=" ".join(notices))
    if not health.ok or not reason:
        return health
    return msgspec.structs.replace(health, ok=False, reason=reason)
