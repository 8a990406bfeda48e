"""An explicit-state search of recovery over the production chain (docs/decisions/027-recovery.md).

An old writer and its readers continue; a winner is lost, or the whole topic, or nothing; one operator or two
recover the log from an archive's epochs, in the topic as it is. Earlier reads, records in flight, and records
of the new log's writers interleave in any order. A reader is ``witness.anchored``: the production chain, with
production's verdict on a stray.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from stele.log.port import Record
from stele.log.recovery import first_recovery
from tests.models.witness import OLD_LOG, Proc, Rec, Rule, Topic, anchored

T = TypeVar("T")

NEW_LOGS = {"1": b"M" * 16, "2": b"N" * 16}
"""The log that each operator would make; both are greater than the old one."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator who recovers the log: the epochs and the end of the topic at the time of the look."""

    kept: tuple[bytes, ...] = ()
    looked: int = 0
    on_the_way: bool = False
    done: str = ""


@dataclass(frozen=True, slots=True)
class World:
    topic: Topic = ()
    written: int = 0
    faulted: bool = False
    procs: tuple[tuple[str, Proc], ...] = ()
    operators: tuple[tuple[str, Operator], ...] = ()
    started: tuple[tuple[str, Proc], ...] = ()
    """The writers of the recovered log as they were when they began."""

    def proc(self, name: str) -> Proc:
        return dict(self.procs)[name]

    def with_proc(self, name: str, proc: Proc) -> World:
        return replace(self, procs=_with(self.procs, name, proc))

    def with_operator(self, name: str, operator: Operator) -> World:
        return replace(self, operators=_with(self.operators, name, operator))


def _with(known: tuple[tuple[str, T], ...], name: str, value: T) -> tuple[tuple[str, T], ...]:
    return tuple(sorted({**dict(known), name: value}.items()))


@dataclass(frozen=True)
class Search:
    """Bounds of a search. ``fault`` is what is lost: ``winner``, ``topic``, or nothing.

    A is the old log's writer, R reads it, K is the archive, and 1 and 2 are operators. The recovered log's
    writers are N1 and N2. ``looks`` is false for operators who do not check whether they are the first.
    """

    fault: str = ""
    operators: str = "1"
    records: int = 2
    new_records: int = 1
    depth: int = 14
    rule: Rule = anchored
    looks: bool = True
    visited: list[int] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)

    def run(self, check: Callable[[World], str]) -> str:
        """Return the result of ``check`` with its trace, or an empty string within the bounds."""
        founding = Rec(bytes(16), b"F".ljust(16), OLD_LOG, bytes(16), 1, 0)
        begun = Proc(OLD_LOG, (bytes(16), founding.own), 1, anchor=0)
        start = World(
            topic=(founding,),
            procs=tuple((name, begun) for name in "AKR"),
            operators=tuple((name, Operator()) for name in self.operators),
        )
        waiting, seen = deque[tuple[World, tuple[str, ...]]]([(start, ())]), {start}
        while waiting:
            world, way = waiting.popleft()
            found = check(world)
            if found:
                return f"{found}: {'; '.join(way)}"
            if any(proc.acknowledged for name, proc in world.procs if name[0] == "N"):
                self.recovered.append("")
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
            if name[0] in "AN" and not proc.stopped:
                yield from self._writes(world, name, proc)
            if not proc.stopped and proc.position < len(world.topic):
                after = self.rule(proc, world.topic[proc.position], world.topic)
                yield f"{name} reads offset {proc.position}", world.with_proc(name, after)
            if proc.on_the_way:
                landed = replace(world, topic=(*world.topic, proc.on_the_way[0]))
                after = replace(proc, on_the_way=proc.on_the_way[1:])
                yield f"a record of {name} lands", landed.with_proc(name, after)
        if not world.faulted and len(world.topic) > 1 and not world.started:
            if self.fault == "topic":
                yield "the topic is made anew", replace(world, topic=(), faulted=True)
            if self.fault == "winner":
                lost = replace(world, topic=world.topic[:-1], faulted=True)
                yield "the last record is lost", lost
        if world.faulted or not self.fault:
            for name, operator in world.operators:
                yield from self._recovers(world, name, operator)

    def _writes(self, world: World, name: str, proc: Proc) -> Iterator[tuple[str, World]]:
        new = name[0] == "N"
        written = sum(rec.own[:2] == name.encode() for rec in world.topic)
        if new and written + len(proc.on_the_way) + len(proc.chained) >= self.new_records:
            return
        if not new and world.written >= self.records:
            return
        own = f"{name}{world.written}".encode().ljust(16)
        tip = proc.chained[-1] if proc.chained else proc.states[-1]
        number = proc.epoch + len(proc.chained) + 1
        rec = Rec(tip, own, proc.log, proc.states[-1], number, proc.epoch)
        after = replace(proc, chained=(*proc.chained, own), on_the_way=(*proc.on_the_way, rec))
        counted = world if new else replace(world, written=world.written + 1)
        yield f"{name} writes {own.strip().decode()}", counted.with_proc(name, after)

    def _recovers(self, world: World, name: str, operator: Operator) -> Iterator[tuple[str, World]]:
        """Yield the steps of ``stele.log.recovery``: look, append, look again, begin."""
        if operator.done:
            return
        archive = world.proc("K").states
        if not operator.kept:
            found = replace(operator, kept=archive, looked=len(world.topic), on_the_way=True)
            if self.looks and _first(world.topic) is not None:
                found = replace(found, looked=0, on_the_way=False)
            yield f"{name} looks", world.with_operator(name, found)
            return
        if operator.on_the_way:
            landed = replace(world, topic=(*world.topic, recovery_by(name, operator.kept)))
            after = replace(operator, on_the_way=False)
            yield f"the recovery by {name} lands", landed.with_operator(name, after)
        seen = world.topic[operator.looked :]
        offset = _first(seen) if self.looks else _own(seen, NEW_LOGS[name])
        if offset is not None:
            yield from self._begins(world, name, operator, operator.looked + offset)

    @staticmethod
    def _begins(
        world: World, name: str, operator: Operator, offset: int
    ) -> Iterator[tuple[str, World]]:
        rec = world.topic[offset]
        kept = operator.kept[: rec.epoch]
        fits = len(kept) == rec.epoch and kept[-1] == rec.prev
        after = world.with_operator(name, replace(operator, done="begun" if fits else "given up"))
        if fits:
            proc = Proc(rec.log, (*kept, rec.own), offset + 1, anchor=offset)
            after = replace(
                after.with_proc(f"N{name}", proc), started=_with(after.started, f"N{name}", proc)
            )
        yield f"{name} takes the recovery at {offset}", after


def recovery_by(name: str, kept: tuple[bytes, ...]) -> Rec:
    """Return the first record of an operator's log."""
    own, last = f"O{name}".encode().ljust(16), len(kept) - 1
    return Rec(kept[-1], own, NEW_LOGS[name], kept[-1], last + 1, last, recovers=OLD_LOG)


def _first(topic: Topic) -> int | None:
    """Return the recovery that wins by production's rules."""
    found = first_recovery((Record(n, rec.value()) for n, rec in enumerate(topic)), OLD_LOG)
    return None if found is None else found.offset


def _own(topic: Topic, log: bytes) -> int | None:
    return next((n for n, rec in enumerate(topic) if rec.recovers and rec.log == log), None)


# Forbidden states.


def mixed(world: World) -> str:
    """Return a process whose history has given-up epochs of the old log and epochs of the new log."""
    logs = {rec.own: rec.log for rec in world.topic}
    for name, proc in world.procs:
        first = next(
            (n for n, s in enumerate(proc.states) if logs.get(s, OLD_LOG) != OLD_LOG), None
        )
        rest = [] if first is None else [logs.get(state) for state in proc.states[first:]]
        if len({*rest}) > 1:
            return f"{name} follows two logs"
        if rest and proc.log == OLD_LOG:
            return f"{name} follows the recovered log as if it were the old one"
    return ""


def went_past(world: World) -> str:
    """Return a reader of the old log that has read past the recovery in the same topic."""
    offset = _first(world.topic)
    if offset is None:
        return ""
    past = [
        name
        for name, proc in world.procs
        if proc.log == OLD_LOG and proc.position > offset and not _stood_behind(world, proc, offset)
    ]
    return f"{past[0]} went past the recovery" if past else ""


def _stood_behind(world: World, proc: Proc, offset: int) -> bool:
    """Return whether the process lost what it had read and has read nothing since the recovery."""
    there = {rec.own for rec in world.topic}
    return any(state not in there for state in proc.states[1:])


def acknowledged_behind(world: World) -> str:
    """Return the records behind the recovery that the old writer acknowledged."""
    offset = _first(world.topic)
    behind = {rec.own for rec in world.topic[offset:]} if offset is not None else set[bytes]()
    late = behind & {*world.proc("A").acknowledged}
    return f"A acknowledged {sorted(late)}" if late else ""


def two_logs(world: World) -> str:
    """Return whether two recovered logs are written in parallel."""
    logs = {proc.log for _, proc in world.started}
    return "two recovered logs are written" if len(logs) > 1 else ""


def new_lost(world: World) -> str:
    """Return an acknowledged epoch of the recovered log that a reader of its snapshot does not find."""
    for name, start in world.started:
        fresh = start
        while fresh.position < len(world.topic) and not fresh.stopped:
            fresh = anchored(fresh, world.topic[fresh.position], world.topic)
        writer = world.proc(name)
        if writer.stopped or fresh.stopped:
            return f"{name} or who comes after it stopped by {writer.stopped or fresh.stopped}"
        if not {*writer.acknowledged} <= {*fresh.states}:
            return f"{name} acknowledged what the log does not hold"
    return ""


def anything(world: World) -> str:
    """Return the first forbidden state."""
    return (
        mixed(world)
        or went_past(world)
        or acknowledged_behind(world)
        or two_logs(world)
        or new_lost(world)
    )
