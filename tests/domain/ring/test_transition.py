"""The steps of a join and a leave, row by row (the example of CEP-21, "Bootstrap")."""

import msgspec
import pytest

from stele.domain.ring import transition
from stele.domain.ring.columns import NodeNumbers
from stele.domain.ring.placement import EMPTY_RING, Placement, apply
from stele.domain.ring.ranges import range_of
from stele.domain.ring.strategy import placement_of
from stele.domain.ring.transition import (
    PlacementDelta,
    TransitionPlan,
    TransitionRow,
    equals_at_rest,
    stream_sources,
)
from tests.domain.ring.rings import (
    ONE_RACK,
    Ring,
    join,
    leave,
    one_rack_ring,
    prepare_rings,
    written,
)

STEPS = {
    "split": transition.split_delta,
    "write_both_read_old": transition.write_both_read_old,
    "write_both_read_new": transition.write_both_read_new,
    "finish": transition.finish,
    "rollback": transition.rollback,
}
ABC = one_rack_ring({100: "A", 200: "B", 300: "C"})
ABCX = join(ABC, "X", ONE_RACK, 150)
ABC_AT_REST = ["(MIN,100] AB", "(100,200] BC", "(200,300] CA", "(300,MIN] AB"]
ABCX_AT_REST = ["(MIN,100] AX", "(100,150] XB", "(150,200] BC", "(200,300] CA", "(300,MIN] AX"]


def at_rest(ring: Ring, rf: int = 2) -> Placement:
    return placement_of(ring.tokens, ring.locations, {"dc1": rf})


def planned(before: Ring, after: Ring, rf: int = 2) -> TransitionPlan:
    return prepare_rings(
        before.tokens, after.tokens, before.locations, after.locations, {"dc1": rf}
    ).plan


def step(placement: Placement, plan: TransitionPlan, name: str) -> Placement:
    delta = STEPS[name](placement, plan, 0)
    return apply(placement, delta.removed, delta.added)


def after_steps(placement: Placement, plan: TransitionPlan, *names: str) -> Placement:
    for name in names:
        placement = step(placement, plan, name)
    return placement


def test_join_takes_the_steps_of_the_worked_example() -> None:
    placement, plan = at_rest(ABC), planned(ABC, ABCX)
    assert written(placement) == ABC_AT_REST
    placement = step(placement, plan, "split")
    assert written(placement) == [
        "(MIN,100] AB",
        "(100,150] BC",
        "(150,200] BC",
        "(200,300] CA",
        "(300,MIN] AB",
    ]
    placement = step(placement, plan, "write_both_read_old")
    assert written(placement) == [
        "(MIN,100] AB | ABX",
        "(100,150] BC | BCX",
        "(150,200] BC",
        "(200,300] CA",
        "(300,MIN] AB | ABX",
    ]
    placement = step(placement, plan, "write_both_read_new")
    assert written(placement) == [
        "(MIN,100] AX | ABX",
        "(100,150] XB | BCX",
        "(150,200] BC",
        "(200,300] CA",
        "(300,MIN] AX | ABX",
    ]
    placement = step(placement, plan, "finish")
    assert written(placement) == ABCX_AT_REST


def test_leave_takes_the_steps_of_the_worked_example() -> None:
    placement, plan = at_rest(ABCX), planned(ABCX, ABC)
    assert written(placement) == ABCX_AT_REST
    assert transition.split_delta(placement, plan, 0) == PlacementDelta()
    placement = step(placement, plan, "write_both_read_old")
    assert written(placement) == [
        "(MIN,100] AX | AXB",
        "(100,150] XB | XBC",
        "(150,200] BC",
        "(200,300] CA",
        "(300,MIN] AX | AXB",
    ]
    placement = step(placement, plan, "write_both_read_new")
    assert written(placement) == [
        "(MIN,100] AB | AXB",
        "(100,150] BC | XBC",
        "(150,200] BC",
        "(200,300] CA",
        "(300,MIN] AB | AXB",
    ]
    placement = step(placement, plan, "finish")
    assert written(placement) == ABC_AT_REST


def test_first_node_takes_over_a_ring_without_replicas() -> None:
    rf = {"dc1": 3}
    plan = prepare_rings({}, {0: "A", 10: "A"}, {}, {"A": ONE_RACK}, rf).plan
    assert {row.old for row in plan.rows} == {()}
    split = transition.split_delta(EMPTY_RING, plan, 0)
    placement = apply(EMPTY_RING, split.removed, split.added)
    assert written(placement) == ["(MIN,0] ", "(0,10] ", "(10,MIN] "]
    placement = step(placement, plan, "write_both_read_old")
    assert written(placement) == ["(MIN,0]  | A", "(0,10]  | A", "(10,MIN]  | A"]
    assert step(placement, plan, "rollback") == EMPTY_RING
    placement = after_steps(placement, plan, "write_both_read_new", "finish")
    assert written(placement) == ["(MIN,0] A", "(0,10] A", "(10,MIN] A"]
    last_leaves = prepare_rings({0: "A", 10: "A"}, {}, {"A": ONE_RACK}, {}, rf).plan
    assert step(placement, last_leaves, "finish") == EMPTY_RING


def test_ranges_are_at_rest_only_without_a_step() -> None:
    before = at_rest(ABC)
    under_way = after_steps(before, planned(ABC, ABCX), "split", "write_both_read_old")
    assert equals_at_rest(before, before)
    assert not equals_at_rest(under_way, before)


def test_split_range_is_not_at_rest() -> None:
    before = at_rest(ABC)
    split = after_steps(before, planned(ABC, ABCX), "split")
    assert not equals_at_rest(split, before)


def test_at_rest_ignores_node_numbers_and_versions() -> None:
    turned = placement_of(ABC.tokens, ABC.locations, {"dc1": 2}, NodeNumbers(("C", "A")))
    row = turned.row_for(150)
    live = apply(turned, [range_of(row)], [msgspec.structs.replace(row, version=3)])
    assert live != at_rest(ABC)
    assert equals_at_rest(live, at_rest(ABC))


def test_step_sets_its_version_only_on_rows_whose_replicas_change() -> None:
    placement, plan = at_rest(ABC), planned(ABC, ABCX)
    versions = list[list[int]]()
    for version, name in enumerate(("split", "write_both_read_old", "finish"), start=7):
        delta = STEPS[name](placement, plan, version)
        placement = apply(placement, delta.removed, delta.added)
        versions.append([row.version for row in placement.rows])
        assert STEPS[name](placement, plan, version + 1) == PlacementDelta()
    assert versions == [[0, 0, 0, 0, 0], [8, 8, 0, 0, 8], [9, 9, 0, 0, 9]]


def test_remaining_replica_receives_writes_acknowledged_by_leaving_ones() -> None:
    plan = planned(ABC, leave(leave(ABC, "A"), "B"), rf=3)
    assert {row.receiving()[0] for row in plan.rows} == {"C"}
    assert all("C" in row.receiving() and "A" not in row.receiving() for row in plan.rows)


def test_new_replica_streams_from_the_replica_that_it_replaces() -> None:
    row = TransitionRow(0, 10, old=("a", "b", "c", "d"), new=("x", "b", "y", "d"))
    assert stream_sources(row, "x") == (("a",), 1)
    assert stream_sources(row, "y") == (("c",), 1)


def test_new_replica_without_a_partner_needs_all_acknowledged_writes() -> None:
    grown = TransitionRow(0, 10, old=("a", "b"), new=("x", "a", "b"))
    assert stream_sources(grown, "x") == (("a", "b"), 1)
    assert stream_sources(grown, "x", unavailable={"a"}) == (("b",), 1)
    moved = TransitionRow(0, 10, old=("a", "b", "c"), new=("x", "b", "c"))
    assert stream_sources(moved, "x", unavailable={"a"}) == (("b", "c"), 2)
    first = TransitionRow(0, 10, old=(), new=("x",))
    assert stream_sources(first, "x") == ((), 0)


def test_remaining_replicas_stream_from_a_blocking_set_on_shrink() -> None:
    fewer = TransitionRow(0, 10, old=("a", "b", "c"), new=("b",))
    assert stream_sources(fewer, "b") == (("a", "c"), 1)
    assert stream_sources(fewer, "b", unavailable={"a", "c"}) == ((), 1)
    of_two = TransitionRow(0, 10, old=("a", "b"), new=("b",))
    assert of_two.receiving() == ["b"], "it must be there"
    assert stream_sources(of_two, "b") == ((), 0), "both have all that was acknowledged"
    elsewhere = TransitionRow(0, 10, old=("a", "b", "c"), new=("x",))
    assert stream_sources(elsewhere, "x") == (("a", "b", "c"), 2)


def test_moving_row_names_the_other_quorum_of_a_write() -> None:
    plan = planned(ABC, ABCX)
    reading_old = after_steps(at_rest(ABC), plan, "split", "write_both_read_old").row_for(50)
    assert (reading_old.reads, reading_old.other) == (("A", "B"), ("A", "X"))
    reading_new = after_steps(at_rest(ABC), plan, "split", "write_both_read_new").row_for(50)
    assert (reading_new.reads, reading_new.other) == (("A", "X"), ("A", "B"))
    finished = after_steps(at_rest(ABC), plan, "split", "finish").row_for(50)
    assert finished.other == ()


def test_shrinking_row_changes_with_the_first_step() -> None:
    """Its readers and writers are as before, but a write needs both quorums from then on."""
    before = at_rest(ABC)
    plan = transition.prepare(before, at_rest(ABC, 1), ABC.tokens.keys(), ABC.tokens.keys())
    delta = transition.write_both_read_old(before, plan, 9)
    assert {row.version for row in delta.added} == {9}
    assert all(row.reads == row.writes and len(row.other) == 1 for row in delta.added)
    assert not equals_at_rest(apply(before, delta.removed, delta.added), before)


def test_only_a_receiving_node_streams_a_range() -> None:
    row = TransitionRow(0, 10, old=("a",), new=("x",))
    with pytest.raises(ValueError, match="receives nothing"):
        stream_sources(row, "a")
