"""The reads that a metadata-log must answer, and the answer, in a world of whole processes."""

from collections.abc import Callable, Iterator

import pytest

from stele.domain.commands import SetSetting
from stele.domain.image import EMPTY, Image
from stele_simulator.kernel import us
from stele_simulator.processes.broker import BROKER, EPOCHS
from stele_simulator.processes.callers import Caller
from stele_simulator.processes.disaster import Disaster
from stele_simulator.processes.interposed import Current, interposed
from stele_simulator.processes.machine import Machine
from stele_simulator.processes.read_availability import LIMIT_S, OWED, SETTLED_S, STALLS
from stele_simulator.processes.records import ZERO
from stele_simulator.processes.run import Nobody
from stele_simulator.processes.stale_leaders import OLD_END
from stele_simulator.processes.stores import watch
from stele_simulator.processes.world import World
from stele_simulator.scenario import Action
from stele_simulator.violation import Violation

pytestmark = pytest.mark.slow
QUIET_S = SETTLED_S + 10
LEFT_OUT: list[Callable[[World], object]] = [
    lambda world: world.logs[0].pause(1.0),
    lambda world: world.logs[0].slow(1.0),
    lambda world: world.cut(1, {(BROKER.name, "w1")}, 1.0),
    lambda world: world.cut(1, {(EPOCHS, "w1")}, 1.0),
    lambda world: world.cut(1, {("w1", BROKER.name)}, 1.0),
    lambda world: world.topic.change_leader(0.5),
    lambda world: world.roll_back(0.9, silent=False),
    lambda world: world.lose_topic(silent=True),
]


@pytest.fixture
def world() -> Iterator[World]:
    """Return a world in which nothing has gone wrong for long enough."""
    current = Current(Nobody(1))
    with interposed(current, "answers") as patch:
        found = World(Disaster(seed=1), current)
        watch(patch, found, lambda: current.who)
        found.found()
        found.run_until(us(QUIET_S))
        yield found
        found.end()


def _later(world: World, seconds: float) -> None:
    world.run_until(world.kernel.now_us + us(seconds))


def _refused(world: World) -> None:
    asked = world.read_availability.begins(world.logs[0])
    world.read_availability.fails(asked, TimeoutError())


def test_undisturbed_metadata_log_must_answer(world: World) -> None:
    assert world.read_availability.owed > 0
    with pytest.raises(Violation, match="answers a read of") as raised:
        _refused(world)
    assert raised.value.invariant == OWED


def test_missing_answer_is_a_violation(world: World) -> None:
    world.read_availability.begins(world.logs[0])
    with pytest.raises(Violation, match="it has not: nothing"):
        _later(world, LIMIT_S + 5)


@pytest.mark.parametrize("disturb", LEFT_OUT)
def test_metadata_log_disturbed_just_before_may_fail(
    world: World, disturb: Callable[[World], object]
) -> None:
    disturb(world)
    _later(world, 2.0)
    _refused(world)


def test_metadata_log_disturbed_meanwhile_may_fail(world: World) -> None:
    asked = world.read_availability.begins(world.logs[0])
    world.logs[0].pause(1.0)
    world.read_availability.fails(asked, TimeoutError())


def test_metadata_log_killed_meanwhile_may_fail(world: World) -> None:
    world.read_availability.begins(world.logs[0])
    world.logs[0].crash()
    world.logs[0].boot()
    _later(world, LIMIT_S + 1)
    world.read_availability.look()


def test_metadata_log_disturbed_long_ago_must_answer(world: World) -> None:
    world.logs[0].pause(1.0)
    _later(world, SETTLED_S + 2)
    with pytest.raises(Violation, match="answers a read of"):
        _refused(world)


def test_faults_of_other_processes_are_no_excuse(world: World) -> None:
    world.logs[1].crash()
    world.cut(1, {("w2", BROKER.name), (BROKER.name, "n1")}, 30.0)
    with pytest.raises(Violation, match="answers a read of"):
        _refused(world)


def test_metadata_log_that_loses_records_in_a_row_may_fail(world: World) -> None:
    asked = world.read_availability.begins(world.logs[0])
    for _ in range(STALLS):
        for _ in range(5):
            world.read_availability.appends_late("w1")
        _later(world, 2.0)
    world.read_availability.fails(asked, TimeoutError())
    _later(world, 5.0)
    with pytest.raises(Violation, match="answers a read of"):
        _refused(world)


def test_no_answer_is_required_until_a_recovered_log_has_started(world: World) -> None:
    recoveries, now_us = world.witness.recoveries, world.kernel.now_us
    world.topic.faulted_us, recoveries.newest_us = now_us - us(5), now_us - us(4)
    _later(world, QUIET_S)
    _refused(world)
    recoveries.first_states.append(world.witness.head)
    _later(world, SETTLED_S / 2)
    assert recoveries.begun_us > now_us
    _refused(world)
    _later(world, SETTLED_S)
    with pytest.raises(Violation, match="answers a read of"):
        _refused(world)


def test_read_must_show_what_was_durable(world: World) -> None:
    log, now_us = world.logs[0], world.kernel.now_us
    world.witness.has_read(log, EMPTY, 0, now_us)
    with pytest.raises(Violation, match="w1 shows epoch 1 by what was durable"):
        world.witness.has_read(log, EMPTY, 1, now_us)


def test_old_end_hides_epochs_only_from_reads_at_barrier(world: World) -> None:
    witness, found, high = world.witness, list[tuple[bool, int]](), -1
    while world.topic.high > high:  # nothing is in flight
        high = world.topic.high
        _later(world, 0.3)
    world.stale_leaders.begin(Action(world.kernel.now_s, OLD_END, "", 6.0, 0, "w1"))
    old = witness.epoch_of(witness.head)
    world.cut(1, {(EPOCHS, "w1")}, 3.0)
    caller = Caller("k", world)
    caller.spawn(caller.ask(caller.envelope(SetSetting("a", "1")), world.logs[1]))
    while witness.epoch_of(witness.head) == old:
        _later(world, 0.01)

    def note(machine: Machine, image: Image, least: int, began_us: int) -> None:
        found.append((least > 0, image.epoch))

    witness.has_read = note  # type: ignore[method-assign]
    for _ in range(10):
        world.logs[0].serve_read(lambda image: None)
    _later(world, 7.0)
    assert {epoch > old for is_bound, epoch in found if is_bound} == {True}
    assert old in {epoch for is_bound, epoch in found if not is_bound}


def test_epochs_of_a_process_stopped_by_a_full_disk_are_not_missed(world: World) -> None:
    replica = world.replicas[0]
    kills = replica.kills
    replica.disk.full = True
    _later(world, 20.0)
    assert replica.kills > kills


def test_empty_image_belongs_to_every_history(world: World) -> None:
    world.topic.faulted_us = -us(3600)
    writer, witness = world.logs[0], world.witness
    witness.served(writer, EMPTY, noticed=False)
    head, witness.head = witness.head, ZERO
    with pytest.raises(Violation, match="is of the history that the topic holds"):
        witness.served(writer, witness.image_of(head), noticed=False)
