"""Quorum reads and writes, coordinated by the node that receives the request.

The algorithm is a register with many writers, after Attiya, Bar-Noy and Dolev ("Sharing memory
robustly in message-passing systems"). A quorum write first reads the newest timestamp from a read
quorum, and uses a later one. A quorum read ensures that its result is on a write quorum before it
returns it.

While ranges move, both steps count the row's old and new replicas. Every later quorum request
therefore sees what was answered, in this topology version and in the next (docs/design.md, rule
35).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from stele.agent.judging import CATCH_UP_LIMIT_S, Code
from stele.domain.base import Rejection
from stele.domain.context import unknown_keyspace, unknown_table
from stele.domain.fencing import Hold
from stele.domain.image import Image
from stele.domain.model.schema import Data, owner_of
from stele.domain.names import NodeState
from stele.domain.ring.quorum import read_satisfied, write_satisfied
from stele.domain.ring.ranges import MAX_TOKEN, Range, RangeReplicas, upper_bound
from stele.domain.rules.cdc import check_time, confidence_ms, is_captured
from stele.domain.topology.operations.keyspaces import has_no_data
from stele.log.errors import LogError
from stele.log.follower import LogFollower
from stele.node.cells import Cell, HybridClock, newest, pieces, stamp_of
from stele.node.change_log import ChangePage
from stele.node.settings import MAX_VALUE_BYTES
from stele.node.wire import Answer, AnyOp, Read, ReadChanges, ReadMode, Write

T = TypeVar("T")

# Collects the answers of replicas until they suffice, can no longer suffice, or time is up.


Enough = Callable[[set[str]], bool]


class Consistency(StrEnum):
    """How many replicas a request waits for.

    Only quorum reads and quorum writes are sure to meet.
    """

    ONE = "one"
    QUORUM = "quorum"
    ALL = "all"


class VoteResult(StrEnum):
    """The result of a vote."""

    ENOUGH = "enough"
    STALE = "stale"  # a replica has fenced the version: read the log and route again
    IMPOSSIBLE = "impossible"
    TIME_UP = "time_up"


def enough_writes(consistency: Consistency, row: RangeReplicas) -> Enough:
    if consistency is Consistency.QUORUM:
        return lambda done: write_satisfied(done, row)
    if consistency is Consistency.ALL:
        return lambda done: done.issuperset(row.writes)
    return lambda done: not done.isdisjoint(row.reads)


def enough_reads(consistency: Consistency, row: RangeReplicas) -> Enough:
    if consistency is Consistency.QUORUM:
        return lambda done: read_satisfied(done, row)
    if consistency is Consistency.ALL:
        return lambda done: done.issuperset(row.reads)
    return lambda done: not done.isdisjoint(row.reads)


SURELY_NOT_DONE: Final = frozenset({Code.BEHIND, Code.NOT_A_REPLICA, Code.DISK_FULL, Code.UNTIMELY})
"""Codes that a replica returns only if nothing was written.

Other codes may follow the effect. A version may be fenced while a write waits for the disk, and a
broken call may have arrived.
"""


class Vote:
    """One round of calls, by node id. ``when_over`` is called once the last call has ended."""

    def __init__(
        self,
        calls: Mapping[str, asyncio.Future[Answer]],
        enough: Enough,
        *,
        already: Iterable[str] = (),
        when_over: Callable[[], None] = lambda: None,
    ) -> None:
        self.answers: dict[str, Answer] = {}
        self.done = set(already)
        self._waiting = set(calls)
        self._enough = enough
        self._when_over = when_over
        self._verdict: asyncio.Future[VoteResult] = asyncio.get_running_loop().create_future()
        for node_id, call in calls.items():
            call.add_done_callback(partial(self._on_end, node_id))
        self._judge(None)
        if not calls:
            when_over()

    async def verdict(self, until: float) -> VoteResult:
        """Return the verdict, or TIME_UP after ``until`` (loop time)."""
        try:
            async with asyncio.timeout_at(until):
                return await asyncio.shield(self._verdict)
        except TimeoutError:  # an answer in the turn of the time-out counts
            return self._verdict.result() if self._verdict.done() else VoteResult.TIME_UP

    def refused(self) -> dict[str, str]:
        """Return the reasons why replicas did not succeed, for people: node id -> code and text."""
        found = {n: f"{a.code}: {a.text}" for n, a in sorted(self.answers.items()) if not a.done}
        return {**found, **dict.fromkeys(sorted(self._waiting), "did not answer in time")}

    def lacking(self) -> list[str]:
        """Return the replicas that refused or failed.

        If there are none, return those without an answer.
        """
        return sorted(n for n, a in self.answers.items() if not a.done) or sorted(self._waiting)

    def may_be_done(self) -> bool:
        """Return whether any replica may have done the operation, or may still do it."""
        answers = self.answers.values()
        return bool(self._waiting) or any(a.code not in SURELY_NOT_DONE for a in answers)

    def newest_epoch(self) -> int:
        """Return the newest epoch that a refusal asked the sender to read; 0 if none did."""
        return max((answer.epoch for answer in self.answers.values()), default=0)

    def _on_end(self, node_id: str, ended: asyncio.Future[Answer]) -> None:
        answer = _answer_of(ended)
        self._waiting.discard(node_id)
        self.answers[node_id] = answer
        if answer.done:
            self.done.add(node_id)
        self._judge(answer.code)
        if not self._waiting:
            self._when_over()

    def _judge(self, code: Code | None) -> None:
        if self._verdict.done():
            return
        # Success comes first: a stale refusal does not matter once the others suffice.
        if self._enough(self.done):
            self._verdict.set_result(VoteResult.ENOUGH)
        elif code is Code.STALE_VERSION or code is Code.NOT_A_REPLICA:
            self._verdict.set_result(VoteResult.STALE)
        elif not self._enough(self.done | self._waiting):
            self._verdict.set_result(VoteResult.IMPOSSIBLE)


def _answer_of(ended: asyncio.Future[Answer]) -> Answer:
    if ended.cancelled():
        return Answer(Code.FAILED, text="cancelled")
    error = ended.exception()
    return Answer(Code.FAILED, text=repr(error)) if error is not None else ended.result()


# Errors of client requests: refused, or for a write, an unknown outcome.


class RequestRefused(Exception):
    """A request that was not served: HTTP status, code, sentence, hint and facts.

    A refused write has no effect at any replica, now or later. Only ``OutcomeUnknown`` leaves that
    open.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str,
        details: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.details: Mapping[str, str | int] = details or {}


class OutcomeUnknown(RequestRefused):
    """A write that may be at some replicas, but is not known to be at enough."""

    def __init__(self, why: RequestRefused) -> None:
        super().__init__(
            503,
            "outcome_unknown",
            f"The write may have taken effect, or may yet: {why.message}",
            "Read the key, or write again, to settle it.",
            why.details,
        )


STALE_PAUSE_S: Final = 0.02
"""Pause between two attempts when the log has nothing newer, in seconds."""
SCHEMA_WAIT_S: Final = 1.0
"""How long to read the log for an unknown keyspace or column, in seconds.

It may be in records not read yet.
"""


PIECE_BYTES: Final = MAX_VALUE_BYTES // 4
"""Size of a piece of a row that a read writes back, in bytes."""


class _Sent:
    """Records whether any attempt of a write may have reached a replica."""

    def __init__(self) -> None:
        self.may_be_done = False


class KeyPlace(NamedTuple):
    """The place of a key in the store.

    ``table_version`` is the version of the table's columns by which the key was encoded; 0 for
    opaque data.
    """

    token: int
    key: bytes
    table_version: int = 0


class CellWrite(NamedTuple):
    """A write: its place, and a function from its timestamp to the cell."""

    place: KeyPlace
    cell_at: Callable[[int], Cell]


PlaceOf = Callable[[Image], KeyPlace]
"""A function from the state of the cluster to the place of a request. Raises RequestRefused."""
WriteOf = Callable[[Image], CellWrite]
"""A function from the state of the cluster to a write. Raises RequestRefused."""


class Written(msgspec.Struct, frozen=True):
    """The result of a write. ``acks`` are the replicas that had the cell when it was returned.

    ``table_version`` is the version of the columns that were written; 0 for opaque data.
    """

    timestamp: int
    version: int
    epoch: int
    acks: list[str]
    table_version: int = 0


class Found(msgspec.Struct, frozen=True):
    """The result of a read.

    ``cell`` is None if there never was one; ``answered`` are the replicas that replied. ``image``
    has the columns by which a row is to be shown.
    """

    cell: Cell | None
    version: int
    epoch: int
    answered: list[str]
    image: Image


class Send(Protocol):
    """Sends an operation to a replica by node id, to this node's own without HTTP.

    ``until`` is loop time.
    """

    def __call__(
        self, image: Image, node_id: str, op: AnyOp, until: float
    ) -> asyncio.Future[Answer]: ...


class VersionHolds(Protocol):
    """Counts the versions that requests hold; see ``domain.fencing.VersionTracker``."""

    def hold(self, version: int, data_id: str, token: int) -> Hold: ...
    def release(self, hold: Hold) -> None: ...


class _Attempt(msgspec.Struct, frozen=True):
    """The routing of one attempt."""

    image: Image
    row: RangeReplicas
    data_id: str
    place: KeyPlace
    until: float
    table_version: int
    """A newer version of the columns at a replica ends the attempt before it writes."""

    @property
    def version(self) -> int:
        return self.image.topology.version


class _Again(Exception):
    """The attempt's version is fenced. Route again after reading ``epoch``."""

    def __init__(self, epoch: int, refused: dict[str, str]) -> None:
        super().__init__("stale version")
        self.epoch, self.refused = epoch, refused


class _NewerColumns(Exception):
    """A replica has a newer version of the table's columns. Nothing was written."""

    def __init__(self, version: int) -> None:
        super().__init__(f"table version {version}")
        self.version = version


class Coordination:
    """Coordinates the requests of one node's clients."""

    def __init__(
        self,
        node_id: str,
        follower: LogFollower,
        versions: VersionHolds,
        send: Send,
        clock: HybridClock,
        timeout_s: float,
    ) -> None:
        self.retries = 0
        """Number of attempts that were repeated because their version was fenced."""
        self.repairs = 0
        """Number of reads that wrote their result back."""
        self._node_id = node_id
        self._follower = follower
        self._versions = versions
        self._send = send
        self._clock = clock
        self._timeout_s = timeout_s
        self.window_ms = confidence_ms(timeout_s)
        """Age after which no more changes of a time are acknowledged, in milliseconds."""

    async def write(
        self, name: str, write: WriteOf, consistency: Consistency, at_least: int = 0
    ) -> Written:
        """Write to the keyspace or table ``name``, by an epoch of ``at_least``.

        Raises RequestRefused if no replica has the write, and OutcomeUnknown if that is uncertain.
        """
        sent = _Sent()
        try:
            return await self._write_until_done(name, write, consistency, at_least, sent)
        except RequestRefused as refused:
            if sent.may_be_done:
                raise OutcomeUnknown(refused) from refused
            raise

    async def _write_until_done(
        self, name: str, write: WriteOf, consistency: Consistency, at_least: int, sent: _Sent
    ) -> Written:
        until, timestamp, seen = self._until(), 0, 0
        while True:
            image, made = await self._made(name, write, until, at_least)
            attempt = _attempt(image, name, made.place, until, seen)
            hold = self._hold(attempt)
            try:
                # All attempts write with the same timestamp: an earlier one may have left its cell
                # at some replicas.
                timestamp = timestamp or await self._timestamp(attempt, consistency)
                self._check_time(attempt, timestamp)
                enough = enough_writes(consistency, attempt.row)
                acks = await self._write(attempt, made.cell_at(timestamp), enough, sent=sent)
                return Written(
                    timestamp, attempt.version, image.epoch, sorted(acks), made.place.table_version
                )
            except _Again as again:
                refusal: _Again | _NewerColumns = again
            except _NewerColumns as newer:
                refusal = newer
            finally:
                self._versions.release(hold)
            # The hold was released before these waits, because a held version delays barriers.
            if isinstance(refusal, _Again):
                await self._catch_up(refusal, attempt)
            else:
                seen = refusal.version
                await self._read_up_to(seen, until)

    async def read(
        self, name: str, place: PlaceOf, consistency: Consistency, at_least: int = 0
    ) -> Found:
        """Return the merged cell of the replicas of a key of the keyspace or table ``name``.

        The request is routed by an epoch of ``at_least``. Raises RequestRefused.
        """
        until = self._until()
        while True:
            image, made = await self._made(name, place, until, at_least)
            attempt = _attempt(image, name, made, until)
            hold = self._hold(attempt)
            try:
                cell, answers = await self._read(attempt, consistency)
                break
            except _Again as again:
                refusal = again
            finally:
                self._versions.release(hold)
            await self._catch_up(refusal, attempt)
        if cell is not None:
            self._clock.see(cell.timestamp)
        newer = _newest_columns(answers)
        if newer > made.table_version:
            await self._read_up_to(newer, until)
            # The columns of another table, or of truncated data, do not fit the cell.
            if self._follower.image.schema.of_data(attempt.data_id) is not None:
                image = self._follower.image
        return Found(cell, attempt.version, attempt.image.epoch, sorted(answers), image)

    async def changes(
        self, table: str, ranges: Sequence[Range], after_us: int, upto_us: int, limit: int
    ) -> tuple[Image, list[ChangePage]]:
        """Return the pages of a quorum of each range's replicas. Raises RequestRefused.

        The times are in (``after_us``, ``upto_us``], in microseconds since 1970. The image knows
        all columns of the changes.
        """
        until = self._until()
        while True:
            image, data = await self.serving(table)
            placement = image.ring.placements[data.placement]
            pieces = [
                (range_, _of_range(image, row, data.data_id, range_, until))
                for range_ in ranges
                for row in placement.overlapping(range_)
            ]
            asked = (
                self._pages(attempt, max(range_.start, attempt.row.start), after_us, upto_us, limit)
                for range_, attempt in pieces
            )
            try:
                found = [answer for answers in await asyncio.gather(*asked) for answer in answers]
            except _Again as again:
                await self._catch_up(again, pieces[0][1])
                continue
            newer = max((answer.table_version for answer in found), default=0)
            if not newer:
                return image, [answer.changes for answer in found if answer.changes is not None]
            # Changes without the columns that this node does not know would be lost to the reader.
            await self._read_up_to(newer, until)
            if self._follower.image.epoch < newer:
                raise _behind(self._follower.image, newer)

    async def _pages(
        self, attempt: _Attempt, start: int, after_us: int, upto_us: int, limit: int
    ) -> Iterable[Answer]:
        """Return the changes with tokens in (``start``, the attempt's token], all in one row."""
        op = ReadChanges(
            version=attempt.version,
            epoch=attempt.image.epoch,
            coordinating=self._node_id,
            data_id=attempt.data_id,
            token=attempt.place.token,
            key=b"",
            start=start,
            after_us=after_us,
            upto_us=upto_us,
            limit=limit,
            table_version=attempt.table_version,
        )
        enough = enough_reads(Consistency.QUORUM, attempt.row)
        return (await self._ask(attempt, attempt.row.reads, lambda _: op, enough)).values()

    def _check_time(self, attempt: _Attempt, timestamp_us: int) -> None:
        """Refuse a change whose time no replica would take. Raises RequestRefused."""
        image, token = attempt.image, attempt.place.token
        write_ms, now_ms = timestamp_us // 1000, self._clock.now_us() // 1000
        if is_captured(image.schema, attempt.data_id):
            rejection = check_time(image, attempt.data_id, token, write_ms, now_ms, self.window_ms)
            if rejection is not None:
                raise RequestRefused(503, rejection.code, rejection.message, rejection.hint)

    def _hold(self, attempt: _Attempt) -> Hold:
        return self._versions.hold(attempt.version, attempt.data_id, attempt.place.token)

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s

    @property
    def image(self) -> Image:
        return self._follower.image

    async def serving(self, name: str) -> tuple[Image, Data]:
        """Return the newest image, and the data of this name in it. Raises RequestRefused."""
        image, _ = await self._made(name, lambda _: None, self._until(), 0)
        data = image.schema.serving(name)
        assert data is not None  # it was checked
        return image, data

    async def _made(
        self, name: str, make: Callable[[Image], T], until: float, at_least: int
    ) -> tuple[Image, T]:
        """Return the newest image, and what ``make`` returns for it. Raises RequestRefused.

        A name or column that is not known may be in records that were not read yet.
        """
        if at_least > self._follower.image.epoch:
            await self._read_up_to(at_least, until)
        image = self._follower.image
        _check_member(image, self._node_id)
        if at_least > image.epoch:
            raise _behind(image, at_least)
        try:
            _check_serving(image, name)
            return image, make(image)
        except RequestRefused:
            image = await self._newest_image()
        _check_serving(image, name)
        return image, make(image)

    async def _read_up_to(self, epoch: int, until: float) -> None:
        """Read the log up to ``epoch``, for as long as a replica would."""
        left_s = min(CATCH_UP_LIMIT_S, until - asyncio.get_running_loop().time())
        with suppress(TimeoutError, LogError):
            await self._follower.wait_for_epoch(epoch, max(0, left_s))

    async def _newest_image(self) -> Image:
        try:
            return await self._follower.wait_for_end(SCHEMA_WAIT_S)
        except (TimeoutError, LogError):
            return self._follower.image

    async def _timestamp(self, attempt: _Attempt, consistency: Consistency) -> int:
        """Return a timestamp above every write that was acknowledged before.

        The order holds even if the nodes' clocks differ. Raises _Again, _NewerColumns and RequestRefused.
        """
        if consistency is Consistency.ONE:
            return self._clock.next()
        answers = await self._ask(
            attempt,
            attempt.row.reads,
            lambda node_id: self._read_op(attempt, ReadMode.TIMESTAMP),
            enough_reads(Consistency.QUORUM, attempt.row),
        )
        newest_us = max(answer.timestamp for answer in answers.values())
        self._clock.see(newest_us)
        newer = _newest_columns(answers)
        if newer > attempt.table_version:
            raise _NewerColumns(newer)
        if is_captured(attempt.image.schema, attempt.data_id):
            # Timestamps of other tables, by a clock that is ahead, must not make changes untimely.
            return max(self._clock.now_us(), newest_us + 1)
        return self._clock.next()

    async def _write(
        self,
        attempt: _Attempt,
        cell: Cell,
        enough: Enough,
        already: Iterable[str] = (),
        sent: _Sent | None = None,
        settles: bool = False,
    ) -> set[str]:
        """Return the replicas that have the cell or a newer one, once they suffice."""
        op = Write(
            version=attempt.version,
            epoch=attempt.image.epoch,
            coordinating=self._node_id,
            data_id=attempt.data_id,
            token=attempt.place.token,
            key=attempt.place.key,
            cell=cell,
            captured=is_captured(attempt.image.schema, attempt.data_id),
            settles=settles,
            table_version=attempt.place.table_version,
        )
        to = [node_id for node_id in attempt.row.writes if node_id not in already]
        answers = await self._ask(attempt, to, lambda _: op, enough, already, sent)
        return {*answers, *already}

    async def _read(
        self, attempt: _Attempt, consistency: Consistency
    ) -> tuple[Cell | None, dict[str, Answer]]:
        """Return the merged cell, which is at a quorum, and the answers of the replicas."""
        reads, enough = attempt.row.reads, enough_reads(consistency, attempt.row)
        # One replica sends the value, the others a stamp: large values cross the network once.
        full = self._node_id if self._node_id in reads else reads[0]
        answers = await self._ask(
            attempt,
            reads,
            lambda node_id: self._read_op(
                attempt, ReadMode.CELL if node_id == full else ReadMode.STAMP
            ),
            enough,
        )
        # Replicas differ, or the value is missing: request the value from each replica that sent a
        # stamp.
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
            return None, answers
        cell = newest(cells_found)
        if consistency is not Consistency.ONE:
            have = {node_id for node_id, answer in answers.items() if answer.cell == cell}
            await self._read_repair(attempt, cell, have | _same_stamp(answers, cell))
        return cell, answers

    async def _read_repair(self, attempt: _Attempt, cell: Cell, have: set[str]) -> None:
        """Write the cell to replicas that lack it, so that no later read returns an older one."""
        enough = enough_writes(Consistency.QUORUM, attempt.row)
        if not enough(have):
            self.repairs += 1
            # A row grows column by column, and may be larger than a call between nodes.
            for piece in pieces(cell, PIECE_BYTES):
                await self._write(attempt, piece, enough, have, settles=True)

    async def _ask(
        self,
        attempt: _Attempt,
        nodes: Iterable[str],
        op_for: Callable[[str], AnyOp],
        enough: Enough,
        already: Iterable[str] = (),
        sent: _Sent | None = None,
    ) -> dict[str, Answer]:
        """Return the answers of replicas that succeeded, once they suffice.

        ``sent`` records whether some replicas may have done a write that failed. The version is
        held until the last call has ended, even if the caller returns earlier.

        Raises _Again and RequestRefused.
        """
        hold = self._hold(attempt)
        calls = {
            node_id: self._send(attempt.image, node_id, op_for(node_id), attempt.until)
            for node_id in nodes
        }
        vote = Vote(calls, enough, already=already, when_over=lambda: self._versions.release(hold))
        verdict = await vote.verdict(attempt.until)
        if verdict is VoteResult.ENOUGH:
            return {node_id: a for node_id, a in vote.answers.items() if a.done}
        if sent is not None:
            sent.may_be_done |= vote.may_be_done()
        if verdict is VoteResult.STALE:
            raise _Again(vote.newest_epoch(), vote.refused())
        raise _unavailable(attempt, vote)

    async def _catch_up(self, again: _Again, attempt: _Attempt) -> None:
        """Read the log up to the epoch of the replicas, within the request's time.

        Raises RequestRefused.
        """
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
        raise RequestRefused(
            503,
            "stale_version",
            f"Topology version {attempt.version} is fenced out and no newer one came in time.",
            "Try again, or use another node.",
            again.refused,
        )

    def _read_op(self, attempt: _Attempt, mode: ReadMode) -> Read:
        return Read(
            version=attempt.version,
            epoch=attempt.image.epoch,
            coordinating=self._node_id,
            data_id=attempt.data_id,
            token=attempt.place.token,
            key=attempt.place.key,
            mode=mode,
            table_version=attempt.place.table_version,
        )


def _of_range(
    image: Image, row: RangeReplicas, data_id: str, range_: Range, until: float
) -> _Attempt:
    """Return an attempt for the tokens that a range and a row share, with the last one as token."""
    last = min(upper_bound(range_.end), upper_bound(row.end), MAX_TOKEN)
    schema = image.schema.schemas.get(owner_of(data_id))
    version = 0 if schema is None else schema.version
    return _Attempt(image, row, data_id, KeyPlace(last, b"", version), until, version)


def _attempt(
    image: Image, name: str, place: KeyPlace, until: float, seen_version: int = 0
) -> _Attempt:
    """Choose the replicas of a key."""
    serving = image.schema.serving(name)
    assert serving is not None  # it was checked
    row = image.ring.placements[serving.placement].row_for(place.token)
    return _Attempt(
        image, row, serving.data_id, place, until, max(seen_version, place.table_version)
    )


def _newest_columns(answers: Mapping[str, Answer]) -> int:
    return max((answer.table_version for answer in answers.values()), default=0)


def _check_serving(image: Image, name: str) -> None:
    """Check that the keyspace or table serves requests. Raises RequestRefused."""
    if image.schema.serving(name) is None:
        raise _unknown(image, name)


def _behind(image: Image, wanted: int) -> RequestRefused:
    return RequestRefused(
        503,
        Code.BEHIND,
        f"This node has read the log to epoch {image.epoch}, not to table version {wanted}.",
        "Try again, or ask another node.",
    )


def _check_member(image: Image, node_id: str) -> None:
    """Check that this node is a member and not excluded. Raises RequestRefused."""
    node = image.node(node_id)
    if node is not None and node.state is NodeState.LEFT:
        raise RequestRefused(
            503,
            "node_left",
            f"Node '{node_id}' has left the cluster and serves no data.",
            "Ask another node.",
        )
    if node is not None and node.excluded:
        raise RequestRefused(
            503,
            "node_excluded",
            f"Node '{node_id}' was declared dead, and serves no data any more.",
            "Ask another node. Remove or replace this one.",
        )
    if node is None or not node.takes_part():
        raise RequestRefused(
            503,
            "unavailable",
            f"Node '{node_id}' is not a member yet.",
            "Ask another node, or wait.",
        )


def _unknown(image: Image, name: str) -> RequestRefused:
    """Return the error for a name that serves no requests."""
    found: Rejection = unknown_keyspace(name)
    keyspace = image.schema.named(name)
    if keyspace is not None and keyspace.tablets and not keyspace.dropped_version:
        found = has_no_data(name)
    elif "." in name:
        found = unknown_table(name)
    return RequestRefused(404, found.code, found.message, found.hint)


def _unavailable(attempt: _Attempt, vote: Vote) -> RequestRefused:
    """Return the error of a vote that timed out or cannot succeed."""
    facts = {"answered": ",".join(sorted(vote.done)), **vote.refused()}
    full = [n for n, answer in sorted(vote.answers.items()) if answer.code is Code.DISK_FULL]
    if full:
        return RequestRefused(
            503,
            "disk_full",
            f"The disks of {', '.join(full)} are full; the write is at {len(vote.done)} replicas.",
            "Free some space there; reads still work.",
            facts,
        )
    untimely = [n for n, answer in sorted(vote.answers.items()) if answer.code is Code.UNTIMELY]
    if untimely:
        return RequestRefused(
            503,
            "cdc_write_untimely",
            f"{', '.join(untimely)} refused the time of the write: clocks differ, or it took too long.",
            "Synchronize the clocks, then write again.",
            facts,
        )
    replicas, lacking = ", ".join(sorted(attempt.row.writes)), ", ".join(vote.lacking())
    return RequestRefused(
        503,
        "unavailable",
        f"Too few of the replicas {replicas} succeeded in time: {lacking} did not.",
        "See who is down: `stele nodes`. One replica is enough for a request at consistency ONE.",
        facts,
    )


def _agree(answers: Iterable[Answer]) -> bool:
    """Return whether all answers have the same cell, or none."""
    stamps = {stamp_of(a.cell) if a.cell is not None else a.stamp for a in answers}
    return len(stamps) == 1


def _lacks_value(answers: dict[str, Answer]) -> bool:
    """Return whether a cell exists, but the replica that should send its value has not answered."""
    found = answers.values()
    return all(a.cell is None for a in found) and any(a.stamp is not None for a in found)


def _same_stamp(answers: dict[str, Answer], cell: Cell) -> set[str]:
    stamps = {node_id: a.stamp for node_id, a in answers.items() if a.stamp is not None}
    if not stamps:
        return set()
    own = stamp_of(cell)
    return {node_id for node_id, stamp in stamps.items() if stamp == own}
