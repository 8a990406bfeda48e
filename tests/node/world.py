"""A cluster of n1, n2 and n3 in memory. Tests write its log, and parts of nodes follow it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from stele.domain.commands import (
    Advance,
    AdvanceFence,
    AnyCommand,
    DropKeyspace,
    Move,
    Truncate,
)
from stele.domain.fencing import Hold, SessionGuard, SessionManager, VersionTracker
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.names import OrderKind
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import Range, RangeReplicas, contains
from stele.domain.ring.transition import TransitionRow
from stele.log.codec import encode_epoch
from stele.log.follower import LogFollower
from stele.log.recovery import start_after
from tests.domain.history import join, three_nodes
from tests.log.memory import MemoryLog, MemoryPartition
from tests.polling import until

KEYSPACE = "library"
RECOVERED = bytes([0xC0] * 16)
"""The log's id once it was recovered."""
TERM = 1


class World:
    """The log of the cluster. ``follower`` returns a reader at its end."""

    def __init__(self, shards: int = 1) -> None:
        self.history, _ = three_nodes(shards)
        self.history._judge = None  # here the test is the coordinator, and no others acknowledge
        self.partition = MemoryPartition()
        self._written = 0
        self._publish()

    @property
    def image(self) -> Image:
        return self.history.image

    @property
    def version(self) -> int:
        return self.image.topology.version

    async def follower(self) -> LogFollower:
        follower = LogFollower(MemoryLog(self.partition))
        follower.start()
        await follower.wait_for_epoch(self.image.epoch)
        return follower

    async def follower_after(self, image: Image) -> LogFollower:
        """Return a follower of a recovered log, which continues after ``image``."""
        follower = LogFollower(
            MemoryLog(self.partition), start_after(image, self.partition.records[0])
        )
        follower.start()
        await follower.wait_for_epoch(self.image.epoch)
        return follower

    def apply(self, command: AnyCommand, request_id: str = "") -> None:
        assert self.history.apply(command, request_id) is None
        self._publish()

    def enable(self, feature: str) -> None:
        self.history.enable(feature)
        self._publish()

    def start_join(self) -> None:
        """Request the join of n4 and advance it to commit_cdc_generation."""
        self.apply(join(4), "join-n4")
        self.open("join-n4")
        self.advance()

    def open(self, request_id: str) -> None:
        """Fence the version in use and open the transition of a request."""
        self._fence_if_needed()
        self.apply(Advance(term=TERM, version=self.version, open=((request_id,),)))

    @property
    def session(self) -> str:
        """Return the id of the open session. There must be at most one."""
        (session,) = self.image.topology.sessions() or ("",)
        return session

    @property
    def keyspace_id(self) -> str:
        keyspace = self.image.schema.named(KEYSPACE)
        assert keyspace is not None
        return keyspace.keyspace_id

    @property
    def data_id(self) -> str:
        keyspace = self.image.schema.named(KEYSPACE)
        assert keyspace is not None
        return keyspace.data_id

    def data_id_of(self, name: str) -> str:
        data = self.image.schema.serving(name)
        assert data is not None
        return data.data_id

    def order(
        self, kind: OrderKind, node_id: str = "n1", session: str = "", request_id: str = ""
    ) -> Order:
        """Return the coordinator's order to a node, by default under the open session."""
        topology = self.image.topology
        return Order(
            node_id=node_id,
            term=TERM,
            index=1,
            kind=kind,
            epoch=max(topology.since_epoch, topology.fence_epoch),
            session=session or self.session,
            request_id=request_id,
        )

    def cleanup_order(self) -> Order:
        node = self.image.node("n1")
        assert node is not None
        return self.order(OrderKind.CLEANUP, session=node.cleanup_session())

    def fence(self) -> None:
        self.apply(AdvanceFence(TERM, self.version))

    def advance(self, target: str = "join-n4") -> None:
        """Fence the version in use and take the next step."""
        self._fence_if_needed()
        transition = self.image.topology.transitions[target]
        move = Move(target, transition.state, transition.session)
        self.apply(Advance(term=TERM, version=self.version, moves=(move,)))

    def _fence_if_needed(self) -> None:
        if not self.image.topology.settled():
            self.fence()

    def drop(self) -> None:
        """Drop the keyspace, with the version and the epoch that this needs."""
        self.apply(DropKeyspace(KEYSPACE), "drop")
        self.open("drop")
        self.advance("drop")

    def truncate(self) -> None:
        """Truncate the keyspace with one version. It is not fenced, and the request stays open."""
        self.apply(Truncate(KEYSPACE), "truncate")
        self.open("truncate")

    def row(self, key: bytes) -> RangeReplicas:
        placement = self.image.placement_of(KEYSPACE)
        assert placement is not None
        return placement.row_for(token_of(key))

    def key(self, condition: Callable[[RangeReplicas], object]) -> bytes:
        """Return a key whose row satisfies ``fits``."""
        return next(self.keys(condition))

    def plan_rows(self) -> list[TransitionRow]:
        """The ranges that the open transition changes."""
        (transition,) = self.image.topology.open()
        return [row for plan in transition.plans.values() for row in plan.rows]

    def key_that_changes(self) -> bytes:
        """A key of a range that the open transition moves."""
        return next(key for key in self._candidates() if self._moves(key))

    def key_that_stays(self) -> bytes:
        return next(key for key in self._candidates() if not self._moves(key))

    def _moves(self, key: bytes) -> bool:
        token = token_of(key)
        return any(contains(Range(r.start, r.end), token) for r in self.plan_rows())

    @staticmethod
    def _candidates() -> Iterator[bytes]:
        return (f"key-{number}".encode() for number in range(100_000))

    def keys(self, condition: Callable[[RangeReplicas], object]) -> Iterator[bytes]:
        return (key for key in self._candidates() if condition(self.row(key)))

    def recover(self, last_epoch: int = 0) -> Image:
        """Recover the log after ``last_epoch``, in a recreated topic. Return that epoch's image."""
        self.history.recover(RECOVERED, last_epoch)
        self.partition = MemoryPartition()
        self._written = len(self.history.epochs) - 1
        self._publish()
        return self.history.images[-2]

    def _publish(self) -> None:
        for epoch in self.history.epochs[self._written :]:
            record = self.partition.append(encode_epoch(epoch))
            for follower in self.partition.followers:
                follower([record])
        self._written = len(self.history.epochs)


class OpenGate:
    """A gate that lets an agent send acks."""

    is_open = True


class Sessions:
    """The sessions and versions of a node, as the agent keeps them."""

    def __init__(self, follower: LogFollower) -> None:
        self.versions = VersionTracker()
        self.versions.follow(follower.image)
        self.manager = SessionManager()
        self.manager.follow(follower.image.topology)
        follower.listen(lambda image, _: self._follow(image))

    def _follow(self, image: Image) -> None:
        self.versions.follow(image)
        self.manager.follow(image.topology)

    def hold(self, version: int, data_id: str, token: int) -> Hold:
        return self.versions.hold(version, data_id, token)

    def release(self, hold: Hold) -> None:
        self.versions.release(hold)

    async def wait_drained(self, version: int, timeout_s: float) -> None:
        await until(lambda: min(self.versions.in_use(), default=version) >= version, "drained", 0.2)

    @contextmanager
    def enter(self, session: str) -> Iterator[SessionGuard]:
        with self.manager.enter(session) as guard:
            yield guard

    def session_is_open(self, session: str) -> bool:
        return self.manager.is_open(session)

    def may_store(self, _: str) -> bool:
        return True

    async def wait_until_synced(self, data_ids: Collection[str], timeout_s: float) -> None:
        raise AssertionError("all is noted")
