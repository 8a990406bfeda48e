"""A placement as chunked columns: a change equals a rebuild, and node numbers do not matter."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.domain.ring.columns import NO_NODES, NodeNumbers
from stele.domain.ring.placement import Placement, PlacementError, apply
from stele.domain.ring.ranges import (
    Range,
    RangeReplicas,
    range_of,
    ranges_of,
    split_row,
)
from tests.domain.ring.rings import some_token

NODES = ("a", "b", "c", "d", "e")
some_replicas = st.lists(st.sampled_from(NODES), unique=True, max_size=4).flatmap(
    lambda writes: st.tuples(
        st.permutations(writes).flatmap(
            lambda order: st.integers(0, len(order)).map(lambda n: tuple(order[:n]))
        )
        | st.just(tuple(writes)),
        st.just(tuple(writes)),
    )
)


@st.composite
def placements(draw: st.DrawFn) -> tuple[RangeReplicas, ...]:
    tokens = draw(st.lists(some_token, max_size=12))
    return tuple(
        RangeReplicas(r.start, r.end, *draw(some_replicas), draw(st.integers(0, 9)))
        for r in ranges_of(tokens)
    )


@st.composite
def row_changes(draw: st.DrawFn) -> tuple[tuple[RangeReplicas, ...], tuple[RangeReplicas, ...]]:
    """Return the rows of two placements that differ in replicas and boundaries."""
    before = draw(placements())
    cuts = sorted(draw(st.lists(some_token, max_size=4, unique=True)))
    pieces = [piece for row in before for piece in split_row(row, cuts)]
    after = list[RangeReplicas]()
    for piece in pieces:
        if after and draw(st.integers(0, 4)) == 0:
            after[-1] = msgspec.structs.replace(after[-1], end=piece.end)
        elif draw(st.integers(0, 2)) == 0:
            reads, writes = draw(some_replicas)
            after.append(RangeReplicas(piece.start, piece.end, reads, writes, 10))
        else:
            after.append(piece)
    return before, tuple(after)


def difference(
    before: tuple[RangeReplicas, ...], after: tuple[RangeReplicas, ...]
) -> tuple[list[Range], list[RangeReplicas]]:
    return [range_of(r) for r in before if r not in after], [r for r in after if r not in before]


@given(rows=placements())
def test_placement_keeps_its_rows(rows: tuple[RangeReplicas, ...]) -> None:
    placement = Placement.of(rows)
    assert placement.rows == rows
    assert tuple(placement.row_for(row.end) for row in rows) == rows
    assert len(placement) == len(rows)


@given(change=row_changes(), data=st.data())
def test_change_equals_a_rebuild(
    change: tuple[tuple[RangeReplicas, ...], tuple[RangeReplicas, ...]], data: st.DataObject
) -> None:
    before, after = change
    removed, added = difference(before, after)
    placement = Placement.of(before)
    changed = apply(
        placement, data.draw(st.permutations(removed)), data.draw(st.permutations(added))
    )
    assert changed.rows == after
    assert changed == Placement.of(after)
    rebuilt = Placement.of(after, changed.nodes)
    assert changed.table.hash_sum() == rebuilt.table.hash_sum()
    back = apply(changed, *difference(after, before))
    assert back == placement
    assert back.rows == placement.rows == before


@given(change=row_changes(), data=st.data())
def test_change_with_a_missing_or_repeated_row_is_refused(
    change: tuple[tuple[RangeReplicas, ...], tuple[RangeReplicas, ...]], data: st.DataObject
) -> None:
    """A change with one row missing or repeated would leave an unsound placement."""
    before, after = change
    removed, added = difference(before, after)
    if removed or added:
        which = data.draw(st.integers(0, len(removed) + len(added) - 1))
        twice = data.draw(st.booleans())
        rows: list[Range | RangeReplicas] = [*removed, *added]
        rows[which : which + 1] = [rows[which]] * (2 if twice else 0)
        with pytest.raises(PlacementError):
            apply(
                Placement.of(before),
                [row for row in rows if isinstance(row, Range)],
                [row for row in rows if isinstance(row, RangeReplicas)],
            )


def test_change_of_many_rows_of_a_large_ring_equals_a_rebuild() -> None:
    tokens = range(-20_000, 20_000)
    rows = [RangeReplicas(r.start, r.end, NODES[:3], NODES[:3]) for r in ranges_of(tokens)]
    placement = Placement.of(rows)
    third = [RangeReplicas(r.start, r.end, NODES[1:3], NODES[1:4], 7) for r in rows[::3]]
    changed = apply(placement, [range_of(row) for row in third], third)
    rows[::3] = third
    assert changed.rows == tuple(rows)
    assert changed == Placement.of(rows)


@settings(deadline=None)
@given(rows=placements(), order=st.permutations(NODES))
def test_equal_rows_are_equal_with_any_node_numbers(
    rows: tuple[RangeReplicas, ...], order: list[str]
) -> None:
    numbered = Placement.of(rows, NodeNumbers(tuple(order)))
    assert numbered == Placement.of(rows)
    assert Placement.of(rows) == numbered
    assert numbered.renumbered(NodeNumbers(NODES)).rows == rows


@given(rows=placements(), token=some_token)
def test_rows_with_different_versions_are_different(
    rows: tuple[RangeReplicas, ...], token: int
) -> None:
    placement = Placement.of(rows)
    row = placement.row_for(token)
    newer = msgspec.structs.replace(row, version=row.version + 1)
    assert apply(placement, [range_of(row)], [newer]) != placement


def test_row_at_rest_takes_14_bytes_at_rf_3_with_few_nodes() -> None:
    rows = [RangeReplicas(r.start, r.end, NODES[:3], NODES[:3]) for r in ranges_of(range(5000))]
    placement = Placement.of(rows)
    assert placement.table.size_bytes() == 14 * len(rows)
    spread = [RangeReplicas(r.start, r.end, NODES[:3], NODES[:4], 1) for r in rows]
    moved = apply(placement, [range_of(row) for row in rows], spread)
    back = apply(moved, [range_of(row) for row in rows], rows)
    assert back.table.size_bytes() == 14 * len(rows), "padding goes with the lists that needed it"


def test_numbers_are_assigned_once_and_in_order() -> None:
    nodes = NO_NODES.with_node(0, "a").with_node(1, "b")
    assert nodes.numbers == {"a": 0, "b": 1}
    with pytest.raises(ValueError, match="next number, 2"):
        nodes.with_node(3, "c")
    with pytest.raises(ValueError, match="two numbers"):
        nodes.with_node(2, "a")
    assert nodes.with_nodes(["c", "a", "c"]).names == ("a", "b", "c")
    assert nodes.encode([("b", "a"), ("a",), ()]).tolist() == [[1, 0], [0, -1], [-1, -1]]
    assert nodes.decode(np.array([[1, 0], [0, -1], [-1, -1]], np.int32)) == [("b", "a"), ("a",), ()]
