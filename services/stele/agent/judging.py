"""Decides whether a replica may serve a request: before the work, and again before the answer (I6).

A request that began in time may end late. It must not be acknowledged then, because the fence may
have moved while it ran (docs/design.md, rule 32).

For work with an effect, the first check runs in the event-loop turn in which the effect takes its
place in the store's order. No epoch is applied in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from stele.domain.evolve import Delta
from stele.domain.fencing import (
    Hold,
    SessionClosedError,
    SessionGuard,
    check_client,
    check_token,
    takes_part,
)
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.ring.placement import Placement
from stele.log.errors import LogError
from stele.log.follower import LogFollower

# Result codes of a replica. Other nodes and clients act on them.


class Code(StrEnum):
    """The result of an operation at a replica.

    Only ``OK`` and ``SUPERSEDED`` mean that it was done.
    """

    OK = "ok"
    SUPERSEDED = "superseded"  # the replica has a newer cell, written at ``timestamp``
    STALE_VERSION = "stale_version"
    BEHIND = "behind"  # this replica could not read up to the sender's version in time
    NOT_A_REPLICA = "not_a_replica"
    SESSION_CLOSED = "session_closed"
    NODE_LEFT = "node_left"
    DISK_FULL = "disk_full"
    UNTIMELY = "untimely"  # change data capture takes no write of that time
    FAILED = "failed"
    # set by the caller without an answer; the operation may have been done
    UNREACHABLE = "unreachable"


# The replicas of a key: now, and in earlier versions that are still served.


class Routing:
    """The newest image of each topology version from the fence to the current one.

    Requests of older versions continue where their row did not change. The oldest image that is
    kept then has the same row. All other such requests are refused (``domain.fencing``).
    """

    def __init__(self, follower: LogFollower) -> None:
        self._follower = follower
        self._by_version: dict[int, Image] = {}
        follower.listen(self._on_epoch)
        self._follow(follower.image)

    def placement(self, data_id: str, version: int) -> Placement | None:
        """Return the placement that routes requests of ``version``, or None for unknown data.

        After a restart the placement of an older version may be missing. Then the current one
        counts.
        """
        current = self._follower.image
        oldest = min(self._by_version)
        image = self._by_version.get(max(version, oldest), current)
        known = _placement(image, data_id)
        return _placement(current, data_id) if known is None else known

    def _on_epoch(self, image: Image, _: Delta) -> None:
        self._follow(image)

    def _follow(self, image: Image) -> None:
        topology = image.topology
        self._by_version[topology.version] = image
        for version in [v for v in self._by_version if v < topology.fence_version]:
            del self._by_version[version]


def _placement(image: Image, data_id: str) -> Placement | None:
    keyspace = image.schema.of_data(data_id)
    return None if keyspace is None else image.ring.placements.get(keyspace.placement)


CATCH_UP_LIMIT_S: Final = 2.0
"""How long a replica reads the log for a request of a newer version, in seconds."""


class JudgedRequest(Protocol):
    """The fields that a request is judged by. ``domain.routed.Routed`` describes each."""

    @property
    def version(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def coordinating(self) -> str: ...
    @property
    def data_id(self) -> str: ...
    @property
    def token(self) -> int: ...
    @property
    def session(self) -> str: ...
    @property
    def reads(self) -> bool: ...
    @property
    def table_version(self) -> int: ...


class AgentState(Protocol):
    """The node's own state: the versions and sessions that its acks report, and synced creations.

    The agent implements it.
    """

    def hold(self, version: int, data_id: str, token: int) -> Hold: ...
    def release(self, hold: Hold) -> None: ...
    async def wait_drained(self, version: int, timeout_s: float) -> None: ...
    def enter(self, session: str) -> AbstractContextManager[SessionGuard]: ...
    def session_is_open(self, session: str) -> bool: ...
    def may_store(self, data_id: str) -> bool: ...
    async def wait_until_synced(self, data_ids: Collection[str], timeout_s: float) -> None: ...


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a request is not served.

    ``epoch`` is one that its sender should read; 0 means none.
    """

    code: Code
    text: str
    epoch: int = 0


class NotGiven(Exception):
    """The reason why no data is sent. BEHIND is temporary; SESSION_CLOSED is permanent."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class Judge:
    """Judges the requests of one node by the log, as far as it was read.

    ``clients`` allows requests that no member coordinates. They are judged more strictly.
    """

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        routing: Routing,
        state: AgentState,
        catch_up_limit_s: float = CATCH_UP_LIMIT_S,
        *,
        clients: bool = False,
    ) -> None:
        self._clients = clients
        self.catch_up_limit_s = catch_up_limit_s
        self._node_id = node_id
        self._follower = follower
        self._routing = routing
        self._state = state

    async def catch_up(self, requests: Sequence[JudgedRequest]) -> None:
        """Read up to the senders' epochs, and wait until the data's creations are on the disk.

        Each wait lasts at most ``catch_up_limit_s``. ``refusal`` then refuses a request that is not
        ready as BEHIND.
        """
        newer = [_wanted(request) for request in requests if self._is_newer(request)]
        if newer:
            await self.read_up_to(max(newer))
        unsynced = {each.data_id for each in requests if not self._state.may_store(each.data_id)}
        if unsynced:
            with suppress(TimeoutError):
                await self._state.wait_until_synced(unsynced, self.catch_up_limit_s)

    async def read_up_to(self, epoch: int) -> None:
        try:
            await self._follower.wait_for_epoch(epoch, self.catch_up_limit_s)
        except (TimeoutError, LogError):
            return

    def refusal(self, request: JudgedRequest) -> Refusal | None:
        """Check a request before the work. Return None when the work may begin."""
        image = self._follower.image
        # First of all checks: an image older than the request cannot judge it.
        if self._is_newer(request):
            return Refusal(Code.BEHIND, behind(image.epoch, _wanted(request)))
        if not self._state.may_store(request.data_id):
            text = (
                f"{self._node_id} has not yet synced the epoch that created data {request.data_id}"
            )
            return Refusal(Code.BEHIND, text)
        fenced = self.fenced(request)
        if fenced is not None:
            return fenced
        placement = self._routing.placement(request.data_id, request.version)
        row = None if placement is None else placement.row_for(request.token)
        # A replica that is only written may not have the data yet, or may have deleted it: it
        # serves no reads.
        if row is None or self._node_id not in (row.reads if request.reads else row.writes):
            is_only_written = row is not None and self._node_id in row.writes
            which = "no replica that is read" if is_only_written else "no replica"
            text = (
                f"{self._node_id} is {which} of token {request.token} in version {request.version}"
            )
            return Refusal(Code.NOT_A_REPLICA, text, image.epoch)
        return None

    def fenced(self, request: JudgedRequest) -> Refusal | None:
        """Check a request in the turn of the effect and before the answer.

        Return None when it still counts.
        """
        image = self._follower.image
        topology = image.topology
        # A client acknowledges nothing, so no barrier waits for it: the newest change counts,
        # fenced or not (rule 34).
        of_client = self._clients and not request.coordinating
        check = check_client if of_client else check_token
        stale = check(image, request.data_id, request.token, request.version)
        if stale is not None:
            epoch = max(topology.since_epoch, topology.fence_epoch)
            return Refusal(Code.STALE_VERSION, str(stale), epoch)
        if request.session and not self._state.session_is_open(request.session):
            return Refusal(Code.SESSION_CLOSED, f"session {request.session} is not open")
        if not of_client and not takes_part(image, request.coordinating):
            who = request.coordinating or "nobody"
            text = f"{who} is not a member, or no longer one, so it coordinates no requests"
            return Refusal(Code.STALE_VERSION, text, image.epoch)
        node = image.node(self._node_id)
        if node is not None and node.state is NodeState.LEFT:
            return Refusal(Code.NODE_LEFT, f"{self._node_id} has left the cluster")
        if node is not None and node.excluded:
            return Refusal(Code.NODE_LEFT, f"{self._node_id} was declared dead")
        return None

    def newer_table_version(self, request: JudgedRequest) -> int:
        """Return the version of the table's columns if the sender's is older, and otherwise 0.

        The request is served all the same: ids of columns are never used again. The sender should
        read the log up to this epoch.
        """
        sent = request.table_version
        if not sent:
            return 0
        schema = self._follower.image.schema.columns_of(request.data_id)
        return 0 if schema is None or schema.version <= sent else schema.version

    @asynccontextmanager
    async def giving(self, epoch: int, session: str) -> AsyncIterator[None]:
        """Check before and after the block, which reads data to send it to another node.

        Send the data after the block. It is sent only after two conditions (docs/design.md, rule
        45). This node has applied the epoch that settled the session's version. Its own older
        writes on changed ranges have ended. The data then contains every write acknowledged before,
        and later writes reach the receiver too.

        Raises NotGiven.
        """
        if self._follower.image.epoch < epoch:
            await self.read_up_to(epoch)
        image = self._follower.image
        if image.epoch < epoch:
            raise NotGiven(Code.BEHIND, behind(image.epoch, epoch))
        transition = image.topology.of_session(session)
        if transition is None:
            raise NotGiven(Code.SESSION_CLOSED, f"session {session} is not open")
        try:
            # Drain before the block: an older write that ends later would be in neither the data
            # nor the receiver.
            await self._state.wait_drained(transition.entered_version, self.catch_up_limit_s)
        except TimeoutError as error:
            raise NotGiven(Code.BEHIND, str(error)) from error
        try:
            with self._state.enter(session) as guard:
                yield
                # The session may have closed while the block read.
                guard.check()
        except SessionClosedError as error:
            raise NotGiven(Code.SESSION_CLOSED, str(error)) from error

    def _is_newer(self, request: JudgedRequest) -> bool:
        """Return whether the sender has an epoch that this node must read before it can judge."""
        image = self._follower.image
        if request.version > image.topology.version or request.table_version > image.epoch:
            return True
        return request.epoch > image.epoch and image.schema.of_data(request.data_id) is None


def _wanted(request: JudgedRequest) -> int:
    """Return the epoch that a replica needs to judge a request. A table version is an epoch."""
    return max(request.epoch, request.table_version)


def behind(own: int, wanted: int) -> str:
    return f"this node has read the log to epoch {own}, not to {wanted}"
