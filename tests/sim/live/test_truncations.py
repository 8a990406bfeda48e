"""Observations of clients around truncations: the operations of each pause, and contradictions."""

from __future__ import annotations

import pytest

from stele_simulator.live.history import Copy, DataOp, Truncation
from stele_simulator.live.replica_copies import check_copies
from stele_simulator.live.truncations import Pause, pauses, registers
from stele_simulator.registers import check_registers
from stele_simulator.violation import Violation

KEY = "scratch/key1"


def truncated(began: float, ended: float, *, done: bool = True) -> Truncation:
    return Truncation(began=began, ended=ended, keyspace="scratch", done=done)


def write(began: float, ended: float, value: str, key: str = KEY, **how: bool) -> DataOp:
    known = how.get("known", True)
    return DataOp(
        began=began,
        ended=ended,
        client=1,
        node="n1",
        write=True,
        key=key,
        value=value,
        done=known,
        known=known,
    )


def read(began: float, ended: float, value: str | None, key: str = KEY) -> DataOp:
    return DataOp(
        began=began,
        ended=ended,
        client=1,
        node="n1",
        write=False,
        key=key,
        value=value,
        done=True,
        known=True,
    )


def check(operations: list[DataOp], *truncations: Truncation) -> int:
    return sum(check_registers(part) for part in registers(operations, truncations))


def test_pauses_lie_between_two_truncations() -> None:
    inf = float("inf")
    found = pauses([truncated(5, 6), truncated(1, 2)])
    assert found == [Pause(-inf, -inf, 1), Pause(1, 2, 5), Pause(5, 6, inf)]


def test_values_are_uncertain_after_a_truncation_with_an_unknown_end() -> None:
    lost = [write(1, 2, "a"), read(20, 21, None), read(22, 23, "a")]
    assert check(lost, truncated(3, 9, done=False)) == 1
    with pytest.raises(Violation, match="never written"):
        check([*lost, read(40, 41, "a")], truncated(3, 9, done=False), truncated(30, 31))


def test_truncated_value_may_not_return() -> None:
    assert check([write(1, 2, "a"), read(7, 8, None)], truncated(3, 6)) == 2
    with pytest.raises(Violation, match="never written"):
        check([write(1, 2, "a"), read(7, 8, "a")], truncated(3, 6))


def test_write_after_a_truncation_must_be_read() -> None:
    assert check([write(7, 8, "a"), read(9, 10, "a")], truncated(3, 6)) == 2
    with pytest.raises(Violation, match="was there"):
        check([write(7, 8, "a"), read(9, 10, None), read(11, 12, "a")], truncated(3, 6))


@pytest.mark.parametrize("found", ["a", None])
def test_write_that_overlaps_a_truncation_may_be_lost(found: str | None) -> None:
    check([write(4, 5, "a"), read(7, 8, found)], truncated(3, 6))
    check([write(2, 4, "a"), read(7, 8, found)], truncated(3, 6))
    check([write(1, 2, "a", known=False), read(7, 8, found)], truncated(3, 6))


def test_read_that_overlaps_a_truncation_proves_nothing() -> None:
    assert check([write(1, 2, "a"), read(2.5, 8, None), read(5, 9, "a")], truncated(3, 6)) == 1


def test_other_keyspaces_are_checked_over_the_whole_run() -> None:
    operations = [write(1, 2, "a", "key1"), read(7, 8, "a", "key1")]
    assert check(operations, truncated(3, 6)) == 2
    with pytest.raises(Violation, match="was there"):
        check([*operations, read(3, 4, None, "key1")], truncated(3, 6))


def copies(*values: str | None) -> list[Copy]:
    return [
        Copy(began=50, ended=51, key=KEY, node=f"n{number}", value=value)
        for number, value in enumerate(values, 1)
    ]


def test_quorum_of_the_replicas_has_the_newest_acknowledged_value() -> None:
    operations = [write(1, 2, "a"), write(3, 4, "b")]
    assert check_copies(operations, copies("b", "b", "a")) == 1
    with pytest.raises(Violation, match="only \\['n1'\\]"):
        check_copies(operations, copies("b", "a", None))


def test_both_of_two_replicas_must_have_the_value() -> None:
    with pytest.raises(Violation, match="only \\['n2'\\]"):
        check_copies([write(1, 2, "a")], copies(None, "a"))


def test_possibly_newer_values_count_as_well() -> None:
    operations = [write(1, 2, "a"), write(0, 9, "b"), write(0, 1, "c", known=False)]
    assert check_copies(operations, copies("b", "c", None)) == 1


def test_keys_without_an_acknowledged_write_are_not_counted() -> None:
    assert check_copies([write(1, 2, "a", known=False)], copies(None, None)) == 0
