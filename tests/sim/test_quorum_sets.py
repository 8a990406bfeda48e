"""The checker of quorums has independent rules, and detects deviations of production's."""

from collections.abc import Callable, Set
from itertools import pairwise

import pytest

from stele.domain.ring.quorum import quorum_of, read_satisfied, write_satisfied
from stele.domain.ring.ranges import RangeReplicas
from stele_simulator.mutants import PLANTED
from stele_simulator.patching import Patch
from stele_simulator.quorum_sets import Sides, asks_for_another_number, quorums_meet

OLD, NEW = ("a", "b", "c"), ("b", "c", "d")
UNION = ("a", "b", "c", "d")
BEFORE: Sides = (OLD, OLD, ())
BOTH_READ_OLD: Sides = (OLD, UNION, NEW)
BOTH_READ_NEW: Sides = (NEW, UNION, OLD)
AFTER: Sides = (NEW, NEW, ())
MOVE = (BEFORE, BOTH_READ_OLD, BOTH_READ_NEW, AFTER)
FEWER: Sides = (("a", "b"), ("a", "b", "c", "d", "e"), ("c", "d", "e"))


def test_quorums_of_adjacent_steps_intersect() -> None:
    for one, two in pairwise(MOVE):
        assert quorums_meet(one, two)
        assert quorums_meet(two, one)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (BEFORE, (("d", "e", "f"), ("d", "e", "f"), ())),
        ((OLD, UNION, ()), (("b", "d", "e"), ("b", "d", "e"), ())),
        (BEFORE, (("a", "d"), ("a", "d"), ())),
    ],
)
def test_quorums_of_distant_steps_do_not_intersect(written: Sides, read: Sides) -> None:
    assert not quorums_meet(written, read)


@pytest.mark.parametrize("sides", [*MOVE, FEWER, ((), (), ()), (("a",), ("a",), ())])
def test_production_requires_a_majority(sides: Sides) -> None:
    assert asks_for_another_number(sides) == ""


def _half(replicas: int) -> int:
    return max(1, replicas // 2)


def _of_all_writers(answered: Set[str], row: RangeReplicas) -> bool:
    return len(answered & {*row.writes}) >= quorum_of(len(row.writes))


def _never(answered: Set[str], row: RangeReplicas) -> bool:
    """Never accept an answer. Quorums that never complete all intersect."""
    return False


@pytest.mark.parametrize(
    "plant",
    [
        PLANTED["write_quorum_over_the_old_set_only"].plant,
        PLANTED["write_is_acknowledged_by_one"].plant,
        PLANTED["read_is_answered_by_one"].plant,
        lambda patch: patch.function(quorum_of, _half),
        lambda patch: patch.function(write_satisfied, _of_all_writers),
        lambda patch: patch.function(read_satisfied, _of_all_writers),
        lambda patch: patch.function(read_satisfied, _never),
    ],
)
def test_other_quorum_rules_are_noticed(plant: Callable[[Patch], None]) -> None:
    sides: Sides = (("a", "b", "c", "d"), ("a", "b", "c", "d", "e"), ("b", "c", "d", "e"))
    assert asks_for_another_number(sides) == ""
    with Patch() as patch:
        plant(patch)
        assert asks_for_another_number(sides)
        assert quorums_meet(sides, sides), "whether they meet is not production's to say"
    assert asks_for_another_number(sides) == ""
