"""Whether a replica may serve a request: asked before the work, and again before the answer (I6).

A request that was begun in time and ended late must not be acknowledged, since the fence may have moved while
it ran. Where the work has an effect, the first question is asked in the very turn of the event loop in which
the effect takes its place in the store's order: no epoch comes between.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from stele.agent.codes import Code
from stele.agent.routing import Routing
from stele.domain.fencing import check_client, check_token, takes_part
from stele.domain.names import NodeState
from stele.log.errors import LogError
from stele.log.follower import LogFollower

CATCH_UP_LIMIT_S: Final = 2.0
"""A replica that meets a newer version reads the log for so long before it gives up."""


class Request(Protocol):
    """What is judged; ``domain.routed.Routed`` says what each means."""

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


class Refusal(msgspec.Struct, frozen=True):
    """Why a request is not served. ``epoch`` is one that its sender should have read; 0: none."""

    code: Code
    text: str
    epoch: int = 0


class Judge:
    """One node's, by the log as far as it was read.

    ``clients``: whether requests are taken that no member coordinates; they are judged more strictly.
    """

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        routing: Routing,
        session_is_open: Callable[[str], bool],
        catch_up_limit_s: float = CATCH_UP_LIMIT_S,
        *,
        clients: bool = False,
    ) -> None:
        self._clients = clients
        self.catch_up_limit_s = catch_up_limit_s
        self._node_id = node_id
        self._follower = follower
        self._routing = routing
        self._session_is_open = session_is_open

    async def catch_up(self, requests: Iterable[Request]) -> None:
        """Read on to what their senders know, for a while; what was not read in time is refused as BEHIND."""
        newer = [request.epoch for request in requests if self._is_newer(request)]
        if newer:
            await self.read_up_to(max(newer))

    async def read_up_to(self, epoch: int) -> None:
        try:
            await self._follower.wait_for_epoch(epoch, self.catch_up_limit_s)
        except (TimeoutError, LogError):
            return

    def refusal(self, request: Request) -> Refusal | None:
        """Before the work: None when it may begin."""
        image = self._follower.image
        if self._is_newer(request):
            return Refusal(Code.BEHIND, behind(image.epoch, request.epoch))
        fenced = self.fenced(request)
        if fenced is not None:
            return fenced
        placement = self._routing.placement(request.data_id, request.version)
        if placement is None or self._node_id not in placement.row_for(request.token).writes:
            text = f"{self._node_id} is no replica of token {request.token} in version {request.version}"
            return Refusal(Code.NOT_A_REPLICA, text, image.epoch)
        return None

    def fenced(self, request: Request) -> Refusal | None:
        """In the turn of the effect, and before the answer: None when it still counts."""
        image = self._follower.image
        topology = image.topology
        of_client = self._clients and not request.coordinating
        check = check_client if of_client else check_token
        stale = check(image, request.data_id, request.token, request.version)
        if stale is not None:
            epoch = max(topology.since_epoch, topology.fence_epoch)
            return Refusal(Code.STALE_VERSION, str(stale), epoch)
        if request.session and not self._session_is_open(request.session):
            return Refusal(Code.SESSION_CLOSED, f"session {request.session} is not open")
        if not of_client and not takes_part(image, request.coordinating):
            who = request.coordinating or "nobody"
            text = f"{who} is no member, or not any more, so it coordinates no requests"
            return Refusal(Code.STALE_VERSION, text, image.epoch)
        node = image.node(self._node_id)
        if node is not None and node.state is NodeState.LEFT:
            return Refusal(Code.NODE_LEFT, f"{self._node_id} has left the cluster")
        if node is not None and node.excluded:
            return Refusal(Code.NODE_LEFT, f"{self._node_id} was declared dead")
        return None

    def _is_newer(self, request: Request) -> bool:
        """The sender knows something that this node must know too before it can judge."""
        image = self._follower.image
        if request.version > image.topology.version:
            return True
        return request.epoch > image.epoch and image.schema.of_data(request.data_id) is None


def behind(own: int, wanted: int) -> str:
    return f"this node has read the log to epoch {own}, not to {wanted}"
