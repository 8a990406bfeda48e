"""The memory of decided requests: id -> the epochs that may have decided it, in bounded space.

Decisions are kept in generations of about 65,536. The young one is a table of ids. A full one is
sealed: sorted 8-byte entries, 40 bits of the id's hash above 24 bits of the epoch's distance from a
base. A sealed generation gives candidates, and the candidate's own record confirms or refutes the
match.

Above the limit the oldest generation is forgotten. The horizon then rises to the newest time inside
its ids. An unknown id at or below the horizon may have been decided, so it can never be decided
again.

Adjacent sealed generations are merged into few runs, because each run costs a search. The runs are
no part of the state: memories are equal if their generations are equal (docs/design.md, rule 4).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from stele.domain.commands import Envelope, Outcome, Rejection, command_name
from stele.domain.facts import Epoch
from stele.domain.model.requests import (
    GENERATIONS,
    TIME_CHARS,
    CommandRefused,
    DecidedFact,
    DecidedGeneration,
    DecidedRequests,
    is_id,
    time_ms,
)
from stele.domain.registry_entry import Domain

GENERATION: Final = 65_536
"""Decisions after which a generation is sealed, at the end of an epoch. Part of the
log's format.
"""

PLACE_BITS: Final = 24
_SPAN: Final = 1 << PLACE_BITS
_PLACE: Final = np.uint64(_SPAN - 1)
_HASH_BYTES: Final = 5
_MERGE: Final = 8
"""Generations that the newest run collects before it is merged into the old one.

64 MiB are thus copied once in half a million decisions. Fewer than this many generations stay in
memory after they are forgotten.
"""
_BUCKET: Final = 64
"""Entries of a run that share an entry of its table of contents."""

Entries = NDArray[np.uint64]


class SealedGeneration(NamedTuple):
    """A sealed generation: it holds the decisions of the epochs after ``base`` up to ``last``."""

    base: int
    last: int
    newest_ms: int


class Run:
    """Entries of one or more generations, sorted, with places counted from ``base``."""

    __slots__ = ("_shift", "_starts", "_view", "base", "entries", "generations", "last")

    def __init__(self, base: int, last: int, entries: Entries, generations: int) -> None:
        self.base = base
        self.last = last
        self.entries = entries
        self.generations = generations
        self._view = entries.data
        bits = max(0, (len(entries) // _BUCKET).bit_length())
        self._shift = _HASH_BYTES * 8 - bits
        self._starts: memoryview | None = None

    def _table(self) -> memoryview:
        """Return where each bucket begins.

        Built at the first search, since most runs are merged before.
        """
        entries, bits = self.entries, _HASH_BYTES * 8 - self._shift
        bounds = np.arange((1 << bits) + 1, dtype=np.uint64) << np.uint64(64 - bits if bits else 0)
        starts = np.searchsorted(entries, bounds).astype(np.uint32)
        starts[-1] = len(entries)  # the last bound does not fit into 64 bits
        self._starts = starts.data
        return self._starts

    def epochs_of(self, hashed: int) -> Iterator[int]:
        bucket = hashed >> self._shift
        view, starts = self._view, self._starts or self._table()
        end = starts[bucket + 1]
        # Entries are sorted by hash, then by place. All entries of this hash follow the one found
        # here.
        at = bisect_left(view, hashed << PLACE_BITS, starts[bucket], end)
        while at < end and view[at] >> PLACE_BITS == hashed:
            yield self.base + (view[at] & (_SPAN - 1))
            at += 1

    def after(self, base: int) -> Entries:
        """Return the entries of the epochs after ``base``, with places counted from ``base``."""
        if base <= self.base:
            more = np.uint64(self.base - base)
            return self.entries + more if more else self.entries
        low = base - self.base
        found: Entries = self.entries[self.entries & _PLACE > low]
        return found - np.uint64(low)

    def parted(self, generations: Sequence[SealedGeneration]) -> Iterator[Entries]:
        """Yield the entries of each of these adjacent generations, with places counted from its
        base.
        """
        bounds = [generations[0].base, *(each.last for each in generations)]
        places = (self.entries & _PLACE).astype(np.uint32)
        inside = np.array([bound - self.base for bound in bounds], np.int64).clip(0)
        numbers = np.searchsorted(inside.astype(np.uint32), places).astype(np.uint16)
        order = np.argsort(numbers, kind="stable")  # a radix sort, which leaves each part sorted
        ends = np.cumsum(np.bincount(numbers, minlength=len(bounds) + 1))
        for at, generation in enumerate(generations):
            part = self.entries[order[ends[at] : ends[at + 1]]]
            yield part + np.uint64((self.base - generation.base) % (1 << 64))


class Young(msgspec.Struct, frozen=True, eq=False):
    """Ids of the newest decisions. Later versions of one memory share a table that only grows.

    A version covers the epochs up to its ``last``. Appending to an older version copies the table.
    """

    base: int = 0
    last: int = 0
    newest: str = ""
    """The first characters of the newest id: its time."""
    size: int = 0
    table: dict[str, int] = {}

    @property
    def newest_ms(self) -> int:
        return time_ms(self.newest) if self.newest else 0

    def epoch_of(self, request_id: str) -> int | None:
        entry = self.table.get(request_id)
        if entry is None:
            return None
        epoch = self.base + (entry & (_SPAN - 1))
        return epoch if epoch <= self.last else None

    def with_decisions(self, request_ids: Iterable[str], epoch: int) -> Young:
        base, table, newest = self.base, self.table, self.newest
        # Another version has added to the shared table. Its entries are not decisions of this
        # history, so this version copies the older ones.
        if len(table) != self.size:
            table = {i: e for i, e in table.items() if base + (e & (_SPAN - 1)) <= self.last}
        fresh = [request_id for request_id in request_ids if request_id not in table]
        if not fresh:
            return self
        if not table:
            base = epoch - 1
        for request_id in fresh:
            table[request_id] = hash_of(request_id) << PLACE_BITS | epoch - base
            # Only canonical ids have a time. Another text would raise the horizon to an arbitrary
            # value.
            if request_id[:TIME_CHARS] > newest and is_id(request_id):
                newest = request_id[:TIME_CHARS]
        return Young(base, epoch, newest, len(table), table)

    def entries(self) -> Entries:
        values = [e for e in self.table.values() if self.base + (e & (_SPAN - 1)) <= self.last]
        found = np.array(values, dtype=np.uint64)
        found.sort()
        return found

    def epochs(self) -> dict[str, int]:
        """Return id -> epoch, sorted by id."""
        found = sorted(i for i in self.table if self.epoch_of(i) is not None)
        return {i: self.base + (self.table[i] & (_SPAN - 1)) for i in found}


class RequestMemory(msgspec.Struct, frozen=True, eq=False):
    """The decided requests. Immutable, and equal in every process that folded the same epochs."""

    young: Young = Young()
    generations: tuple[SealedGeneration, ...] = ()
    runs: tuple[Run, ...] = ()
    floor: int = 0
    """The last epoch whose decisions are forgotten."""
    horizon_ms: int = -1
    """An unknown id of this time or an older one may have been decided."""

    def candidates(self, request_id: str) -> tuple[int, ...]:
        """Return the epochs that may have decided this id, newest first.

        Usually there is one or none.
        """
        young = self.young.epoch_of(request_id)
        found: tuple[int, ...] = () if young is None else (young,)
        if not self.runs:
            return found
        # Hashes have 40 bits, so a run may return epochs of other ids. The epoch's record decides.
        hashed, floor = hash_of(request_id), self.floor
        for run in reversed(self.runs):
            for epoch in run.epochs_of(hashed):
                if epoch > floor:
                    found += (epoch,)
        return found

    def with_decisions(
        self, request_ids: Iterable[str], epoch: int, limit: int = GENERATIONS.default
    ) -> RequestMemory:
        """Return the memory after ``epoch``, which decided ``request_ids``.

        ``limit`` is the number of sealed generations.
        """
        # The place of an epoch must fit into 24 bits, so a sparse generation is sealed early.
        if self.young.size and epoch - self.young.base >= _SPAN:
            return self._sealed(limit).with_decisions(request_ids, epoch, limit)
        memory = replace(self, young=self.young.with_decisions(request_ids, epoch))
        return RequestMemory._sealed(memory, limit) if memory.young.size >= GENERATION else memory

    def limited(self, limit: int) -> RequestMemory:
        """Return the memory without the oldest generations above the limit."""
        excess = len(self.generations) - limit
        if excess <= 0:
            return self
        gone, kept = self.generations[:excess], self.generations[excess:]
        horizon_ms = max(self.horizon_ms, *(generation.newest_ms for generation in gone))
        floor = gone[-1].last
        # A run may still hold entries up to the floor. ``candidates`` skips them, so no run is
        # copied here.
        runs = tuple(run for run in self.runs if run.last > floor)
        return RequestMemory(self.young, kept, runs, floor, horizon_ms)

    def sealed(self) -> Iterator[tuple[SealedGeneration, Entries]]:
        """Yield each sealed generation as a snapshot holds it, the oldest first."""
        for run in self.runs:
            own = [g for g in self.generations if run.base <= g.base < run.last]
            if own:
                yield from zip(own, run.parted(own), strict=True)

    def with_generation(self, generation: SealedGeneration, entries: Entries) -> RequestMemory:
        """Return the memory with a sealed generation that is younger than all others."""
        run = Run(generation.base, generation.last, entries, 1)
        return replace(
            self,
            generations=(*self.generations, generation),
            runs=merged((*self.runs, run), self.floor),
        )

    def _sealed(self, limit: int) -> RequestMemory:
        young = self.young
        generation = SealedGeneration(young.base, young.last, young.newest_ms)
        # One generation below the limit leaves room for the one that is added next.
        empty = replace(self, young=Young(young.last, young.last, table={}))
        rest = empty.limited(max(0, limit - 1))
        return rest.with_generation(generation, young.entries())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RequestMemory):
            return NotImplemented
        # Runs may be merged differently in equal memories, so the generations are compared.
        return self is other or (
            (self.floor, self.horizon_ms, self.generations)
            == (other.floor, other.horizon_ms, other.generations)
            and self.young.epochs() == other.young.epochs()
            and all(
                np.array_equal(own, others)
                for (_, own), (_, others) in zip(self.sealed(), other.sealed(), strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]


def restored(young: Mapping[str, int], floor: int, horizon_ms: int) -> RequestMemory:
    """Return a memory with the newest decisions of a snapshot. Its sealed generations follow."""
    table, epochs = Young(floor, floor, table={}), sorted({*young.values()})
    ids: dict[int, list[str]] = {epoch: [] for epoch in epochs}
    for request_id, epoch in young.items():
        ids[epoch].append(request_id)
    # Epochs in order, so that the base and the last epoch of the young generation are as before.
    for epoch in epochs:
        table = table.with_decisions(sorted(ids[epoch]), epoch)
    return RequestMemory(table, floor=floor, horizon_ms=horizon_ms)


def hash_of(request_id: str) -> int:
    """Return 40 bits of the id's hash, equal in every process."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=_HASH_BYTES).digest(), "big")


def merged(runs: tuple[Run, ...], floor: int) -> tuple[Run, ...]:
    """Join the last run with the one before it while that one collects.

    A full run joins the old one.
    """
    if len(runs) > 1 and runs[-2].generations < _MERGE:
        runs = _join_last_two(runs, floor)
    if len(runs) > 1 and runs[-1].generations >= _MERGE:
        runs = _join_last_two(runs, floor)
    return runs


def _join_last_two(runs: tuple[Run, ...], floor: int) -> tuple[Run, ...]:
    """Join the last two runs, without forgotten entries.

    Return them unchanged if their epochs are too far apart for 24 bits.
    """
    one, two = runs[-2:]
    base = max(one.base, floor)
    if two.last - base >= _SPAN:
        return runs
    entries = np.concatenate((one.after(base), two.after(base)))
    entries.sort(kind="stable")  # two sorted halves: one pass
    run = Run(base, two.last, entries, one.generations + two.generations)
    return (*runs[:-2], run)


# The requests that an epoch decided: the one that it applies, and those that it refused.


MAX_TEXT_CHARS = 4096
"""Longest text of a refusal in the log, in characters. A longer one is cut."""


class RequestDecision(msgspec.Struct, frozen=True):
    """The outcome of a request; ``digest`` identifies the command."""

    request_id: str
    digest: bytes
    outcome: Outcome


def decided_ids(epoch: Epoch) -> list[str]:
    """Return the ids of the requests that an epoch decided."""
    found = [fact.request_id for fact in epoch.facts if type(fact) is CommandRefused]
    if epoch.request_id:
        found.append(epoch.request_id)
    return found


def decisions_of(epoch: Epoch) -> dict[str, RequestDecision]:
    """Return an epoch's decisions by request id, with their outcomes as callers receive them."""
    found = {
        fact.request_id: RequestDecision(fact.request_id, fact.digest, _refused(epoch, fact))
        for fact in epoch.facts
        if type(fact) is CommandRefused
    }
    if epoch.request_id:
        outcome = Outcome(
            request_id=epoch.request_id,
            applied=True,
            epoch=epoch.epoch,
            state_id=epoch.state_id,
            log_id=epoch.log_id,
        )
        found[epoch.request_id] = RequestDecision(epoch.request_id, epoch.command_digest, outcome)
    return found


def refusal(envelope: Envelope, digest: bytes, rejection: Rejection) -> CommandRefused:
    """Return a refusal as the fact that the log keeps."""
    return CommandRefused(
        request_id=envelope.request_id,
        digest=digest,
        command=command_name(envelope.command),
        code=rejection.code,
        message=_cut(rejection.message),
        hint=_cut(rejection.hint),
        details={name: _cut(text) for name, text in rejection.details.items()},
        actor=_cut(envelope.actor),
        reason=_cut(envelope.reason),
        origin=_cut(envelope.origin),
    )


def rejection_of(fact: CommandRefused) -> Rejection:
    """Return a refusal as its caller receives it."""
    return Rejection(fact.code, fact.message, fact.hint, fact.details)


def _refused(epoch: Epoch, fact: CommandRefused) -> Outcome:
    return Outcome(
        request_id=fact.request_id,
        applied=False,
        epoch=epoch.epoch,
        state_id=epoch.state_id,
        rejection=rejection_of(fact),
        log_id=epoch.log_id,
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"


# The domain of decided requests: one id has one outcome (docs/design.md, rule 4).
#
# A process that never decides does not keep this domain, so it is not part of the shared state.


Memory = RequestMemory | None


def command_refused(memory: Memory, _: CommandRefused) -> Memory:
    """Change nothing: ``remember`` notes the epoch, and no other state depends on a refusal."""
    return memory


def decided_generation(memory: Memory, fact: DecidedGeneration) -> Memory:
    entries = np.frombuffer(fact.entries, dtype="<u8").astype(np.uint64)
    generation = SealedGeneration(fact.base, fact.last, fact.newest_ms)
    return (memory or RequestMemory()).with_generation(generation, entries)


def decided_requests(_: Memory, fact: DecidedRequests) -> Memory:
    return restored(fact.young, fact.floor, fact.horizon_ms)


def remember(memory: RequestMemory, epoch: Epoch, limit: int) -> RequestMemory:
    """Return the memory after an epoch; ``limit`` generations are kept."""
    request_ids = decided_ids(epoch)
    if request_ids:
        memory = memory.with_decisions(request_ids, epoch.epoch, limit)
    # The limit may have been lowered by an epoch that decided no request.
    return memory.limited(limit)


def to_facts(memory: Memory) -> Iterable[DecidedFact]:
    if memory is None:
        return
    yield DecidedRequests(memory.floor, memory.horizon_ms, memory.young.epochs())
    for generation, entries in memory.sealed():
        yield DecidedGeneration(*generation, entries.astype("<u8").tobytes())


# The domain has no view: the history of epochs shows refusals.
DOMAIN = Domain(
    name="decided",
    empty=RequestMemory(),
    shared=False,
    apply={
        CommandRefused: command_refused,
        DecidedGeneration: decided_generation,
        DecidedRequests: decided_requests,
    },
    to_facts=to_facts,
)
