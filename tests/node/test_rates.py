"""Read and write rates of tablets: per second, smoothed, and unknown at first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.messages import UNKNOWN_RATE, TabletSizes
from stele.domain.tablets.maps import range_of
from stele.node.load import KNOWN_AFTER, Rate, Rates, smoothed
from tests.domain.load_of import table_of

HALF_LIFE_S = 100.0
KNOWN_S = KNOWN_AFTER * HALF_LIFE_S
OF = 4


class RatedNode:
    """A node that has some tablets of a table of four."""

    def __init__(self, *held: int) -> None:
        self.now_s = 0.0
        self.rates = Rates(HALF_LIFE_S, lambda: self.now_s)
        self.report(*held)

    def report(self, *held: int, of: int = OF) -> TabletSizes:
        (told,) = self.rates.with_rates([table_of("t", of, dict.fromkeys(held, 7))])
        return told

    def serve(self, tablet: int, times: int, *, lower: bool, written: bool = False) -> None:
        token = range_of(2 * OF, 2 * tablet + (not lower)).end
        for _ in range(times):
            self.rates.count("t", token, written=written)


def test_reads_and_writes_count_by_tablet_and_by_half() -> None:
    node = RatedNode(0, 3)
    node.serve(0, 100, lower=True)
    node.serve(0, 300, lower=False, written=True)
    node.serve(3, 200, lower=False)
    node.serve(2, 999, lower=True)
    node.now_s = 100.0
    told = node.report(0, 3)
    assert (told.tablets, told.sizes_bytes) == ((0, 3), (7, 7))
    assert (told.reads_per_s, told.writes_per_s) == ((1, 2), (3, 0))
    assert told.lower_half_per_s == (1, 0)


def test_rate_is_unknown_until_enough_time_has_passed() -> None:
    """Rates start as unknown after a restart, for a new tablet and for split tablets."""
    node = RatedNode(0)
    node.now_s = KNOWN_S - 1
    assert node.report(0, 1).reads_per_s == (UNKNOWN_RATE,) * 2
    node.now_s = KNOWN_S
    assert node.report(0, 1).reads_per_s == (0, UNKNOWN_RATE)
    node.now_s = 2 * KNOWN_S
    assert node.report(0, 1).reads_per_s == (0, 0)
    assert node.report(0, 1, 2, 3, of=2 * OF).reads_per_s == (UNKNOWN_RATE,) * 4
    assert node.report(0, 1).reads_per_s == (UNKNOWN_RATE,) * 2


def test_requests_served_while_the_tablet_was_elsewhere_do_not_count() -> None:
    node = RatedNode(0)
    node.now_s = 100.0
    node.serve(1, 1000, lower=True)
    node.report(0, 1)
    node.now_s = 200.0
    assert node.report(0, 1).reads_per_s == (0, 0)
    node.serve(1, 1000, lower=True)
    node.now_s = 300.0
    node.report(0)
    node.report(0, 1)
    node.now_s = 400.0
    assert node.report(0, 1).reads_per_s == (0, 0)


def test_without_traffic_a_rate_halves_with_each_half_life() -> None:
    node = RatedNode(0)
    for at in range(1, 21):
        node.serve(0, 64_000, lower=True)
        node.now_s = at * HALF_LIFE_S
        told = node.report(0)
    assert told.reads_per_s == (640,)
    node.now_s += HALF_LIFE_S
    assert node.report(0).reads_per_s == (320,)
    node.now_s += 2 * HALF_LIFE_S
    assert node.report(0).reads_per_s == (80,)


def test_short_burst_barely_changes_the_rate() -> None:
    """A thousand requests per second for three seconds, then none."""
    node = RatedNode(0)
    for at in range(1, 21):
        node.now_s = at * HALF_LIFE_S
        node.report(0)
    node.serve(0, 3000, lower=True)
    node.now_s += 3
    assert node.report(0).reads_per_s[0] <= 25


def test_second_report_at_the_same_time_has_the_same_rate() -> None:
    node = RatedNode(0)
    node.serve(0, 100, lower=True)
    node.now_s = 100.0
    assert node.report(0).reads_per_s == node.report(0).reads_per_s == (1,)


steps = st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=20)


@given(steps, st.floats(0, 1e6), st.floats(1e-3, 1e4))
def test_steady_rate_does_not_depend_on_the_report_interval(
    times_s: list[float], rate: float, half_life_s: float
) -> None:
    found, age_s = Rate(), 0.0
    for elapsed_s in times_s:
        served = (rate * elapsed_s, 0.0, 0.0)
        found = smoothed(found, served, age_s, elapsed_s, half_life_s)
        age_s += elapsed_s
    assert found.reads == pytest.approx(rate)


@given(st.floats(0, 1e6), st.integers(0, 10**6), st.floats(0, 1e4), st.floats(1e-9, 1e4))
def test_smoothed_rate_is_between_the_old_and_the_measured_rate(
    before: float, served: int, age_s: float, elapsed_s: float
) -> None:
    now = smoothed(Rate(before), (served, 0, 0), age_s, elapsed_s, HALF_LIFE_S)
    low, high = sorted((before, served / elapsed_s))
    if not age_s:
        low = high = served / elapsed_s
    assert low * (1 - 1e-6) <= now.reads <= high * (1 + 1e-6)
