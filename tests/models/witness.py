"""An explicit-state search of docs/design.md, rule 11, over the production chain.

Writers pipeline records, which land in any interleaving with the reads of all processes. One fault happens at
any point. ``search`` visits every reachable world within its bounds and returns the first that ``check``
rejects. The winner rule is ``stele.log.chain.Chain`` itself. The rule of the anchor is written out here
(``anchored``), as is the earlier rule: stop at every unknown witness or foreign log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from stele.domain.facts import Epoch
from stele.domain.model.cluster import LogRecovered
from stele.log.chain import FROZEN, STOPS, Chain, Verdict
from stele.log.codec import encode_epoch
from stele.log.errors import RecoveredError
from stele.log.fold import check_stray
from stele.log.schemas import HEADER_BYTES, load_schemas

OLD_LOG, NEW_LOG = b"L" * 16, b"M" * 16
ZERO = bytes(16)


@dataclass(frozen=True, slots=True)
class Rec:
    """The frozen part of a record. For the first record of a recovered log it includes the base."""

    prev: bytes
    own: bytes
    log: bytes
    witness: bytes
    epoch: int
    witness_epoch: int
    recovers: bytes = b""

    def value(self) -> bytes:
        if self.recovers:
            return recovery_value(self)
        body = FROZEN.pack(
            self.prev, self.own, self.log, self.witness, self.epoch, self.witness_epoch
        )
        return load_schemas().headers["Epoch"] + body[HEADER_BYTES:]


@cache
def recovery_value(rec: Rec) -> bytes:
    """Return a whole record, since it must be decoded."""
    fact = LogRecovered(
        from_log_id=rec.recovers.hex(),
        last_epoch=rec.epoch - 1,
        state_id=rec.prev.hex(),
        log_id=rec.log.hex(),
        topic_id="",
        known_epoch=rec.epoch - 1,
        version_floor=0,
    )
    return encode_epoch(
        Epoch(
            prev_state_id=rec.prev,
            state_id=rec.own,
            log_id=rec.log,
            witness_state_id=rec.witness,
            epoch=rec.epoch,
            witness_epoch=rec.witness_epoch,
            request_id="",
            command="recover",
            facts=(fact,),
        )
    )


Topic = tuple[Rec, ...]


@dataclass(frozen=True, slots=True)
class Proc:
    """A process. Only the deciding part of its chain is kept, so that equal worlds are identical."""

    log: bytes
    states: tuple[bytes, ...] = (ZERO,)
    """State ids of all its epochs."""
    position: int = 0
    chained: tuple[bytes, ...] = ()
    """State ids in flight: decided on top of each other, not met yet."""
    on_the_way: Topic = ()
    acknowledged: tuple[bytes, ...] = ()
    anchor: int = -1
    stopped: str = ""

    @property
    def epoch(self) -> int:
        return len(self.states) - 1


@dataclass(frozen=True, slots=True)
class World:
    topic: Topic = ()
    written: int = 0
    faulted: bool = False
    procs: tuple[tuple[str, Proc], ...] = ()

    def proc(self, name: str) -> Proc:
        return dict(self.procs)[name]

    def with_proc(self, name: str, proc: Proc) -> World:
        return replace(self, procs=tuple(sorted({**dict(self.procs), name: proc}.items())))


def judge(proc: Proc, rec: Rec) -> Verdict:
    """Return production's verdict on the record."""
    return chain_of(proc).judge(proc.position, rec.value())


def chain_of(proc: Proc) -> Chain:
    chain = Chain(proc.log, 0, ZERO, proc.position)
    for epoch, state in enumerate(proc.states[1:], start=1):
        before = proc.states[epoch - 1]
        won = Rec(before, state, proc.log, ZERO, epoch, 0)
        chain.win(proc.position - 1, won.value())
    return chain


Rule = Callable[[Proc, Rec, Topic], Proc]


def replaced(proc: Proc, rec: Rec, topic: Topic) -> Proc:
    """The earlier rule: every foreign log id or unknown witness stops the reader."""
    verdict = judge(proc, rec)
    if verdict in (Verdict.STRAY, *STOPS):
        return replace(proc, stopped=verdict)
    return _past(proc, rec, verdict)


def anchored(proc: Proc, rec: Rec, topic: Topic) -> Proc:
    """The rule: the anchor resolves a suspicion. A stray is then skipped, unless it ends the log.

    An own record is also a suspicion: a process that acknowledges must have looked since the fault.
    """
    verdict = judge(proc, rec)
    own = bool(proc.chained) and proc.chained[0] == rec.own
    if (verdict in (Verdict.STRAY, *STOPS) or own) and _anchor_lost(proc, topic):
        return replace(proc, stopped="anchor")
    if verdict in STOPS:
        return replace(proc, stopped=verdict)
    if verdict is Verdict.STRAY:
        try:
            check_stray(chain_of(proc), proc.position, rec.value())
        except RecoveredError:
            return replace(proc, stopped="recovered")
    return _past(proc, rec, verdict)


def _anchor_lost(proc: Proc, topic: Topic) -> bool:
    if proc.anchor < 0:
        return False
    return proc.anchor >= len(topic) or topic[proc.anchor].own != proc.states[-1]


def _past(proc: Proc, rec: Rec, verdict: Verdict) -> Proc:
    after = replace(proc, position=proc.position + 1)
    if verdict is not Verdict.WINNER:
        return after
    states = (*proc.states, rec.own)
    after = replace(after, states=states, anchor=proc.position, log=rec.log)
    if proc.chained and proc.chained[0] == rec.own:
        return replace(after, chained=proc.chained[1:], acknowledged=(*proc.acknowledged, rec.own))
    return replace(after, chained=())


@dataclass(frozen=True)
class Search:
    """Bounds of a search, its rule and its fault."""

    rule: Rule
    fault: str = ""
    writers: str = "A"
    records: int = 4
    depth: int = 13
    visited: list[int] = field(default_factory=list)

    def run(self, check: Callable[[World], str]) -> str:
        """Return the result of ``check`` with its trace, or an empty string within the bounds."""
        names = (*self.writers, "R")
        start = World(procs=tuple((name, Proc(OLD_LOG)) for name in sorted(names)))
        waiting, seen = deque[tuple[World, tuple[str, ...]]]([(start, ())]), {start}
        while waiting:
            world, way = waiting.popleft()
            found = check(world)
            if found:
                return f"{found}: {'; '.join(way)}"
            if len(way) >= self.depth:
                continue
            for what, after in self._steps(world):
                if after not in seen:
                    seen.add(after)
                    waiting.append((after, (*way, what)))
        self.visited.append(len(seen))
        return ""

    def _steps(self, world: World) -> Iterator[tuple[str, World]]:
        for name, proc in world.procs:
            if not proc.stopped:
                yield from self._writes(world, name, proc)
                yield from self._reads(world, name, proc)
            yield from self._lands(world, name, proc)
        if not world.faulted and world.topic:
            if self.fault == "recreate":
                anew = replace(world, topic=(), faulted=True)
                yield "the topic is made anew", anew.with_proc("N", Proc(NEW_LOG))
            if self.fault == "truncate":
                yield (
                    "the last record is lost",
                    replace(world, topic=world.topic[:-1], faulted=True),
                )

    def _writes(self, world: World, name: str, proc: Proc) -> Iterator[tuple[str, World]]:
        if name == "R" or world.written >= self.records or len(proc.on_the_way) >= 2:
            return
        own = f"{name}{world.written}".encode().ljust(16)
        tip = proc.chained[-1] if proc.chained else proc.states[-1]
        number = proc.epoch + len(proc.chained) + 1
        rec = Rec(tip, own, proc.log, proc.states[-1], number, proc.epoch)
        after = replace(proc, chained=(*proc.chained, own), on_the_way=(*proc.on_the_way, rec))
        yield (
            f"{name} writes {own.strip().decode()}",
            replace(world, written=world.written + 1).with_proc(name, after),
        )

    def _lands(self, world: World, name: str, proc: Proc) -> Iterator[tuple[str, World]]:
        if not proc.on_the_way:
            return
        rec, after = proc.on_the_way[0], replace(proc, on_the_way=proc.on_the_way[1:])
        text = f"{rec.own.strip().decode()} lands"
        landed = replace(world, topic=(*world.topic, rec))
        yield text, landed.with_proc(name, after)
        if self.fault == "twice" and not world.faulted:
            yield f"{text}, to land again", replace(landed, faulted=True)

    def _reads(self, world: World, name: str, proc: Proc) -> Iterator[tuple[str, World]]:
        if proc.position >= len(world.topic):
            return
        rec = world.topic[proc.position]
        after = self.rule(proc, rec, world.topic)
        yield f"{name} reads {rec.own.strip().decode()}", world.with_proc(name, after)


def false_alarm(world: World) -> str:
    """Return a process that stopped although nothing was lost."""
    return next((f"{name} stopped by {p.stopped}" for name, p in world.procs if p.stopped), "")


def acknowledged_and_lost(world: World) -> str:
    """Return whether A acknowledged a record that is in the topic and no winner there."""
    winners, newest = set[bytes](), ZERO
    for rec in world.topic:
        if rec.prev == newest and rec.log == _log(world):
            newest = rec.own
            winners.add(newest)
    there = {rec.own for rec in world.topic}
    lost = [s for s in world.proc("A").acknowledged if world.faulted and s in there - winners]
    return f"A acknowledged {lost[0]!r}" if lost else ""


def poisoned(rule: Rule) -> Callable[[World], str]:
    """Return a check that a fresh reader of a new log stops at a record of an old writer."""

    def check(world: World) -> str:
        if not world.faulted or not world.proc("N").acknowledged:
            return ""
        proc = Proc(NEW_LOG)
        for rec in world.topic:
            proc = rule(proc, rec, world.topic)
            if proc.stopped:
                return f"a fresh replay stops by {proc.stopped}"
        return ""

    return check


def _log(world: World) -> bytes:
    return NEW_LOG if any(name == "N" for name, _ in world.procs) else OLD_LOG
