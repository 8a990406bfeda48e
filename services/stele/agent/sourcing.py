"""Giving data to another node under the session of a topology operation.

It is given only once this node has applied the epoch that settled the session's version, and its own older
writes on the ranges that changed are done: what is streamed then holds all that was acknowledged before, and
whatever comes later reaches the receiver too.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Protocol

from stele.agent.codes import Code
from stele.agent.judging import Judge, behind
from stele.domain.sessions import SessionClosedError, SessionGuard
from stele.log.follower import LogFollower


class InUse(Protocol):
    """What this node has in use, as its acks tell; see the agent."""

    async def wait_drained(self, version: int, timeout_s: float) -> None: ...
    def enter(self, session: str) -> AbstractContextManager[SessionGuard]: ...


class NotGiven(Exception):
    """Why no data is given, BEHIND or SESSION_CLOSED: the first passes, the second never does."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class Sourcing:
    """One node's side of it."""

    def __init__(self, follower: LogFollower, in_use: InUse, judge: Judge) -> None:
        self._follower = follower
        self._in_use = in_use
        self._judge = judge

    @asynccontextmanager
    async def giving(self, epoch: int, session: str) -> AsyncIterator[None]:
        """Read the data inside the block, and send it after it, if it ends well. Raises NotGiven."""
        if self._follower.image.epoch < epoch:
            await self._judge.read_up_to(epoch)
        image = self._follower.image
        if image.epoch < epoch:
            raise NotGiven(Code.BEHIND, behind(image.epoch, epoch))
        transition = image.topology.of_session(session)
        if transition is None:
            raise NotGiven(Code.SESSION_CLOSED, f"session {session} is not open")
        try:
            await self._in_use.wait_drained(
                transition.entered_version, self._judge.catch_up_limit_s
            )
        except TimeoutError as error:
            raise NotGiven(Code.BEHIND, str(error)) from error
        try:
            with self._in_use.enter(session) as guard:
                yield
                guard.check()
        except SessionClosedError as error:
            raise NotGiven(Code.SESSION_CLOSED, str(error)) from error
