"""Quorums intersect, by enumeration (docs/design.md, I4; CEP-21, "Test Plan", quorum intersection).

Only sizes matter. Old replicas are o0, o1, …, and new ones keep the first few of them.
"""

from collections.abc import Iterable, Iterator, Set
from itertools import combinations, product

import pytest

from stele.domain.ring.quorum import quorum_of, read_satisfied, write_satisfied
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.transition import TransitionRow, stream_sources

RFS = range(1, 6)


def moves() -> list[TransitionRow]:
    """Return every move from 1 to 5 replicas to 1 to 5, with any overlap."""
    found = []
    for rf, size in product(RFS, RFS):
        old = tuple(f"o{i}" for i in range(rf))
        for kept in range(min(rf, size) + 1):
            # Kept replicas follow new ones, as after a join.
            coming = tuple(f"n{i}" for i in range(size - kept))
            found.append(TransitionRow(0, 10, old, (*coming, *old[:kept])))
    return found


def row(reads: Iterable[str], writes: Iterable[str], other: Iterable[str] = ()) -> RangeReplicas:
    return RangeReplicas(0, 10, tuple(reads), tuple(writes), other=tuple(other))


def steps_of(move: TransitionRow) -> list[RangeReplicas]:
    union = dict.fromkeys((*move.old, *move.new))
    return [
        row(move.old, move.old),
        row(move.old, union, move.new),
        row(move.new, union, move.old),
        row(move.new, move.new),
    ]


def least_acks(step: RangeReplicas) -> Iterator[Set[str]]:
    """Yield all minimal sets of acks that satisfy a write. Larger sets can only meet more."""
    for size in range(1, len(step.writes) + 1):
        for acks in map(frozenset, combinations(step.writes, size)):
            if write_satisfied(acks, step) and not any(
                write_satisfied(acks - {node}, step) for node in acks
            ):
                yield acks


def read_quorums(replicas: tuple[str, ...]) -> list[Set[str]]:
    return [frozenset(c) for c in combinations(replicas, quorum_of(len(replicas)))]


def name(move: TransitionRow) -> str:
    return f"{','.join(move.old)}->{','.join(move.new)}"


@pytest.mark.parametrize(("replicas", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_quorum_is_a_majority(replicas: int, quorum: int) -> None:
    assert quorum_of(replicas) == quorum


@pytest.mark.parametrize("move", moves(), ids=name)
def test_acknowledged_write_is_read_at_the_same_and_adjacent_steps(
    move: TransitionRow,
) -> None:
    """Coordinators may be at the same step, or one step apart in either direction."""
    steps = steps_of(move)
    for i, j in product(range(len(steps)), repeat=2):
        if abs(i - j) <= 1:
            for acks, quorum in product(least_acks(steps[i]), read_quorums(steps[j].reads)):
                assert acks & quorum


def test_quorum_of_only_the_readers_would_lose_writes() -> None:
    writing = row("abc", "abcde", "cde")
    acks = {"a", "b"}
    assert read_satisfied(acks, writing)
    assert not write_satisfied(acks, writing)
    assert not acks & {"d", "e"}, "a read quorum of (c, d, e) misses the write"


@pytest.mark.parametrize("move", moves(), ids=name)
def test_acknowledged_write_stays_with_a_quorum_of_the_readers(
    move: TransitionRow,
) -> None:
    """The write went to a quorum of the old replicas before the move, or to both sides while it streams.
    At the end a quorum of the new replicas has it, so that the next move starts in the same situation.
    """
    for acks in read_quorums(move.old):
        for holders in holders_after_streaming(move, acks, unavailable=frozenset()):
            assert len(holders) >= quorum_of(len(move.new))
    for acks in least_acks(steps_of(move)[1]):
        assert len(acks & {*move.new}) >= quorum_of(len(move.new))
        assert len(acks & {*move.old}) >= quorum_of(len(move.old)), "it may still turn round"


@pytest.mark.parametrize("move", moves(), ids=name)
def test_streaming_around_silent_replicas_loses_nothing(move: TransitionRow) -> None:
    """Silent replicas may hold the write, but they are not asked. With too few others there is no streaming."""
    for count in range(1, len(move.old) + 1):
        for silent in map(frozenset, combinations(move.old, count)):
            for acks in read_quorums(move.old):
                for holders in holders_after_streaming(move, acks, silent):
                    assert len(holders) >= quorum_of(len(move.new))


def test_removing_two_replicas_without_streaming_loses_writes() -> None:
    """Hence a shrinking range streams although no replica gains it."""
    move = TransitionRow(0, 10, ("a", "b", "c"), ("a",))
    assert move.receiving() == ["a"]
    assert frozenset("bc") in read_quorums(move.old), "acknowledged without a"


def test_quorum_of_only_the_readers_misses_the_next_readers() -> None:
    """Counting acks is not enough when several replicas are added or removed at once."""
    growing, shrinking = row("a", "abc", "abc"), row("abc", "abc", "a")
    assert not write_satisfied({"a"}, growing)
    assert write_satisfied({"a", "b"}, growing)
    assert not write_satisfied({"b", "c"}, growing)
    assert not write_satisfied({"b", "c"}, shrinking)


def holders_after_streaming(
    move: TransitionRow, acks: Set[str], unavailable: Set[str]
) -> Iterator[Set[str]]:
    """Yield the members of the new set with the write, for the worst choices of sources by each receiver."""
    holders = set(move.new) & acks
    for node in move.receiving():
        sources, needed = stream_sources(move, node, unavailable)
        if len(sources) < needed:
            return
        if all(set(asked) & acks for asked in combinations(sources, needed)):
            holders.add(node)
    yield holders


def test_answers_of_other_nodes_do_not_count() -> None:
    at_rest = row("abc", "abc")
    assert not write_satisfied({"a", "x", "y"}, at_rest)
    assert write_satisfied({"a", "b", "x"}, at_rest)
    assert not read_satisfied({"a", "x", "y"}, at_rest)
    assert read_satisfied({"b", "c"}, at_rest)


def test_pending_replicas_serve_no_reads() -> None:
    assert not read_satisfied({"c", "x"}, row("abc", "abcx", "abx"))
    assert read_satisfied({"b", "c"}, row("abc", "abcx", "abx"))


def test_range_without_replicas_is_never_satisfied() -> None:
    nobody = row("", "")
    assert not write_satisfied(set(), nobody)
    assert not read_satisfied(set(), nobody)
