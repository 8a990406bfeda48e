"""A node's life as a member: follow the log as the directory's node, ask to join, note what is decided."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

import msgspec

from stele.agent.admission import (
    Advertised,
    JoinRejected,
    admit,
    announcement_again,
    check_place,
    claims_too_much,
    keep_announced,
    keep_noted,
    note_tokens,
    wait_for_membership,
)
from stele.agent.gate import CATCHING_UP, Gate, NotThisReplica, floor_of
from stele.agent.identity import DataDirectory
from stele.agent.lost_epochs import other_history
from stele.agent.older_copy import check_newest, last_told
from stele.agent.settings import AgentSettings
from stele.agent.standing import Expelled, expelled, join_ended
from stele.domain.image import Image
from stele.domain.membership.hosts import is_unclaimed
from stele.log.commander import Commander
from stele.log.errors import LogError, OtherHistoryError
from stele.log.follower import Floor, LogFollower
from stele.runtime.announce import Announcer
from stele.runtime.build import THIS_BUILD, Build
from stele.runtime.follow import Followed, following
from stele.runtime.http import Health
from stele.runtime.logs import get_logger
from stele.runtime.service import Stop

log = get_logger(__name__)


class Membership:
    """What a directory's node is in its cluster. Nothing is served or acknowledged before the gate is open."""

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
        """Have it admitted beside what is done inside the block; ``stop`` is requested when it never will be.

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
        """Become a member, and note what the cluster decides; when it never will be one, the process ends.

        A member opens its gate before it announces what changed: the metadata-log need not be there for that.
        Only who supports less than the log says takes that back first, and who takes a free place says so.
        Who was a member once goes on answering why it serves nothing: a supervisor would start it again for
        ever. Where the log cannot be read any further what was read of it is kept, for whoever recovers it.
        """
        settings, gate, directory = self._settings, self.gate, self.directory
        follower = self.follower
        try:
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
            if waits:
                await gate.recognise(stop)
            async with Commander(settings.brokers, settings.cluster) as commander:
                await admit(directory, self.advertised, follower, commander, stop)
            await gate.recognise(stop)
            if known is None:  # another may have asked for it, or an earlier start of its own
                check_place(follower.image.node(self.node_id), self.advertised)
            async with self._announced(stop):
                await wait_for_membership(directory, follower, stop)
                await keep_noted(directory, follower, stop)
        except LogError as error:
            log.error("not admitted before the log is recovered", why=str(error))
            await stop.wait()
        except BaseException as error:
            if isinstance(error, Exception):
                log.error("not admitted", why=str(error))
            stop.request(f"not admitted: {error!r}")
            raise

    async def _look_back(self, stop: Stop) -> bool:
        """Read what the node told last, before it says anything new. Whether it begins anew: its older copy was
        accepted, and the log as it was read may lack what it told. Raises NotThisReplica, OSError.
        """

        def waits(why: str) -> None:
            self.gate.looks_back = f"The node does not know yet what it told last: {why}"

        settings = self._settings
        waits("it is read in the topic of acks.")
        told = await last_told(settings.brokers, self.directory, stop, waits)
        promised = self.directory.identity.acknowledged
        await asyncio.to_thread(check_newest, self.directory, told, settings.accept_older_copy)
        identity, image = self.directory.identity, self.follower.image
        is_read = (
            image.log_id.hex() == identity.log_id and image.epoch >= identity.acknowledged.epoch
        )
        if identity.acknowledged != promised and not is_read:
            waits("it begins anew with what it told, which its older copy did not know.")
            stop.request("what the node told is noted: it begins anew, and reads the log that far")
            return True
        self.gate.looks_back = ""
        return False

    @asynccontextmanager
    async def _announced(self, stop: Stop) -> AsyncIterator[None]:
        """Inside the block the log is told what this node is where it says otherwise. Whatever comes of that is
        no reason to end.
        """
        settings, directory, told = self._settings, self.directory, self.advertised
        announcer = Announcer(
            partial(announcement_again, directory.identity, told),
            settings.brokers,
            settings.cluster,
        )
        keeping = keep_announced(directory, told, self.follower, announcer, stop)
        task = asyncio.create_task(keeping, name="announce")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))


Follow = Callable[[Floor | None], AbstractAsyncContextManager[Followed]]
"""Follows the log from a floor on; see ``runtime.follow.following``."""


@asynccontextmanager
async def membership(
    settings: AgentSettings,
    directory: DataDirectory,
    address: str,
    follow: Follow | None = None,
    build: Build = THIS_BUILD,
) -> AsyncIterator[Membership]:
    """Follow the log inside the block, as the node of this directory, which others reach at ``address``, and
    say that it is of this ``build``.

    Raises NotThisReplica when the log is of another history than the directory.
    """
    accept = settings.accept_lost_epochs
    follow = follow or partial(following, settings)
    async with AsyncExitStack() as stack:
        floor = floor_of(directory.identity, accept)
        try:
            followed = await stack.enter_async_context(follow(floor))
        except OtherHistoryError as error:
            raise NotThisReplica(other_history(directory.identity, str(error))) from error
        # At once, before anything was read.
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
    """Why the node serves nothing; None when it serves. What is true for good comes before what passes: who
    has left need not read on to know it.
    """
    closed, out = gate.closed(), expelled(image, node_id)
    if closed is None or (out is not None and closed.code == CATCHING_UP):
        return out
    return Expelled(closed.code, closed.message, hint="")


def health_of(node_id: str, followed: Followed, gate: Gate, failure: str = "") -> Health:
    """Well while the log is followed and nothing forbids to serve. ``failure`` is of the store's disk."""
    closed, reason = gate.closed(), ""
    out = expelled(followed.follower.image, node_id)
    if out is not None and not out.wanted:
        reason = f"{out.message} {out.hint}"
    elif failure:
        reason = failure
    elif gate.failure is not None or (closed is not None and closed.code == CATCHING_UP):
        reason = closed.message if closed is not None else ""
    health = followed.health()
    if not health.ok or not reason:
        return health
    return msgspec.structs.replace(health, ok=False, reason=reason)
