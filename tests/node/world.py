"""A cluster of n1, n2, n3 in memory, whose log the tests write, and nodes' parts that follow it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stele.domain.commands import Advance, AdvanceFence, AnyCommand, StartRequest
from stele.domain.fencing import VersionTracker
from stele.domain.image import Image
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.tokens import token_of
from stele.domain.sessions import SessionGuard, SessionManager
from stele.log.codec import encode_epoch
from stele.log.follower import LogFollower
from stele.log.memory import MemoryLog, MemoryPartition
from tests.domain.history import join, three_nodes

KEYSPACE = "library"
TERM = 1


async def until(condition: Callable[[], object], what: str, deadline_s: float = 5.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        await asyncio.sleep(0.002)


class World:
    """The log. ``follower`` gives what a node at its end sees; ``lagging`` one that is held back."""

    def __init__(self) -> None:
        self.history, _ = three_nodes()
        self.partition = MemoryPartition()
        self._written = 0
        self._publish()

    @property
    def image(self) -> Image:
        return self.history.image

    @property
    def version(self) -> int:
        return self.image.topology.topology.version

    async def follower(self) -> LogFollower:
        follower = LogFollower(MemoryLog(self.partition))
        follower.start()
        await follower.wait_for_epoch(self.image.epoch)
        return follower

    def apply(self, command: AnyCommand, request_id: str = "") -> None:
        assert self.history.apply(command, request_id) is None
        self._publish()

    def start_join(self) -> None:
        """n4 asks to join, and its operation begins: join_group0."""
        self.apply(join(4), "join-n4")
        self.apply(StartRequest(TERM, "join-n4"))

    def fence(self) -> None:
        self.apply(AdvanceFence(TERM, self.version))

    def advance(self, target: str = "join-n4") -> None:
        """Fence the version in use and take the next step."""
        if self.image.topology.topology.fence_version < self.version:
            self.fence()
        self.apply(Advance(TERM, target, self.version))

    def row(self, key: bytes) -> RangeReplicas:
        placement = self.image.placement_of(KEYSPACE)
        assert placement is not None
        return placement.row_for(token_of(key))

    def key(self, condition: Callable[[RangeReplicas], object]) -> bytes:
        """A key whose row fits."""
        return next(self.keys(condition))

    def keys(self, condition: Callable[[RangeReplicas], object]) -> Iterator[bytes]:
        candidates = (f"key-{number}".encode() for number in range(100_000))
        return (key for key in candidates if condition(self.row(key)))

    def _publish(self) -> None:
        for epoch in self.history.epochs[self._written :]:
            record = self.partition.append(encode_epoch(epoch))
            for follower in self.partition.followers:
                follower([record])
        self._written = len(self.history.epochs)


class Sessions:
    """The sessions and versions of a node, as the agent keeps them."""

    def __init__(self, follower: LogFollower) -> None:
        self.versions = VersionTracker()
        self.manager = SessionManager()
        self.manager.follow(follower.image.topology.topology)
        follower.listen(lambda image, _: self.manager.follow(image.topology.topology))

    def hold(self, version: int) -> None:
        self.versions.hold(version)

    def release(self, version: int) -> None:
        self.versions.release(version)

    @contextmanager
    def enter(self, session: str) -> Iterator[SessionGuard]:
        with self.manager.enter(session) as guard:
            yield guard

    def session_is_open(self, session: str) -> bool:
        return self.manager.is_open(session)
