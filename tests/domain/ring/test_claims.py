"""The first claim on ranges, compared with a check of each claim."""

from hypothesis import given
from hypothesis import strategies as st

from stele.domain.ring.ranges import MIN_TOKEN, FirstClaims, Range

_TOKENS = st.integers(1, 12)
_ENDS = st.one_of(_TOKENS, st.just(MIN_TOKEN))


@st.composite
def _ranges(draw: st.DrawFn) -> Range:
    start = draw(st.one_of(st.integers(0, 11), st.just(MIN_TOKEN)))
    end = draw(_ENDS)
    return Range(start, end if end == MIN_TOKEN or end > start else MIN_TOKEN)


def _tokens(ranges: list[Range]) -> set[int]:
    """Return the small tokens in the ranges. 13 stands for all above 12."""
    return {
        token
        for range_ in ranges
        for token in range(14)
        if token > range_.start and (range_.end == MIN_TOKEN or token <= range_.end)
    }


@given(st.lists(st.lists(_ranges(), max_size=3), max_size=8), st.lists(_ranges(), max_size=3))
def test_first_overlapping_claim_is_found(claimed: list[list[Range]], asked: list[Range]) -> None:
    claims = FirstClaims()
    for place, ranges in enumerate(claimed):
        claims.add(ranges, place)
    overlapping = (
        place for place, ranges in enumerate(claimed) if _tokens(ranges) & _tokens(asked)
    )
    assert claims.first(asked) == next(overlapping, None)
