"""Levels of barriers in two datacentres after the loss of one: required nodes and allowed levels."""

import msgspec
import pytest
from prometheus_client import Counter

from stele.coordinator import metrics
from stele.domain.commands import CreateKeyspace, DropKeyspace, Leave, SetSetting
from stele.domain.evolve import Delta
from stele.domain.model.topology import Advance, AdvanceFence
from stele.domain.model.transitions import BarrierRelaxed, VersionsChanged
from stele.domain.names import BarrierLevel, RequestStatus, TransitionState
from stele.domain.view import epoch_view
from stele.runtime.answers.coordinator import WaitProgress
from stele.words.facts import EpochRow, fact_lines
from tests.coordinator.stories import reach, status_of, undoing
from tests.coordinator.test_dcs_and_racks import cluster
from tests.coordinator.test_why import shown, told
from tests.coordinator.world import World

STATE = TransitionState
LONG_S = 200.0


def two_dcs() -> World:
    world = cluster(dc1="a1 a2 b1 c1", dc2="d1 e1 f1")
    assert world.apply(CreateKeyspace("library", {"dc1": 3, "dc2": 3})) is None
    return world


def leaving(state: TransitionState, *, dead: str = "d1 e1 f1") -> World:
    """Node a2 leaves, and a dc fails as soon as the leave has reached a state."""
    world = two_dcs()
    assert world.apply(Leave("a2"), "leave-a2") is None
    reach(world, "leave-a2", state, fenced=False)
    for name in dead.split():
        world.crash(name)
    return world


def setting(world: World, **values: str) -> None:
    for name, value in values.items():
        assert world.apply(SetSetting(f"progress_barrier_{name}", value, force=True)) is None


def relaxations(world: World) -> list[BarrierRelaxed]:
    facts = (fact for epoch in world.epochs for fact in epoch.facts)
    return [fact for fact in facts if isinstance(fact, BarrierRelaxed)]


def let_through(world: World) -> list[tuple[int, str]]:
    """Return version and level of each epoch that a relaxed barrier let through."""
    facts = (fact for epoch in world.epochs for fact in epoch.facts)
    versions = [fact.versions for fact in facts if isinstance(fact, VersionsChanged)]
    return [(v.version, v.let_through) for v in versions if v.let_through]


def sample(counter: Counter) -> float:
    (family,) = counter.collect()
    return next(s.value for s in family.samples if s.name.endswith("_total"))


def wait_of_all(world: World) -> WaitProgress:
    return next(wait for wait in shown(world).waits if not wait.request_ids)


def test_barrier_waits_forever_for_a_dc_by_default_and_names_its_nodes() -> None:
    world = leaving(STATE.WRITE_BOTH_READ_NEW)
    world.pass_s(2 * 3600)
    assert world.transition("leave-a2").state is STATE.WRITE_BOTH_READ_NEW
    assert not world.fenced() and not relaxations(world)
    wait = wait_of_all(world)
    assert wait.detail == "EACH_QUORUM lacks d1, e1, f1"
    assert {blocker.node_id for blocker in wait.blockers} == {"d1", "e1", "f1"}
    assert wait.limit is None
    line, *_ = told(world, "leave-a2")
    assert line.endswith("; EACH_QUORUM lacks d1, e1, f1; no setting ends this wait")
    for name in ("d1", "e1"):
        world.nodes[name].alive = True
    world.run()
    assert status_of(world, "leave-a2") is RequestStatus.DONE


def test_operation_that_needs_a_dead_dc_is_rolled_back_before_reads_move() -> None:
    world = undoing(leaving(STATE.WRITE_BOTH_READ_OLD))
    world.until(lambda: status_of(world, "leave-a2") is RequestStatus.FAILED, "undone", LONG_S)


def test_operation_continues_at_a_permitted_lower_level() -> None:
    world = leaving(STATE.WRITE_BOTH_READ_OLD)
    setting(world, min_level="QUORUM", relax_after_s="60")
    world.pass_s(50)
    assert not world.transition("leave-a2").mark
    limit = wait_of_all(world).limit
    assert limit is not None
    assert (limit.setting, limit.then) == ("progress_barrier_relax_after_s", "QUORUM will do")
    world.run(2000)
    assert status_of(world, "leave-a2") is RequestStatus.DONE


def test_each_barrier_is_relaxed_on_its_own_and_recorded() -> None:
    world = leaving(STATE.WRITE_BOTH_READ_NEW)
    version = world.version
    setting(world, min_level="QUORUM", relax_after_s="30")
    world.pass_s(25)
    assert not relaxations(world), "an operation that waits has the whole time from when it began"
    world.until(lambda: relaxations(world), "relaxed", LONG_S)
    (relaxed,) = relaxations(world)
    assert relaxed == BarrierRelaxed(version, BarrierLevel.QUORUM, ("d1", "e1", "f1"), unsafe=False)
    assert shown(world).barrier_level is BarrierLevel.QUORUM
    assert shown(world).barrier_relaxed
    world.until(lambda: world.version > version, "the next version", LONG_S)
    assert let_through(world) == [(version, "QUORUM"), (version + 1, "QUORUM")]
    assert not world.image.topology.relaxed_to
    began_s = world.now_s
    world.pass_s(25)
    assert len(relaxations(world)) == 1, "the next version's barrier waits from its start"
    world.run(2000)
    assert world.now_s - began_s >= 30
    assert [fact.level for fact in relaxations(world)] == [BarrierLevel.QUORUM] * 2


def test_long_waiting_barrier_is_relaxed_as_soon_as_permitted() -> None:
    world = leaving(STATE.WRITE_BOTH_READ_NEW)
    world.pass_s(100)
    setting(world, min_level="QUORUM", relax_after_s="90")
    world.pass_s(2)
    assert len(relaxations(world)) == 1


def test_history_names_the_relaxed_level_and_the_missing_nodes() -> None:
    world = leaving(STATE.WRITE_BOTH_READ_NEW)
    setting(world, min_level="QUORUM", relax_after_s="10")
    world.run(2000)
    shown = msgspec.json.encode([epoch_view(epoch) for epoch in world.epochs])
    rows = msgspec.json.decode(shown, type=list[EpochRow])
    lines = [line for row in rows for line in fact_lines(row)]
    assert any("is relaxed to QUORUM without d1, e1, f1" in line for line in lines)
    assert any(line.endswith(", let through at QUORUM") for line in lines)
    assert not any("unsafe" in line for line in lines)


def test_relaxed_barriers_are_counted_by_level() -> None:
    world = leaving(STATE.WRITE_BOTH_READ_NEW)
    setting(world, min_level="QUORUM", relax_after_s="10")
    world.run(2000)
    counter = metrics.relaxed.labels("QUORUM")
    before = sample(counter)
    for image, epoch in zip(world.images, world.epochs, strict=False):
        assert len(metrics.relaxations(Delta(image, epoch))) <= 1
    assert sample(counter) - before == len(relaxations(world)) == 2


def test_barrier_answered_by_all_is_not_recorded_as_relaxed() -> None:
    world = leaving(STATE.WRITE_BOTH_READ_NEW)
    setting(world, min_level="QUORUM", relax_after_s="10")
    world.until(lambda: relaxations(world), "relaxed", LONG_S)
    for name in ("d1", "e1", "f1"):
        world.nodes[name].alive = True
    world.run()
    assert status_of(world, "leave-a2") is RequestStatus.DONE
    assert not let_through(world)


def test_level_forbidden_again_no_longer_counts() -> None:
    world = leaving(STATE.WRITE_BOTH_READ_NEW, dead="d1 e1 f1 b1")
    setting(world, min_level="QUORUM", relax_after_s="10")
    world.until(lambda: relaxations(world), "relaxed", LONG_S)
    setting(world, min_level="")
    world.nodes["b1"].alive = True
    world.pass_s(LONG_S)
    assert world.transition("leave-a2").state is STATE.WRITE_BOTH_READ_NEW
    assert shown(world).barrier_level is BarrierLevel.EACH_QUORUM
    assert not shown(world).barrier_relaxed
    for name in ("d1", "e1"):
        world.nodes[name].alive = True
    world.run()
    assert not let_through(world)


def test_barrier_is_relaxed_step_by_step_to_the_lowest_level() -> None:
    """Five of six nodes and more are silent: only ONE is reachable. This is unsafe, and I5 reports it."""
    world = leaving(STATE.WRITE_BOTH_READ_NEW, dead="d1 e1 f1 b1 c1")
    setting(world, min_level="LOCAL_QUORUM", relax_after_s="20")
    began_s = world.now_s
    world.pass_s(300)
    assert [fact.level for fact in relaxations(world)] == ["QUORUM", "LOCAL_QUORUM"]
    assert [fact.unsafe for fact in relaxations(world)] == [False, True]
    assert world.transition("leave-a2").state is STATE.WRITE_BOTH_READ_NEW
    setting(world, min_level="ONE")
    with pytest.raises(AssertionError, match="Change"):
        world.pass_s(60)
    assert world.now_s - began_s > 300


def test_relaxed_level_is_kept_after_a_coordinator_restart() -> None:
    world = leaving(STATE.WRITE_BOTH_READ_NEW, dead="d1 e1 f1 b1 c1")
    setting(world, min_level="LOCAL_QUORUM", relax_after_s="20")
    world.until(lambda: relaxations(world), "relaxed", LONG_S)
    world.replace_brain()
    world.pass_s(15)
    assert shown(world).barrier_level is BarrierLevel.QUORUM


def test_lower_configured_level_is_enough_without_relaxing() -> None:
    world = leaving(STATE.WRITE_BOTH_READ_NEW)
    setting(world, level="QUORUM")
    world.pass_s(100)
    assert status_of(world, "leave-a2") is RequestStatus.DONE
    assert not relaxations(world)


def test_level_all_waits_only_for_replicas_of_the_ranges() -> None:
    world = cluster(dc1="a1 a2 b1 c1", dc2="d1 e1 f1")
    setting(world, level="ALL")
    assert world.apply(CreateKeyspace("near", {"dc1": 3})) is None
    assert world.apply(Leave("a2"), "leave-a2") is None
    reach(world, "leave-a2", STATE.WRITE_BOTH_READ_NEW, fenced=False)
    for name in ("b1", "d1"):
        world.crash(name)
    world.pass_s(60)
    assert wait_of_all(world).detail == "ALL lacks b1"
    assert [blocker.node_id for blocker in wait_of_all(world).blockers] == ["b1"]
    world.nodes["b1"].alive = True
    world.run()
    assert not world.nodes["d1"].alive, "it has nothing to do with these ranges"


def test_operation_that_would_need_relaxing_is_rejected() -> None:
    world = two_dcs()
    setting(world, min_level="QUORUM")
    assert world.apply(SetSetting("on_unresponsive", "undo")) is None
    for name in ("d1", "e1", "f1"):
        world.crash(name)
    world.pass_s(10)
    assert world.apply(DropKeyspace("library"), "drop") is None
    world.until(lambda: status_of(world, "drop") is RequestStatus.FAILED, "rejected", LONG_S)
    assert "d1, e1, f1" in world.image.requests.requests["drop"].error


@pytest.mark.parametrize("relaxed", [True, False])
def test_command_at_a_lower_level_is_refused_after_the_level_is_raised(*, relaxed: bool) -> None:
    """This covers the fence, and the next step, of a coordinator that has not read the setting yet."""
    world = leaving(STATE.WRITE_BOTH_READ_NEW, dead="d1 e1 f1 b1 c1")
    if relaxed:
        setting(world, min_level="ONE", relax_after_s="5")
        world.until(lambda: len(relaxations(world)) == 3, "ONE", LONG_S)
    else:
        setting(world, level="ONE")
    version = world.version
    setting(world, **({"min_level": "QUORUM"} if relaxed else {"level": "EACH_QUORUM"}))
    for late in (AdvanceFence(1, version, "ONE"), Advance(term=1, version=version, level="ONE")):
        refused = world.apply(late)
        assert refused is not None and refused.code == "overtaken"
        assert "counted at ONE" in refused.message
    world.pass_s(100)
    assert world.version == version
