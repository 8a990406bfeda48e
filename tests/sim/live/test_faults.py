"""The plan of faults is a function of its seed, and never stops two of three brokers at once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stele_simulator.live.faults import BROKER_RECOVERY_S, FaultKind, Role, plan, rules_of

DURATION_S = 600.0


def test_equal_seeds_give_equal_plans() -> None:
    assert plan(3, DURATION_S) == plan(3, DURATION_S) != plan(4, DURATION_S)


@pytest.mark.parametrize("seed", range(20))
def test_brokers_fail_one_at_a_time_and_all_faults_end_in_time(seed: int) -> None:
    faults = plan(seed, DURATION_S)
    brokers = [fault for fault in faults if fault.role is Role.BROKER]
    assert len(faults) > 60 and len(brokers) > 2
    for one, two in pairwise(brokers):
        assert two.at_s >= one.at_s + one.lasts_s + BROKER_RECOVERY_S
    assert all(fault.at_s + fault.lasts_s <= DURATION_S for fault in faults)


def test_ten_minutes_contain_every_kind_and_role() -> None:
    faults = [fault for seed in range(3) for fault in plan(seed, DURATION_S)]
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert {fault.role for fault in faults} == set(Role)


def test_rules_cut_the_right_directions() -> None:
    faults = [fault for seed in range(3) for fault in plan(seed, DURATION_S)]
    by_kind = {fault.kind: fault for fault in faults}

    def cut(kind: FaultKind, source: str, target: str) -> bool:
        rules = rules_of(by_kind[kind], "n1", ["broker-1", "broker-2"])
        return any(rule.cut and rule.holds_for(source, target) for rule in rules)

    assert cut(FaultKind.ISOLATE, "n1", "n2") and cut(FaultKind.ISOLATE, "n2", "n1")
    assert cut(FaultKind.DEAF, "n2", "n1") and not cut(FaultKind.DEAF, "n1", "n2")
    assert cut(FaultKind.MUTE, "n1", "n2") and not cut(FaultKind.MUTE, "n2", "n1")
    assert cut(FaultKind.NO_LOG, "n1", "broker-2") and cut(FaultKind.NO_LOG, "broker-1", "n1")
    assert not cut(FaultKind.NO_LOG, "n1", "n2")
    assert not cut(FaultKind.ISOLATE, "n2", "n3")


def test_processes_still_reach_each_other_without_brokers() -> None:
    fault = next(f for s in range(9) for f in plan(s, DURATION_S) if f.kind is FaultKind.NO_BROKER)
    rules = rules_of(fault, "", ["broker-1", "broker-2"], ["n1", "coordinator-1"])

    def is_cut(source: str, target: str) -> bool:
        return any(rule.holds_for(source, target) for rule in rules)

    assert is_cut("n1", "broker-1") and is_cut("broker-2", "coordinator-1")
    assert not is_cut("n1", "coordinator-1") and not is_cut("broker-1", "broker-2")
    assert not is_cut("client", "broker-1")


@pytest.mark.parametrize("seed", range(5))
def test_long_faults_of_services_and_nodes_do_not_overlap(seed: int) -> None:
    long = [f for f in plan(seed, DURATION_S) if f.kind in (FaultKind.STOP, FaultKind.NO_BROKER)]
    assert all(fault.role not in (Role.BROKER, Role.REDIS) for fault in long)
    for one, two in pairwise(long):
        assert two.at_s >= one.at_s + one.lasts_s
