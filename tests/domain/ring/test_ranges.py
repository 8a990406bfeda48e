import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.ring.placement import Placement, PlacementError, apply
from stele.domain.ring.ranges import (
    MAX_TOKEN,
    MIN_TOKEN,
    Range,
    RangeReplicas,
    contains,
    range_of,
    ranges_of,
    split_row,
)
from tests.domain.ring.rings import some_token

ABC = ("a", "b", "c")


def rows_at(*boundaries: int) -> list[RangeReplicas]:
    """Return rows of a whole ring cut at these tokens, all with the same replicas."""
    return [RangeReplicas(r.start, r.end, ABC, ABC) for r in ranges_of(boundaries)]


def test_ranges_run_from_the_lower_bound_to_infinity() -> None:
    assert ranges_of([5, -3]) == (Range(MIN_TOKEN, -3), Range(-3, 5), Range(5, MIN_TOKEN))


@pytest.mark.parametrize("tokens", [[], [MIN_TOKEN]])
def test_ring_without_inner_tokens_is_one_range(tokens: list[int]) -> None:
    assert ranges_of(tokens) == (Range(MIN_TOKEN, MIN_TOKEN),)


def test_token_at_the_lower_bound_yields_no_first_range() -> None:
    assert ranges_of([MIN_TOKEN, 7]) == (Range(MIN_TOKEN, 7), Range(7, MIN_TOKEN))


def test_range_contains_its_end_but_not_its_start() -> None:
    assert contains(Range(0, 10), 10)
    assert not contains(Range(0, 10), 0)
    assert contains(Range(10, MIN_TOKEN), MAX_TOKEN)
    assert contains(Range(10, MIN_TOKEN), MIN_TOKEN)
    assert not contains(Range(MIN_TOKEN, 10), MIN_TOKEN)


@given(tokens=st.lists(some_token, max_size=20), token=some_token | st.just(MIN_TOKEN))
def test_every_token_lies_in_exactly_one_range(tokens: list[int], token: int) -> None:
    holding = [range_ for range_ in ranges_of(tokens) if contains(range_, token)]
    placement = Placement.of(rows_at(*tokens))
    assert [range_of(placement.row_for(token))] == holding


@given(
    tokens=st.lists(some_token, max_size=20), wanted=st.tuples(some_token, some_token).map(sorted)
)
def test_overlapping_rows_are_those_that_share_a_token(
    tokens: list[int], wanted: list[int]
) -> None:
    start, end = wanted[0] - 1, wanted[1]
    placement = Placement.of(rows_at(*tokens))
    first, last = placement.row_for(start + 1), placement.row_for(end)
    between = slice(placement.rows.index(first), placement.rows.index(last) + 1)
    assert placement.overlapping(Range(start, end)) == placement.rows[between]


# The vectors of Cassandra's UniformRangePlacementTest, each within a whole ring.
@pytest.mark.parametrize(
    ("start", "tokens", "result"),
    [
        ([100, 200, 300, 400], [150], [100, 150, 200, 300, 400]),
        ([100, 200, 300, 400], [150, 250], [100, 150, 200, 250, 300, 400]),
        ([100, 200, 300, 400], [125, 150], [100, 125, 150, 200, 300, 400]),
        (
            [100, 200, 300, 400],
            [125, 150, 225, 250],
            [100, 125, 150, 200, 225, 250, 300, 400],
        ),
        ([100, 200, 300, 400], [325, 350], [100, 200, 300, 325, 350, 400]),
        ([100, 200, 300, 400], [25, 50], [25, 50, 100, 200, 300, 400]),
        ([0, 100], [0, 30, 60, 90], [0, 30, 60, 90, 100]),
        ([0, 100], [30, 60, 90, 100], [0, 30, 60, 90, 100]),
        ([-4611686018427387905], [-4611686018427387905, -3], [-4611686018427387905, -3]),
        ([], [MIN_TOKEN, 3074457345618258602], [3074457345618258602]),
        ([], [MIN_TOKEN, 0], [0]),
    ],
)
def test_rows_are_split_at_inner_tokens(
    start: list[int], tokens: list[int], result: list[int]
) -> None:
    assert [p for row in rows_at(*start) for p in split_row(row, tokens)] == rows_at(*result)


def test_apply_replaces_only_the_named_rows() -> None:
    halves = (RangeReplicas(100, 150, ABC, ABC), RangeReplicas(150, 200, ABC, ABC))
    placement = Placement.of(rows_at(100, 200))
    split = apply(placement, [Range(100, 200)], halves)
    assert split == Placement.of(rows_at(100, 150, 200))
    assert apply(split, [range_of(h) for h in halves], rows_at(100, 200)[1:2]) == placement


@pytest.mark.parametrize(
    ("removed", "added", "flaw"),
    [
        ([Range(100, 150)], [], r"\(100, 150\] cannot be removed: it is no row"),
        ([Range(100, 200), Range(100, 200)], [], "comes twice"),
        ([Range(100, 200)], [], "has other tokens than what is removed"),
        ([], [RangeReplicas(150, 200, ABC, ABC)], "has other tokens than what is removed"),
        ([Range(100, 200)], [RangeReplicas(100, 200, ABC, ("a",))], "receive no writes"),
    ],
)
def test_apply_refuses_changes_that_do_not_fit(
    removed: list[Range], added: list[RangeReplicas], flaw: str
) -> None:
    with pytest.raises(PlacementError, match=flaw):
        apply(Placement.of(rows_at(100, 200)), removed, added)


@pytest.mark.parametrize(
    ("rows", "flaw"),
    [
        ([], "no row has the tokens above"),
        (rows_at(100, 200)[:-1], "no row has the tokens above 200"),
        (rows_at(100, 200)[1:], "no row has the tokens from"),
        (rows_at(100, 200)[::2], "no row has the tokens from 100"),
        (rows_at(100, 200)[::-1], "its rows are not in ring order"),
        ([*rows_at(100), RangeReplicas(MIN_TOKEN, 50, ABC, ABC)], "it overlaps"),
        (
            [RangeReplicas(MIN_TOKEN, 9, ABC, ABC), RangeReplicas(9, 8, ABC, ABC)],
            "its end is not above its start",
        ),
        ([RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("a", "a"), ("a",))], "its reads name a twice"),
        ([RangeReplicas(MIN_TOKEN, MIN_TOKEN, (), ("a", "a"))], "its writes name a twice"),
        (
            [RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("a", "b"), ("b",))],
            "it is read from a, which receive no writes",
        ),
    ],
)
def test_placement_error_names_the_flaw_of_the_rows(rows: list[RangeReplicas], flaw: str) -> None:
    with pytest.raises(PlacementError, match=flaw):
        Placement.of(rows)
