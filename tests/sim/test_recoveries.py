"""Losses without a recovery: the epochs that the operator gave up by choosing the other history."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stele_simulator.kernel import us
from stele_simulator.processes.recoveries import NOTICED_S, Asked, Held, RecoveryWitness

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


def hurt(went_on_s: float) -> RecoveryWitness:
    """The topic loses what cu1 has read, and another process continues in its place after this time."""
    recoveries = witness()
    world: Any = recoveries._world
    cu1 = SimpleNamespace(name="cu1", kills=0, alive=True, image=SimpleNamespace(state_id=LOST))
    kernel = SimpleNamespace(now_us=0, at=lambda *call: call[2](*call[3:]))
    world.machines, world.replicas, world.kernel = {"cu1": cu1}, [], kernel
    world.topic, world.witness.head = SimpleNamespace(faulted_us=0), BEFORE
    recoveries.hurt(LOST)
    kernel.now_us = us(went_on_s)
    recoveries.wins(BEFORE)
    return recoveries


def test_what_others_went_on_without_is_passed_over_once_who_has_it_was_started_again() -> None:
    recoveries = hurt(went_on_s=1.0)
    assert not recoveries.was_passed_over(LOST), "cu1 stands still, and tells of it"
    recoveries._world.machines["cu1"].kills += 1
    assert recoveries.was_passed_over(LOST)
    assert not recoveries.was_passed_over(BEFORE)


@pytest.mark.parametrize("went_on_s", [NOTICED_S + 1])
def test_nothing_is_passed_over_by_who_has_had_the_time_to_notice(went_on_s: float) -> None:
    recoveries = hurt(went_on_s)
    recoveries._world.machines["cu1"].kills += 1
    assert not recoveries.was_passed_over(LOST)
