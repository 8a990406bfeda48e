"""Losses without a recovery: epochs that the operator gave up when it chose the other history."""

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
    return RecoveryWitness(world, world.witness)


def asked(taken: str) -> Asked:
    found = Asked()
    found.held = {"cu1": Held(TOPIC, 1, is_archive=True), "w1": Held(LOST, 1, is_archive=False)}
    found.taken = taken
    return found


def test_epochs_missing_in_the_taken_history_are_given_up() -> None:
    recoveries = witness()
    recoveries.asks(asked("cu1"))
    assert recoveries.gave_up(LOST, LINES[LATER].keys())
    assert not recoveries.gave_up(BEFORE, LINES[LATER].keys())
    assert not recoveries.gave_up(LATER, LINES[LOST].keys()), "another one went on"


def test_nothing_is_given_up_without_a_choice() -> None:
    recoveries = witness()
    recoveries.asks(asked(""))
    assert not recoveries.gave_up(LOST, LINES[LATER].keys())
    assert len(recoveries.asked) == 1


def hurt(went_on_s: float) -> RecoveryWitness:
    """Return a witness after the topic lost what cu1 has read. Another process continued after this time."""
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


def test_epochs_are_passed_over_once_their_only_holder_restarted() -> None:
    recoveries = hurt(went_on_s=1.0)
    assert not recoveries.was_passed_over(LOST), "cu1 stands still, and tells of it"
    recoveries._world.machines["cu1"].kills += 1
    assert recoveries.was_passed_over(LOST)
    assert not recoveries.was_passed_over(BEFORE)


@pytest.mark.parametrize("went_on_s", [NOTICED_S + 1])
def test_epochs_are_not_passed_over_after_the_time_to_notice(went_on_s: float) -> None:
    recoveries = hurt(went_on_s)
    recoveries._world.machines["cu1"].kills += 1
    assert not recoveries.was_passed_over(LOST)
