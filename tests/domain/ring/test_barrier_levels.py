"""The levels of a barrier: Cassandra's table of levels, and properties of all levels (design.md, rule 26).

The checker is independent: it counts majorities and enumerates quorums.
"""

from collections.abc import Iterator
from itertools import chain, combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.names import BarrierLevel
from stele.domain.ring.quorum import LEVELS, LevelFacts, is_unsafe, lacking

ALL, EACH_QUORUM, QUORUM, LOCAL_QUORUM, ONE, NODE_LOCAL = LEVELS
DCS = {
    **dict.fromkeys(("a", "b", "c", "x"), "dc1"),
    **dict.fromkeys(("d", "e", "f"), "dc2"),
    "g": "dc3",
}
SIX, SEVEN = frozenset("abcdef"), frozenset("abcdefg")


def where(local: str = "dc1", excluded: str = "") -> LevelFacts:
    return LevelFacts(DCS, frozenset(excluded), frozenset(local.split()))


def subsets(nodes: frozenset[str]) -> Iterator[frozenset[str]]:
    sizes = (combinations(sorted(nodes), size) for size in range(len(nodes) + 1))
    return map(frozenset, chain.from_iterable(sizes))


@pytest.mark.parametrize(
    ("level", "replicas", "answered", "missing"),
    [
        (ALL, "abc", "ab", "c"),
        (ALL, "abc", "abc", ""),
        (EACH_QUORUM, "abc", "ab", ""),
        (EACH_QUORUM, "abc", "a", "bc"),
        (EACH_QUORUM, "abcdef", "abde", ""),
        (EACH_QUORUM, "abcdef", "abcd", "ef"),
        (EACH_QUORUM, "abcdef", "abc", "def"),
        (EACH_QUORUM, "abcdefg", "abde", "g"),
        (QUORUM, "abc", "ab", ""),
        (QUORUM, "abcdefg", "abcd", ""),
        (QUORUM, "abcdefg", "abc", "defg"),
        (LOCAL_QUORUM, "abcdef", "ab", ""),
        (LOCAL_QUORUM, "abcdef", "ad", "bc"),
        (ONE, "abcdef", "f", ""),
        (ONE, "abcdef", "", "abcdef"),
        (NODE_LOCAL, "abcdef", "", ""),
    ],
)
def test_level_requires_the_same_replicas_as_the_reference(
    level: BarrierLevel, replicas: str, answered: str, missing: str
) -> None:
    found = lacking(level, frozenset(replicas), frozenset(answered), where())
    assert found == frozenset(missing)


def majorities(level: BarrierLevel, replicas: frozenset[str], answered: frozenset[str]) -> bool:
    """Apply the formulas of Cassandra's ``ProgressBarrier``: n / 2 + 1, overall or in each dc."""
    dcs = {DCS[n] for n in replicas} if level is EACH_QUORUM else {"dc1"}
    groups = {dc: [n for n in replicas if DCS[n] == dc] for dc in dcs}
    if level is QUORUM:
        groups = {"": [*replicas]}
    return all(sum(n in answered for n in g) >= len(g) // 2 + 1 for g in groups.values())


@pytest.mark.parametrize("level", [EACH_QUORUM, QUORUM, LOCAL_QUORUM])
def test_answers_that_satisfy_the_reference_satisfy_the_level(level: BarrierLevel) -> None:
    for replicas in (frozenset("abc"), frozenset("abcd"), frozenset("abde"), SIX, SEVEN):
        for answered in subsets(replicas):
            if majorities(level, replicas, answered):
                assert not lacking(level, replicas, answered, where()), (replicas, answered)


def test_each_quorum_equals_the_reference_for_odd_replica_counts() -> None:
    for replicas, answered in ((r, a) for r in (frozenset("abc"), SIX, SEVEN) for a in subsets(r)):
        satisfied = not lacking(EACH_QUORUM, replicas, answered, where())
        assert satisfied == majorities(EACH_QUORUM, replicas, answered), (replicas, answered)


def test_one_of_two_replicas_is_enough() -> None:
    for level in (EACH_QUORUM, QUORUM, LOCAL_QUORUM):
        assert not lacking(level, frozenset("ab"), frozenset("a"), where())


def test_local_quorum_without_local_replicas_needs_a_quorum_of_all() -> None:
    """The reference waits for one answer of a dc without replicas, which never arrives."""
    assert not lacking(LOCAL_QUORUM, frozenset("def"), frozenset("de"), where())
    assert lacking(LOCAL_QUORUM, frozenset("def"), frozenset("d"), where()) == frozenset("ef")
    assert lacking(LOCAL_QUORUM, frozenset("abc"), frozenset("a"), where("")) == frozenset("bc")


def test_local_quorum_of_two_dcs_needs_a_quorum_in_both() -> None:
    both = where("dc1 dc2")
    assert lacking(LOCAL_QUORUM, SEVEN, frozenset("ab"), both) == frozenset("def")
    assert not lacking(LOCAL_QUORUM, SEVEN, frozenset("abde"), both)


def test_excluded_replicas_are_not_awaited_at_any_level() -> None:
    for level in LEVELS:
        assert not lacking(level, frozenset("abc"), frozenset("c"), where(excluded="ab"))


def test_excluded_dc_does_not_count_for_another_dc() -> None:
    """The three excluded replicas, if alive, and f would be four of six."""
    found = lacking(EACH_QUORUM, SIX, frozenset("de"), where(excluded="abc"))
    assert found == frozenset("f")


@given(
    st.frozensets(st.sampled_from(sorted(DCS))),
    st.frozensets(st.sampled_from(sorted(DCS))),
    st.frozensets(st.sampled_from(sorted(DCS)), max_size=3),
    st.frozensets(st.sampled_from(["dc1", "dc2", "dc3"])),
)
def test_answers_that_satisfy_a_level_satisfy_all_lower_levels(
    replicas: frozenset[str],
    answered: frozenset[str],
    excluded: frozenset[str],
    local: frozenset[str],
) -> None:
    known = LevelFacts(DCS, excluded, local)
    satisfied = [not lacking(each, replicas, answered - excluded, known) for each in LEVELS]
    assert satisfied == sorted(satisfied)
    for higher, lower in pairwise(LEVELS):
        asked = lacking(lower, replicas, answered - excluded, known)
        assert asked <= replicas - answered - excluded
        assert not asked or lacking(higher, replicas, answered - excluded, known)


def test_every_write_quorum_meets_every_barrier_from_quorum_up() -> None:
    """At the unsafe levels below QUORUM, some write quorums miss a barrier."""
    meets = dict.fromkeys(LEVELS, True)
    for replicas in (frozenset("ab"), frozenset("abde"), frozenset("abcd"), SIX, SEVEN):
        for level, answered in product(LEVELS, subsets(replicas)):
            if not lacking(level, replicas, answered, where()):
                majority = len(replicas) // 2 + 1
                written = combinations(sorted(replicas), majority)
                meets[level] &= all({*each} & answered for each in written)
    assert meets == {level: not is_unsafe(level) for level in LEVELS}


def test_default_level_meets_the_quorums_of_each_dc() -> None:
    """Writes at LOCAL_QUORUM in any dc, and at EACH_QUORUM, are fenced as well."""
    for answered in subsets(SEVEN):
        if lacking(EACH_QUORUM, SEVEN, answered, where()):
            continue
        for dc in ("dc1", "dc2", "dc3"):
            there = sorted(n for n in SEVEN if DCS[n] == dc)
            written = combinations(there, len(there) // 2 + 1)
            assert all({*each} & answered for each in written), (answered, dc)
