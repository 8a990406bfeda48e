"""Silence counts only while a reader was reading."""

from stele.domain.observed_time import ALWAYS, NEVER, ObservedTime

GAP_S = 5.0


def _read_from(first: int, last: int, clock: ObservedTime) -> ObservedTime:
    for at_s in range(first, last + 1):
        clock = clock.confirmed(float(at_s))
    return clock


def test_no_time_has_elapsed_before_the_first_read() -> None:
    assert ObservedTime(GAP_S).elapsed_s(NEVER, 1000.0) == 0.0


def test_time_counts_while_reads_have_no_gap() -> None:
    clock = _read_from(100, 160, ObservedTime(GAP_S))
    assert clock.elapsed_s(130.0, 161.0) == 31.0
    assert clock.elapsed_s(NEVER, 161.0) == 61.0


def test_no_time_counts_after_a_gap_without_reads() -> None:
    clock = _read_from(100, 160, ObservedTime(GAP_S))
    assert clock.elapsed_s(130.0, 160.0 + GAP_S) == 30.0 + GAP_S
    assert clock.elapsed_s(130.0, 160.0 + GAP_S + 1) == 0.0


def test_time_restarts_after_a_gap() -> None:
    clock = _read_from(100, 160, ObservedTime(GAP_S)).confirmed(235.0)
    assert clock.elapsed_s(130.0, 236.0) == 1.0
    assert clock.counted_since(130.0, 236.0) == 235.0
    assert clock.counted_since(235.5, 236.0) == 235.5


def test_reader_counts_no_time_before_its_start() -> None:
    clock = _read_from(100, 160, ObservedTime(GAP_S)).confirmed(161.0, began_s=150.0)
    assert clock.elapsed_s(130.0, 161.0) == 11.0


def test_late_confirmation_changes_nothing() -> None:
    clock = _read_from(100, 160, ObservedTime(GAP_S))
    assert clock.confirmed(120.0) is clock


def test_always_counts_all_of_the_time() -> None:
    assert ALWAYS.elapsed_s(130.0, 1000.0) == 870.0
