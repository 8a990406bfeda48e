"""The check of registers compared with a search through all orders, on histories of real overlaps."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stele_simulator.live.history import DataOp
from stele_simulator.registers import check_registers
from stele_simulator.violation import Violation


def _op(
    began: float, ended: float, value: str | None, *, write: bool, known: bool = True
) -> DataOp:
    return DataOp(
        began=began,
        ended=ended,
        client=1,
        node="n1",
        write=write,
        key="k",
        value=value,
        done=known,
        known=known,
    )


def _write(began: float, ended: float, value: str, *, known: bool = True) -> DataOp:
    return _op(began, ended, value, write=True, known=known)


def _read(began: float, ended: float, value: str | None) -> DataOp:
    return _op(began, ended, value, write=False)


def _is_linearizable(operations: list[DataOp]) -> bool:
    """Try every order, and every subset of the unknown writes."""
    unknown = [op for op in operations if not op.known]
    sure = [op for op in operations if op.known]
    read = {op.value for op in operations if not op.write}
    happened = [op for op in unknown if op.value in read]
    return any(_explains(order) for order in permutations([*sure, *happened]))


def _explains(order: tuple[DataOp, ...]) -> bool:
    value: str | None = None
    for at, op in enumerate(order):
        if any(later.known and later.ended < op.began for later in order[at + 1 :]):
            return False
        if op.write:
            value = op.value
        elif op.value != value:
            return False
    return True


@st.composite
def _histories(draw: st.DrawFn) -> list[DataOp]:
    """Return up to six operations with distinct times. Reads return any value, written or not."""
    count = draw(st.integers(1, 6))
    moments = draw(st.permutations(range(2 * count)))
    writes = draw(st.integers(1, count))
    found: list[DataOp] = []
    for number in range(count):
        began, ended = sorted(moments[2 * number : 2 * number + 2])
        if number < writes:
            known = draw(st.integers(0, 3)) > 0
            found.append(_write(began, ended, f"v{number}", known=known))
        else:
            value = draw(st.sampled_from([None, *(f"v{n}" for n in range(writes))]))
            found.append(_read(began, ended, value))
    return found


@given(_histories())
@example([_write(0, 1, "a"), _write(2, 3, "b"), _read(4, 5, "a")])
@example([_write(0, 9, "a"), _read(1, 2, "a"), _read(3, 4, None)])
@example([_write(0, 1, "a", known=False), _read(2, 3, None), _read(4, 5, "a")])
@example([_write(0, 5, "a"), _write(1, 6, "b"), _read(7, 8, "a"), _read(9, 10, "b")])
def test_check_finds_exactly_the_histories_without_a_legal_order(operations: list[DataOp]) -> None:
    possible = _is_linearizable(operations)
    if possible:
        assert check_registers(operations) <= len(operations)
    else:
        with pytest.raises(Violation):
            check_registers(operations)


def test_value_that_was_never_written_is_found() -> None:
    with pytest.raises(Violation, match="never written"):
        check_registers([_write(0, 1, "a"), _read(2, 3, "b")])


def test_failed_write_may_not_be_read() -> None:
    refused = msgspec.structs.replace(_write(0, 1, "a"), done=False)
    assert check_registers([refused]) == 0
    with pytest.raises(Violation, match="never written"):
        check_registers([refused, _read(2, 3, "a")])


def test_long_history_takes_one_pass() -> None:
    """It has sequential writes and reads, and one stale read among thousands."""
    operations: list[DataOp] = []
    for number in range(5000):
        operations.append(_write(4 * number, 4 * number + 1, f"v{number}"))
        operations.append(_read(4 * number + 2, 4 * number + 3, f"v{number}"))
    assert check_registers(operations) == 10_000
    stale = _read(4 * 2500 + 2, 4 * 2500 + 3, "v2498")
    with pytest.raises(Violation, match="'v2498' of k was there until"):
        check_registers([*operations, stale])


def test_keys_are_checked_separately() -> None:
    one = _write(0, 1, "a")
    other = msgspec.structs.replace(_read(2, 3, None), key="other")
    assert check_registers([one, other]) == 2
