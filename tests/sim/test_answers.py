"""Which metadata-log owes an answer to a read, in a world of whole processes."""

from collections.abc import Callable, Iterator

import pytest

from stele.sim.kernel import us
from stele.sim.processes.answers import LIMIT_S, OWED, SETTLED_S
from stele.sim.processes.broker import BROKER, EPOCHS
from stele.sim.processes.interposed import Current, interposed
from stele.sim.processes.making import Disaster
from stele.sim.processes.run import Nobody
from stele.sim.processes.stores import watch
from stele.sim.processes.world import World
from stele.sim.violation import Violation

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
    """In which nothing has gone wrong for long enough."""
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
    asked = world.answers.begins(world.logs[0])
    world.answers.fails(asked, TimeoutError())


def test_who_was_not_disturbed_owes_an_answer(world: World) -> None:
    assert world.answers.checks > 0
    with pytest.raises(Violation, match="answers a read of") as raised:
        _refused(world)
    assert raised.value.invariant == OWED


def test_who_never_answers_owes_it_too(world: World) -> None:
    world.answers.begins(world.logs[0])
    with pytest.raises(Violation, match="it has not: nothing"):
        _later(world, LIMIT_S + 5)


@pytest.mark.parametrize("disturb", LEFT_OUT)
def test_who_was_disturbed_just_before_owes_none(
    world: World, disturb: Callable[[World], object]
) -> None:
    disturb(world)
    _later(world, 2.0)
    _refused(world)


def test_who_was_disturbed_meanwhile_owes_none(world: World) -> None:
    asked = world.answers.begins(world.logs[0])
    world.logs[0].pause(1.0)
    world.answers.fails(asked, TimeoutError())


def test_who_was_killed_meanwhile_owes_none(world: World) -> None:
    world.answers.begins(world.logs[0])
    world.logs[0].crash()
    world.logs[0].boot()
    _later(world, LIMIT_S + 1)
    world.answers.look()


def test_who_was_disturbed_long_ago_owes_an_answer(world: World) -> None:
    world.logs[0].pause(1.0)
    _later(world, SETTLED_S + 2)
    with pytest.raises(Violation, match="answers a read of"):
        _refused(world)


def test_what_befalls_others_is_no_excuse(world: World) -> None:
    world.logs[1].crash()
    world.cut(1, {("w2", BROKER.name), (BROKER.name, "n1")}, 30.0)
    with pytest.raises(Violation, match="answers a read of"):
        _refused(world)
