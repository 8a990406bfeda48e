"""Properties at every step of every join, leave, replace and move, on random rings."""

from itertools import pairwise, permutations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.ring import transition
from stele.domain.ring.placement import Placement, apply
from stele.domain.ring.quorum import blocking
from stele.domain.ring.ranges import MIN_TOKEN, range_of
from stele.domain.ring.strategy import placement_of
from stele.domain.ring.transition import TransitionPlan, stream_sources
from tests.domain.ring.rings import Ring, changes, prepare_rings, some_rf

Change = tuple[Ring, Ring]
FORWARD = (
    transition.split_delta,
    transition.write_both_read_old,
    transition.write_both_read_new,
    transition.finish,
)


def at_rest(ring: Ring, rf: dict[str, int]) -> Placement:
    return placement_of(ring.tokens, ring.locations, rf)


def planned(change: Change, rf: dict[str, int]) -> TransitionPlan:
    before, after = change
    return prepare_rings(before.tokens, after.tokens, before.locations, after.locations, rf).plan


def walked(change: Change, rf: dict[str, int]) -> list[Placement]:
    """Return the five placements from before the operation to after its last step."""
    placements, plan = [at_rest(change[0], rf)], planned(change, rf)
    for step in FORWARD:
        delta = step(placements[-1], plan, 0)
        placements.append(apply(placements[-1], delta.removed, delta.added))
    return placements


@given(change=changes(), rf=some_rf)
def test_every_step_covers_the_ring_and_writes_where_it_reads(
    change: Change, rf: dict[str, int]
) -> None:
    for placement in walked(change, rf):
        # ``of`` checks: no gap, no overlap, no duplicate, writes include reads.
        assert Placement.of(placement.rows) == placement


@given(change=changes(), rf=some_rf)
def test_every_step_reads_from_as_many_replicas_as_possible(
    change: Change, rf: dict[str, int]
) -> None:
    before, after = change
    for ring, placements in (
        (before, walked(change, rf)[:3]),
        (after, walked(change, rf)[3:]),
    ):
        for row in (row for placement in placements for row in placement.rows):
            for dc in ("dc1", "dc2", "dc3"):
                nodes = sum(place.dc == dc for place in ring.locations.values())
                reads = sum(ring.locations[node].dc == dc for node in row.reads)
                assert reads == min(rf.get(dc, 0), nodes)


@given(change=changes(), rf=some_rf)
def test_node_receives_writes_one_step_before_and_after_its_reads(
    change: Change, rf: dict[str, int]
) -> None:
    placements = walked(change, rf)
    for earlier, later in pairwise(placements):
        for row in (*earlier.rows, *later.rows):
            then, now = earlier.row_for(row.end), later.row_for(row.end)
            assert set(now.reads) <= set(then.writes)
            assert set(then.reads) <= set(now.writes)


@given(change=changes(), rf=some_rf)
def test_finish_equals_a_newly_computed_placement(change: Change, rf: dict[str, int]) -> None:
    assert walked(change, rf)[-1] == at_rest(change[1], rf)


@given(change=changes(), rf=some_rf)
def test_rollback_from_any_step_restores_the_exact_rows(change: Change, rf: dict[str, int]) -> None:
    before, *reached = walked(change, rf)
    plan, encoded = planned(change, rf), msgspec.json.encode(before.rows)
    for placement in reached:
        delta = transition.rollback(placement, plan, 0)
        restored = apply(placement, delta.removed, delta.added)
        assert msgspec.json.encode(restored.rows) == encoded
    assert transition.rollback(before, plan, 0) == transition.PlacementDelta()


@given(change=changes(), rf=some_rf)
def test_steps_may_run_in_any_order_and_repeat(change: Change, rf: dict[str, int]) -> None:
    placements, plan = walked(change, rf), planned(change, rf)
    for (_, start), (step, reached) in permutations(
        list(zip(FORWARD, placements[1:], strict=True)), 2
    ):
        delta = step(start, plan, 0)
        assert apply(start, delta.removed, delta.added) == reached
        assert step(reached, plan, 0) == transition.PlacementDelta()


@given(change=changes(), rf=some_rf)
def test_delta_contains_no_unchanged_row(change: Change, rf: dict[str, int]) -> None:
    placements, plan = walked(change, rf), planned(change, rf)
    for placement, step in zip(placements, FORWARD, strict=False):
        delta = step(placement, plan, 0)
        assert not set(delta.added) & set(placement.rows)
        assert set(delta.removed) <= {range_of(row) for row in placement.rows}


@given(change=changes(), rf=some_rf)
def test_rows_of_a_plan_are_exactly_the_ranges_whose_replicas_change(
    change: Change, rf: dict[str, int]
) -> None:
    before, after = at_rest(change[0], rf), at_rest(change[1], rf)
    plan = planned(change, rf)
    assert all(row.old != row.new for row in plan.rows)
    changing = {
        end
        for end in (row.end for row in (*before.rows, *after.rows))
        if before.row_for(end).reads != after.row_for(end).reads
    }
    assert {row.end for row in plan.rows} == changing


@given(change=changes(), rf=some_rf)
def test_gained_ranges_have_sources_and_lost_ranges_had_the_node(
    change: Change, rf: dict[str, int]
) -> None:
    plan = planned(change, rf)
    nodes = sorted({*change[0].locations, *change[1].locations})
    by_end = {row.end: row for row in plan.rows}
    for node in nodes:
        for range_ in (row for row in plan.rows if node in row.receiving()):
            row = by_end[range_.end]
            sources, needed = stream_sources(row, node)
            assert set(sources) <= set(row.old)
            has_all = not row.old or (node in row.old and blocking(len(row.old)) == 1)
            assert (0 if has_all else 1) <= needed <= len(sources)
        assert all(node in row.old for row in plan.rows if node in row.leaving())


@given(change=changes(), rf=some_rf, data=st.data())
def test_plan_does_not_depend_on_the_order_of_its_arguments(
    change: Change, rf: dict[str, int], data: st.DataObject
) -> None:
    def shuffled(ring: Ring) -> Ring:
        tokens = data.draw(st.permutations(list(ring.tokens.items())))
        return Ring(dict(tokens), dict(reversed(ring.locations.items())))

    turned = (shuffled(change[0]), shuffled(change[1]))
    assert planned(turned, dict(reversed(rf.items()))) == planned(change, rf)


@given(change=changes(), rf=some_rf)
def test_plan_is_preserved_by_encoding(change: Change, rf: dict[str, int]) -> None:
    plan = planned(change, rf)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=TransitionPlan) == plan
    assert MIN_TOKEN not in (*plan.split_at, *plan.merge_at)
