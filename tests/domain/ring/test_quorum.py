"""Quorums intersect: proved by going through all of them (seed 001, quorum intersection simulator).

Only sizes matter, so old replicas are o0, o1, … and new ones keep the first few of them.
"""

from collections.abc import Iterable, Iterator, Set
from itertools import combinations, product

import pytest

from stele.domain.ring.quorum import (
    MAX_SHRINK,
    acks_needed,
    quorum_of,
    read_satisfied,
    write_satisfied,
)
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.transition import TransitionRow, stream_sources

RFS = range(1, 6)


def moves() -> list[TransitionRow]:
    """Every way for a range of 1 to 5 replicas to change some of them, and one in number."""
    found = []
    for rf in RFS:
        old = tuple(f"o{i}" for i in range(rf))
        for size in (rf - MAX_SHRINK, rf, rf + 1):
            for kept in range(min(rf, size) + 1):
                # What is kept stands behind what comes, as after a join.
                coming = tuple(f"n{i}" for i in range(size - kept))
                if size:
                    found.append(TransitionRow(0, 10, old, (*coming, *old[:kept])))
    return found


def row(reads: Iterable[str], writes: Iterable[str]) -> RangeReplicas:
    return RangeReplicas(0, 10, tuple(reads), tuple(writes))


def steps_of(move: TransitionRow) -> list[RangeReplicas]:
    union = dict.fromkeys((*move.old, *move.new))
    return [
        row(move.old, move.old),
        row(move.old, union),
        row(move.new, union),
        row(move.new, move.new),
    ]


def least_acks(step: RangeReplicas) -> Iterator[Set[str]]:
    """All smallest sets that satisfy a write; larger ones can only meet more."""
    for acks in map(frozenset, combinations(step.writes, acks_needed(step))):
        assert write_satisfied(acks, step)
        yield acks


def read_quorums(replicas: tuple[str, ...]) -> list[Set[str]]:
    return [frozenset(c) for c in combinations(replicas, quorum_of(len(replicas)))]


def name(move: TransitionRow) -> str:
    return f"{','.join(move.old)}->{','.join(move.new)}"


@pytest.mark.parametrize(("replicas", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_quorum_is_a_majority(replicas: int, quorum: int) -> None:
    assert quorum_of(replicas) == quorum


@pytest.mark.parametrize("move", moves(), ids=name)
def test_what_is_acknowledged_at_one_step_is_read_at_the_steps_next_to_it(
    move: TransitionRow,
) -> None:
    """Coordinators may be a step apart, either way, and may be at the same step."""
    steps = steps_of(move)
    for i, j in product(range(len(steps)), repeat=2):
        if abs(i - j) <= 1:
            for acks, quorum in product(least_acks(steps[i]), read_quorums(steps[j].reads)):
                assert acks & quorum


def test_a_quorum_of_the_readers_alone_would_lose_writes() -> None:
    writing = row("abc", "abcde")
    acks = {"a", "b"}
    assert read_satisfied(acks, writing)
    assert not write_satisfied(acks, writing)
    assert not acks & {"d", "e"}, "a read quorum of (c, d, e) misses the write"


@pytest.mark.parametrize(
    "move", [m for m in moves() if len(m.new) == len(m.old) and len(m.old) % 2], ids=name
)
def test_fewer_acknowledgements_would_lose_writes(move: TransitionRow) -> None:
    """For odd rf the count is the least that does not depend on who the other replicas are."""
    during = steps_of(move)[1]
    assert any(
        not set(acks) & quorum
        for acks in combinations(during.writes, acks_needed(during) - 1)
        for other in combinations(during.writes, len(move.old))
        for quorum in read_quorums(other)
    )


@pytest.mark.parametrize("move", moves(), ids=name)
def test_after_streaming_every_read_quorum_holds_what_was_acknowledged(
    move: TransitionRow,
) -> None:
    """Written before the move to a quorum of the old; read after it from a quorum of the new."""
    for acks in read_quorums(move.old):
        for holders in holders_after_streaming(move, acks, unavailable=frozenset()):
            for quorum in read_quorums(move.new):
                assert holders & quorum


@pytest.mark.parametrize("move", moves(), ids=name)
def test_streaming_around_silent_replicas_loses_nothing(move: TransitionRow) -> None:
    """They may hold the write, but they are not asked; too few others, and there is no streaming."""
    for count in range(1, len(move.old) + 1):
        for silent in map(frozenset, combinations(move.old, count)):
            for acks in read_quorums(move.old):
                for holders in holders_after_streaming(move, acks, silent):
                    for quorum in read_quorums(move.new):
                        assert holders & quorum


def holders_after_streaming(
    move: TransitionRow, acks: Set[str], unavailable: Set[str]
) -> Iterator[Set[str]]:
    """Who of the new set has the write, for the worst choice of sources each comer could make."""
    holders = set(move.new) & acks
    for node in (node for node in move.new if node not in move.old):
        sources, needed = stream_sources(move, node, unavailable)
        if len(sources) < needed:
            return
        if all(set(asked) & acks for asked in combinations(sources, needed)):
            holders.add(node)
    yield holders


def test_answers_of_strangers_do_not_count() -> None:
    at_rest = row("abc", "abc")
    assert not write_satisfied({"a", "x", "y"}, at_rest)
    assert write_satisfied({"a", "b", "x"}, at_rest)
    assert not read_satisfied({"a", "x", "y"}, at_rest)
    assert read_satisfied({"b", "c"}, at_rest)


def test_pending_replicas_serve_no_reads() -> None:
    assert not read_satisfied({"c", "x"}, row("abc", "abcx"))
    assert read_satisfied({"b", "c"}, row("abc", "abcx"))


def test_a_range_without_replicas_is_never_satisfied() -> None:
    nobody = row("", "")
    assert not write_satisfied(set(), nobody)
    assert not read_satisfied(set(), nobody)
