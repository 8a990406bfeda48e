from __future__ import annotations

from stele.node.cells import HybridClock


def test_timestamps_rise_while_the_clock_stops_or_jumps_back() -> None:
    times = iter([100, 100, 50, 200])
    clock = HybridClock(lambda: next(times))
    assert [clock.next() for _ in range(4)] == [100, 101, 102, 200]


def test_next_timestamp_is_later_than_any_seen() -> None:
    clock = HybridClock(lambda: 100)
    clock.see(500)
    clock.see(300)
    assert clock.next() == 501
    assert HybridClock(lambda: 100, last_us=900).next() == 901
