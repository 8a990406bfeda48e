"""What the log may have lost without a recovery: what the operator gave up when he took the other history."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stele.sim.processes.recoveries import Asked, Held, RecoveryWitness

BEFORE, LOST, TOPIC, LATER = (bytes([number] * 16) for number in range(1, 5))
LINES = {
    BEFORE: {BEFORE: 1},
    LOST: {BEFORE: 1, LOST: 2},
    TOPIC: {BEFORE: 1, TOPIC: 2},
    LATER: {BEFORE: 1, TOPIC: 2, LATER: 3},
}


def witness() -> RecoveryWitness:
    world: Any = SimpleNamespace(witness=SimpleNamespace(line=LINES.__getitem__))
    return RecoveryWitness(world)


def asked(taken: str) -> Asked:
    found = Asked()
    found.held = {"cu1": Held(TOPIC, 1, is_archive=True), "w1": Held(LOST, 1, is_archive=False)}
    found.taken = taken
    return found


def test_what_the_history_lacks_that_was_taken_is_given_up_where_the_log_goes_on_from_it() -> None:
    recoveries = witness()
    recoveries.asks(asked("cu1"))
    assert recoveries.gave_up(LOST, LINES[LATER].keys())
    assert not recoveries.gave_up(BEFORE, LINES[LATER].keys())
    assert not recoveries.gave_up(LATER, LINES[LOST].keys()), "another one went on"


def test_nothing_is_given_up_by_who_was_not_asked_to_choose() -> None:
    recoveries = witness()
    recoveries.asks(asked(""))
    assert not recoveries.gave_up(LOST, LINES[LATER].keys())
    assert len(recoveries.asked) == 1
