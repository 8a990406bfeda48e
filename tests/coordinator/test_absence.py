"""A coordinator that has not read for a while does not count that time as silence."""

from stele.domain.commands import Rollback
from stele.domain.model.requests import RejectRequest
from stele.domain.model.topology import AdvanceFence
from stele.domain.names import NodeState, TransitionState
from tests.coordinator.stories import joining
from tests.coordinator.world import World

ABSENT_S = 65.0
"""Longer than every time limit for a node."""


def _streaming() -> World:
    world = joining(TransitionState.WRITE_BOTH_READ_OLD, fenced=True)
    world.until(lambda: world.orders("a2"), "a2 to be ordered to stream")
    return world


def _given_up(world: World) -> list[object]:
    """Return the commands of the next step that a silent node causes."""
    commands = [envelope.command for envelope in world.brain.look().commands]
    return [c for c in commands if isinstance(c, Rollback | RejectRequest | AdvanceFence)]


def _absent(world: World, first: str) -> None:
    """Let the process read nothing for a while, and then the acks of one node before all others."""
    world.now_s += ABSENT_S
    world.brain.hear(world.nodes[first].ack(world.image))


def test_stream_is_not_rolled_back_at_the_first_look_after_an_absence() -> None:
    world = _streaming()
    _absent(world, "c1")
    assert not _given_up(world)
    world.report(world.orders("a2")[-1])
    world.run()
    assert world.state("a2") is NodeState.NORMAL


def test_stream_is_not_rolled_back_while_nothing_is_read() -> None:
    world = _streaming()
    for _ in range(4):
        world.now_s += ABSENT_S
        assert not _given_up(world)


def test_barrier_patience_restarts_after_an_absence() -> None:
    world = joining(TransitionState.WRITE_BOTH_READ_OLD, fenced=False)
    world.nodes["c1"].applies = False
    world.pass_s(1)
    version = world.version
    _absent(world, "c1")
    assert not _given_up(world)
    assert world.version == version and not world.fenced()


def test_patience_of_a_pending_request_restarts_after_an_absence() -> None:
    world = _streaming()
    world.add("b2")
    world.crash("b2")
    world.pass_s(20)
    _absent(world, "c1")
    assert not _given_up(world)
