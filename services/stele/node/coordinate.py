"""Quorum reads and writes, coordinated by whichever node was asked.

A quorum register with many writers (Attiya, Bar-Noy, Dolev): a quorum write first asks a read quorum for
the newest timestamp and takes a later one; a quorum read makes sure that what it returns is on a write
quorum before it returns it. Both hold for the row's two sets while ranges move, so whatever was answered is
seen by every later quorum request, in this topology version and in the next.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from stele.agent.codes import Code
from stele.domain.base import Rejection
from stele.domain.context import unknown_keyspace, unknown_table
from stele.domain.fencing import Hold
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.topology.operations.keyspaces import has_no_data
from stele.log.errors import LogError
from stele.log.follower import LogFollower
from stele.node.cells import Cell, newest, stamp_of
from stele.node.clock import HybridClock
from stele.node.refusals import OutcomeUnknown, Refused
from stele.node.votes import Consistency, Enough, Verdict, Vote, enough_reads, enough_writes
from stele.node.wire import Answer, AnyOp, Read, ReadMode, Write

STALE_PAUSE_S: Final = 0.02
"""Between two attempts when the log brought nothing newer."""
SCHEMA_WAIT_S: Final = 1.0
"""A keyspace that is not known may be in records that this node has yet to read."""


class _Sent:
    """Whether anything of a write may have arrived anywhere, in any of its attempts."""

    def __init__(self) -> None:
        self.may_be_done = False


class Written(msgspec.Struct, frozen=True):
    """``acks`` are the replicas that had it when the answer was given."""

    timestamp: int
    version: int
    epoch: int
    acks: list[str]


class Found(msgspec.Struct, frozen=True):
    """``cell`` is None where there never was one; ``answered`` are the replicas that were heard."""

    cell: Cell | None
    version: int
    epoch: int
    answered: list[str]


class Send(Protocol):
    """To a replica, by node id: this node's own without HTTP. ``until`` is loop time."""

    def __call__(
        self, image: Image, node_id: str, op: AnyOp, until: float
    ) -> asyncio.Future[Answer]: ...


class Versions(Protocol):
    """Counts the versions that requests hold; see domain.fencing.VersionTracker."""

    def hold(self, version: int, data_id: str, token: int) -> Hold: ...
    def release(self, hold: Hold) -> None: ...


class _Attempt(msgspec.Struct, frozen=True):
    """What one attempt is routed by."""

    image: Image
    row: RangeReplicas
    data_id: str
    token: int
    key: bytes
    until: float

    @property
    def version(self) -> int:
        return self.image.topology.version


class _Again(Exception):
    """The version is fenced out: route anew, after this epoch."""

    def __init__(self, epoch: int, refused: dict[str, str]) -> None:
        super().__init__("stale version")
        self.epoch, self.refused = epoch, refused


class Coordination:
    """The requests of one node's clients."""

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        versions: Versions,
        send: Send,
        clock: HybridClock,
        timeout_s: float,
    ) -> None:
        self.retries = 0
        """Attempts that were made again because their version was fenced out."""
        self.repairs = 0
        """Reads that had to write back what they found."""
        self._node_id = node_id
        self._follower = follower
        self._versions = versions
        self._send = send
        self._clock = clock
        self._timeout_s = timeout_s

    async def write(
        self, keyspace: str, key: bytes, value: bytes | None, consistency: Consistency
    ) -> Written:
        """Write a value, or with None delete. Raises Refused when it was surely not done, OutcomeUnknown
        when that cannot be said."""
        sent = _Sent()
        try:
            return await self._write_until_done(keyspace, key, value, consistency, sent)
        except Refused as refused:
            if sent.may_be_done:
                raise OutcomeUnknown(refused) from refused
            raise

    async def _write_until_done(
        self, keyspace: str, key: bytes, value: bytes | None, consistency: Consistency, sent: _Sent
    ) -> Written:
        token, until = token_of(key), self._until()
        cell: Cell | None = None
        while True:
            attempt = await self._route(keyspace, token, key, until)
            hold = self._hold(attempt)
            try:
                if cell is None:
                    timestamp = await self._timestamp(attempt, consistency)
                    cell = Cell(timestamp, value is None, value or b"")
                enough = enough_writes(consistency, attempt.row)
                acks = await self._write(attempt, cell, enough, sent=sent)
                return Written(cell.timestamp, attempt.version, attempt.image.epoch, sorted(acks))
            except _Again as again:
                refusal = again
            finally:
                self._versions.release(hold)
            await self._catch_up(refusal, attempt)

    async def read(self, keyspace: str, key: bytes, consistency: Consistency) -> Found:
        """The newest cell that the replicas know. Raises Refused."""
        token, until = token_of(key), self._until()
        while True:
            attempt = await self._route(keyspace, token, key, until)
            hold = self._hold(attempt)
            try:
                cell, answered = await self._read(attempt, consistency)
                if cell is not None:
                    self._clock.see(cell.timestamp)
                return Found(cell, attempt.version, attempt.image.epoch, sorted(answered))
            except _Again as again:
                refusal = again
            finally:
                self._versions.release(hold)
            await self._catch_up(refusal, attempt)

    def _hold(self, attempt: _Attempt) -> Hold:
        return self._versions.hold(attempt.version, attempt.data_id, attempt.token)

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s

    async def _route(self, keyspace: str, token: int, key: bytes, until: float) -> _Attempt:
        image = self._follower.image
        _check_member(image, self._node_id)
        if image.schema.serving(keyspace) is None:
            image = await self._newest_image()
        serving = image.schema.serving(keyspace)
        if serving is None:
            raise _unknown(image, keyspace)
        row = image.ring.placements[serving.placement].row_for(token)
        return _Attempt(image, row, serving.data_id, token, key, until)

    async def _newest_image(self) -> Image:
        try:
            return await self._follower.wait_for_end(SCHEMA_WAIT_S)
        except (TimeoutError, LogError):
            return self._follower.image

    async def _timestamp(self, attempt: _Attempt, consistency: Consistency) -> int:
        """Above that of every write that was acknowledged before now, whatever the clocks say."""
        if consistency is Consistency.ONE:
            return self._clock.next()
        answers = await self._ask(
            attempt,
            attempt.row.reads,
            lambda node_id: self._read_op(attempt, ReadMode.TIMESTAMP),
            enough_reads(Consistency.QUORUM, attempt.row),
        )
        self._clock.see(max(answer.timestamp for answer in answers.values()))
        return self._clock.next()

    async def _write(
        self,
        attempt: _Attempt,
        cell: Cell,
        enough: Enough,
        already: Iterable[str] = (),
        sent: _Sent | None = None,
    ) -> set[str]:
        """The replicas that have the cell or a newer one, once they are enough."""
        op = Write(
            version=attempt.version,
            epoch=attempt.image.epoch,
            coordinating=self._node_id,
            data_id=attempt.data_id,
            token=attempt.token,
            key=attempt.key,
            cell=cell,
        )
        to = [node_id for node_id in attempt.row.writes if node_id not in already]
        answers = await self._ask(attempt, to, lambda _: op, enough, already, sent)
        return {*answers, *already}

    async def _read(
        self, attempt: _Attempt, consistency: Consistency
    ) -> tuple[Cell | None, set[str]]:
        reads, enough = attempt.row.reads, enough_reads(consistency, attempt.row)
        full = self._node_id if self._node_id in reads else reads[0]
        answers = await self._ask(
            attempt,
            reads,
            lambda node_id: self._read_op(
                attempt, ReadMode.CELL if node_id == full else ReadMode.STAMP
            ),
            enough,
        )
        if not _agree(answers.values()) or _lacks_value(answers):
            lacking = [node_id for node_id, a in answers.items() if a.stamp is not None]
            cells = await self._ask(
                attempt,
                lacking,
                lambda _: self._read_op(attempt, ReadMode.CELL),
                lambda done: done.issuperset(lacking),
            )
            answers = {**answers, **cells}
        cells_found = [answer.cell for answer in answers.values() if answer.cell is not None]
        if not cells_found:
            return None, set(answers)
        cell = newest(cells_found)
        if consistency is not Consistency.ONE:
            have = {node_id for node_id, answer in answers.items() if answer.cell == cell}
            await self._settle(attempt, cell, have | _same_stamp(answers, cell))
        return cell, set(answers)

    async def _settle(self, attempt: _Attempt, cell: Cell, have: set[str]) -> None:
        """Put the cell where it lacks, so that no later read can find less than this one did."""
        enough = enough_writes(Consistency.QUORUM, attempt.row)
        if not enough(have):
            self.repairs += 1
            await self._write(attempt, cell, enough, have)

    async def _ask(
        self,
        attempt: _Attempt,
        nodes: Iterable[str],
        op_for: Callable[[str], AnyOp],
        enough: Enough,
        already: Iterable[str] = (),
        sent: _Sent | None = None,
    ) -> dict[str, Answer]:
        """Answers of replicas that did it, once they are enough. Raises _Again and Refused.

        ``sent`` learns whether a write that was not done by enough may be done by some.

        The version is held until the last of them has answered, however long the caller waits.
        """
        hold = self._hold(attempt)
        calls = {
            node_id: self._send(attempt.image, node_id, op_for(node_id), attempt.until)
            for node_id in nodes
        }
        vote = Vote(calls, enough, already=already, when_over=lambda: self._versions.release(hold))
        verdict = await vote.verdict(attempt.until)
        if verdict is Verdict.ENOUGH:
            return {node_id: a for node_id, a in vote.answers.items() if a.done}
        if sent is not None:
            sent.may_be_done |= vote.may_be_done()
        if verdict is Verdict.STALE:
            raise _Again(vote.newest_epoch(), vote.refused())
        raise _unavailable(attempt, vote)

    async def _catch_up(self, again: _Again, attempt: _Attempt) -> None:
        """Read the log up to what the replicas know, within the request's time."""
        self.retries += 1
        loop = asyncio.get_running_loop()
        left_s = attempt.until - loop.time()
        if self._follower.image.epoch >= max(again.epoch, attempt.image.epoch + 1):
            return
        wanted = max(again.epoch, attempt.image.epoch)
        try:
            if left_s > STALE_PAUSE_S:
                await self._follower.wait_for_epoch(wanted, left_s)
                await asyncio.sleep(STALE_PAUSE_S)
                return
        except (TimeoutError, LogError):
            pass
        raise Refused(
            503,
            "stale_version",
            f"Topology version {attempt.version} is fenced out and no newer one came in time.",
            "Try again, through another node if this goes on.",
            again.refused,
        )

    def _read_op(self, attempt: _Attempt, mode: ReadMode) -> Read:
        return Read(
            version=attempt.version,
            epoch=attempt.image.epoch,
            coordinating=self._node_id,
            data_id=attempt.data_id,
            token=attempt.token,
            key=attempt.key,
            mode=mode,
        )


def _check_member(image: Image, node_id: str) -> None:
    node = image.node(node_id)
    if node is not None and node.state is NodeState.LEFT:
        raise Refused(
            503,
            "node_left",
            f"Node '{node_id}' has left the cluster and serves no data.",
            "Ask another node.",
        )
    if node is not None and node.excluded:
        raise Refused(
            503,
            "node_excluded",
            f"Node '{node_id}' was declared dead, and serves no data any more.",
            "Ask another node. Remove or replace this one.",
        )
    if node is None or not node.takes_part():
        raise Refused(
            503, "unavailable", f"Node '{node_id}' is no member yet.", "Ask another node, or wait."
        )


def _unknown(image: Image, name: str) -> Refused:
    """Nothing serves requests under this name."""
    found: Rejection = unknown_keyspace(name)
    keyspace = image.schema.named(name)
    if keyspace is not None and keyspace.tablets and not keyspace.dropped_version:
        found = has_no_data(name)
    elif "." in name:
        found = unknown_table(name)
    return Refused(404, found.code, found.message, found.hint)


def _unavailable(attempt: _Attempt, vote: Vote) -> Refused:
    facts = {"answered": ",".join(sorted(vote.done)), **vote.refused()}
    full = [n for n, answer in sorted(vote.answers.items()) if answer.code is Code.DISK_FULL]
    if full:
        return Refused(
            503,
            "disk_full",
            f"The disks of {', '.join(full)} are full; the write is at {len(vote.done)} replicas.",
            "Free some space there; reads go on.",
            facts,
        )
    replicas, lacking = ", ".join(sorted(attempt.row.writes)), ", ".join(vote.lacking())
    return Refused(
        503,
        "unavailable",
        f"Too few of its replicas {replicas} do it in time: not {lacking}.",
        "See who is down: `stele nodes`. One replica is enough for a request at consistency ONE.",
        facts,
    )


def _agree(answers: Iterable[Answer]) -> bool:
    """Have all of them the same cell, or none?"""
    stamps = {stamp_of(a.cell) if a.cell is not None else a.stamp for a in answers}
    return len(stamps) == 1


def _lacks_value(answers: dict[str, Answer]) -> bool:
    """There is a cell, but its value was asked of a replica that has not answered."""
    found = answers.values()
    return all(a.cell is None for a in found) and any(a.stamp is not None for a in found)


def _same_stamp(answers: dict[str, Answer], cell: Cell) -> set[str]:
    stamps = {node_id: a.stamp for node_id, a in answers.items() if a.stamp is not None}
    if not stamps:
        return set()
    own = stamp_of(cell)
    return {node_id for node_id, stamp in stamps.items() if stamp == own}
