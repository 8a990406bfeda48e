"""Changes as a fact carries them: nothing is lost on the way, and pieces of one fit each other."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.ring.changes import PackedRows, nodes_to_number, packed, pieces_of, unpacked
from stele.domain.ring.numbers import NO_NODES, NodeNumbers
from stele.domain.ring.placement import EMPTY_RING, Placement, PlacementError, apply
from stele.domain.ring.ranges import Range, RangeReplicas
from stele.domain.ring.tokens import MIN_TOKEN
from stele.domain.ring.transition import PlacementDelta
from tests.domain.ring.test_placement import NODES, difference, placements, row_changes

Rows = tuple[RangeReplicas, ...]


@given(rows=placements(), known=st.permutations(NODES), count=st.integers(0, 5))
def test_rows_survive_being_packed(rows: Rows, known: list[str], count: int) -> None:
    nodes = NodeNumbers(tuple(known[:count]))
    for number, node_id in nodes_to_number(rows, nodes):
        nodes = nodes.with_node(number, node_id)
    written_down = msgspec.json.encode(packed(rows, nodes))
    assert unpacked(msgspec.json.decode(written_down, type=PackedRows), nodes) == rows
    assert nodes_to_number(rows, nodes) == ()


def test_a_node_needs_a_number_before_rows_name_it() -> None:
    row, both = RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("a",), ("a", "b")), NodeNumbers(("a", "b"))
    assert nodes_to_number([row], NO_NODES.with_node(0, "b")) == ((1, "a"),)
    with pytest.raises(KeyError):
        packed([row], NO_NODES)
    with pytest.raises(PlacementError, match="number that nobody has"):
        unpacked(packed([row], both), NodeNumbers(("a",)))
    with pytest.raises(PlacementError, match="different lengths"):
        unpacked(msgspec.structs.replace(packed([row], both), ends=()), both)


@given(change=row_changes(), at_most=st.integers(2, 6))
def test_pieces_of_a_change_are_small_and_fit_each_other(
    change: tuple[Rows, Rows], at_most: int
) -> None:
    before, after = change
    placement = Placement.of(before)
    removed, added = difference(before, after)
    delta = PlacementDelta(tuple(removed), tuple(added))
    for piece in pieces_of(placement, delta, at_most):
        assert len(piece.added) <= at_most
        assert len(piece.removed) <= at_most
        placement = apply(placement, piece.removed, piece.added)
    assert placement.rows == after


@given(rows=placements(), at_most=st.integers(2, 6))
def test_a_whole_placement_comes_and_goes_in_pieces(rows: Rows, at_most: int) -> None:
    empty = EMPTY_RING.rows[0]
    there = PlacementDelta((Range(empty.start, empty.end),), rows)
    placement = EMPTY_RING
    for piece in pieces_of(placement, there, at_most):
        placement = apply(placement, piece.removed, piece.added)
    assert placement.rows == rows
    back = PlacementDelta(tuple(Range(row.start, row.end) for row in rows), (empty,))
    for piece in pieces_of(placement, back, at_most):
        assert max(len(piece.added), len(piece.removed)) <= at_most
        placement = apply(placement, piece.removed, piece.added)
    assert placement == EMPTY_RING


def test_pieces_need_room_and_rows_that_are_there() -> None:
    whole = PlacementDelta((Range(MIN_TOKEN, 0),), ())
    with pytest.raises(PlacementError, match="it is no row"):
        list(pieces_of(EMPTY_RING, whole, 2))
    with pytest.raises(ValueError, match="room for 2"):
        list(pieces_of(EMPTY_RING, whole, 1))
