"""Collecting the answers of replicas until they suffice, cannot suffice any more, or time is up."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from typing import Final

from stele.agent.codes import Code
from stele.domain.ring.quorum import read_satisfied, write_satisfied
from stele.domain.ring.ranges import RangeReplicas
from stele.node.wire import Answer

Enough = Callable[[set[str]], bool]


class Consistency(StrEnum):
    """How many replicas a request waits for. Only quorum reads and writes see each other for certain."""

    ONE = "one"
    QUORUM = "quorum"
    ALL = "all"


class Verdict(StrEnum):
    ENOUGH = "enough"
    STALE = "stale"  # a replica has fenced the version out: read the log, route again
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


SURELY_NOT_DONE: Final = frozenset({Code.BEHIND, Code.NOT_A_REPLICA, Code.DISK_FULL})
"""Answers that a replica gives only when nothing was written. Others may come after the effect: a version
may be fenced out while a write waits for the disk, and a call that breaks off may have arrived."""


class Vote:
    """One round of calls, by node id. ``when_over`` is called once the last of them has ended."""

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
        self._verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        for node_id, call in calls.items():
            call.add_done_callback(partial(self._on_end, node_id))
        self._judge(None)
        if not calls:
            when_over()

    async def verdict(self, until: float) -> Verdict:
        """``until`` is loop time."""
        try:
            async with asyncio.timeout_at(until):
                return await asyncio.shield(self._verdict)
        except TimeoutError:  # what was answered in the very turn counts
            return self._verdict.result() if self._verdict.done() else Verdict.TIME_UP

    def refused(self) -> dict[str, str]:
        """Why replicas did not do it, for people: node id -> code and text."""
        found = {n: f"{a.code}: {a.text}" for n, a in sorted(self.answers.items()) if not a.done}
        return {**found, **dict.fromkeys(sorted(self._waiting), "did not answer in time")}

    def lacking(self) -> list[str]:
        """Those who refused or failed; when nobody did, those who have not answered."""
        return sorted(n for n, a in self.answers.items() if not a.done) or sorted(self._waiting)

    def may_be_done(self) -> bool:
        """Could any replica have done it, or do it yet?"""
        answers = self.answers.values()
        return bool(self._waiting) or any(a.code not in SURELY_NOT_DONE for a in answers)

    def newest_epoch(self) -> int:
        """An epoch that those who refused asked to be read first."""
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
        if self._enough(self.done):
            self._verdict.set_result(Verdict.ENOUGH)
        elif code is Code.STALE_VERSION or code is Code.NOT_A_REPLICA:
            self._verdict.set_result(Verdict.STALE)
        elif not self._enough(self.done | self._waiting):
            self._verdict.set_result(Verdict.IMPOSSIBLE)


def _answer_of(ended: asyncio.Future[Answer]) -> Answer:
    if ended.cancelled():
        return Answer(Code.FAILED, text="cancelled")
    error = ended.exception()
    return Answer(Code.FAILED, text=repr(error)) if error is not None else ended.result()
