"""Reads that must be answered: those that no fault can have disturbed."""

from __future__ import annotations

import pytest

from stele_simulator.live.availability import SETTLED_S, AnswersDue, check_availability
from stele_simulator.live.faults import FaultKind, Role
from stele_simulator.live.history import Hit, StateRead
from stele_simulator.violation import Violation

ME = "metadata-log-1"


def read(began: float, *, answered: bool = False) -> StateRead:
    return StateRead(
        began=began, ended=began + 1, through=ME, level="barrier", answered=answered, answer="?"
    )


def hit(began: float, ended: float, role: Role, name: str, kind: FaultKind) -> Hit:
    return Hit(began=began, ended=ended, role=role, name=name, kind=kind)


HINDERED = [
    (hit(100, 105, Role.METADATA_LOG, ME, FaultKind.KILL), 106),
    (hit(100, 105, Role.METADATA_LOG, ME, FaultKind.KILL), 104 + SETTLED_S),
    (hit(100, 110, Role.EVERYBODY, "", FaultKind.LOSSY), 109),
    (hit(100, 150, Role.BROKER, "broker-1", FaultKind.GONE), 101 + SETTLED_S / 2),
    (hit(100, 150, Role.BROKER, "broker-1", FaultKind.GONE), 151),
    (hit(100, 150, Role.BROKER, "broker-1", FaultKind.PAUSE), 140),
]
OWED = [
    hit(100, 105, Role.METADATA_LOG, "metadata-log-2", FaultKind.KILL),
    hit(100, 200, Role.NODE, "n1", FaultKind.SLOW),
    hit(80, 150, Role.BROKER, "broker-1", FaultKind.GONE),
    hit(60, 70, Role.METADATA_LOG, ME, FaultKind.PAUSE),
    hit(130, 140, Role.EVERYBODY, "", FaultKind.SLOW),
]


@pytest.mark.parametrize(("fault", "at"), HINDERED)
def test_read_that_a_fault_may_have_disturbed_may_fail(fault: Hit, at: float) -> None:
    assert check_availability([fault, read(at)]) == AnswersDue(0, 0)


@pytest.mark.parametrize("fault", OWED)
def test_undisturbed_read_must_be_answered(fault: Hit) -> None:
    began = 102.0
    with pytest.raises(Violation, match="which no fault has hit for 20 s, answers reads"):
        check_availability([fault, read(began)])
    gone = fault.kind is FaultKind.GONE
    assert check_availability([fault, read(began, answered=True)]) == AnswersDue(1, int(gone))
