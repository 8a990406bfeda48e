"""Who is up: silence takes a node down at once, one heartbeat does not bring it back."""

from __future__ import annotations

from stele.session_guard.liveness import Pulses

TIMEOUT_S = 5.0


def test_a_new_node_is_up_with_its_first_heartbeat() -> None:
    assert Pulses(TIMEOUT_S).beat("n1", 0.0).is_up("n1")
    assert not Pulses(TIMEOUT_S).is_up("n1")


def test_silence_beyond_the_timeout_takes_it_down() -> None:
    pulses = Pulses(TIMEOUT_S).beat("n1", 0.0)
    assert pulses.at(5.0).is_up("n1")
    assert not pulses.at(5.1).is_up("n1")


def test_one_heartbeat_does_not_bring_it_back_but_steady_ones_do() -> None:
    pulses = Pulses(TIMEOUT_S).beat("n1", 0.0).at(10.0).beat("n1", 10.0)
    assert not pulses.is_up("n1")
    pulses = pulses.beat("n1", 11.0).beat("n1", 12.0)
    assert not pulses.is_up("n1")
    assert pulses.beat("n1", 12.5).is_up("n1")


def test_a_gap_that_nobody_looked_at_counts_too() -> None:
    pulses = Pulses(TIMEOUT_S).beat("n1", 0.0).beat("n1", 20.0)
    assert not pulses.is_up("n1")


def test_a_gap_while_it_recovers_begins_anew() -> None:
    pulses = Pulses(TIMEOUT_S).beat("n1", 0.0).at(10.0).beat("n1", 10.0).beat("n1", 12.0)
    pulses = pulses.at(18.0).beat("n1", 18.0)
    assert not pulses.beat("n1", 19.0).is_up("n1")
    assert pulses.beat("n1", 20.5).is_up("n1")
