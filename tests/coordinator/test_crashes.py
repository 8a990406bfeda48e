"""Somebody crashes at every moment of an operation: before and after each append, order and report.

Whatever happens, the operation ends as it does without a crash, and the invariants hold at every epoch
(``World`` checks them).
"""

import pytest

from stele.domain.commands import AnyCommand, Cancel, Cleanup, Leave, MoveNode, Rebuild, Truncate
from stele.domain.names import NodeState, RequestStatus
from stele.sim.ranges_in_use import sides
from tests.coordinator.stories import status_of
from tests.coordinator.world import RESTART_S, Crash, World, three_nodes

MOMENTS = 40
"""More than there are in any of the operations."""
COMMANDS: dict[str, AnyCommand] = {
    "leave": Leave("c1"),
    "move": MoveNode(node_id="c1", tokens=(1, 2**60)),
    "rebuild": Rebuild(node_id="c1"),
    "truncate": Truncate("library"),
    "cleanup": Cleanup(),
}
AFTERWARDS = {
    "join": ("a2", NodeState.NORMAL),
    "leave": ("c1", NodeState.LEFT),
    "move": ("c1", NodeState.NORMAL),
    "rebuild": ("c1", NodeState.NORMAL),
    "truncate": ("c1", NodeState.NORMAL),
    "cleanup": ("c1", NodeState.NORMAL),
}


def begin(operation: str) -> tuple[World, str]:
    world = three_nodes()
    if operation == "join":
        world.add("a2")
        return world, "join-a2"
    assert world.apply(COMMANDS[operation], operation) is None
    return world, operation


def replicas(world: World) -> list[object]:
    placement = world.image.placement_of("library")
    assert placement is not None
    return [(row.start, row.end, sides(row)) for row in placement.rows]


def ends_as_it_should(world: World, operation: str, request_id: str, undisturbed: World) -> None:
    world.run()
    assert status_of(world, request_id) is RequestStatus.DONE
    node_id, state = AFTERWARDS[operation]
    assert world.state(node_id) is state
    assert replicas(world) == replicas(undisturbed)
    assert world.image.membership.ring_tokens() == undisturbed.image.membership.ring_tokens()


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, World]:
    found = {}
    for operation in AFTERWARDS:
        world, _ = begin(operation)
        world.events.clear()
        world.run()
        assert 6 <= len(world.events) < MOMENTS, world.events
        found[operation] = world
    return found


@pytest.mark.parametrize("who", ["coordinator", "coordinator, which lives on", "metadata log"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", AFTERWARDS)
def test_a_crash_at_any_moment_changes_nothing_of_the_end(
    undisturbed: dict[str, World], operation: str, when: str, who: str
) -> None:
    for moment in range(len(undisturbed[operation].events)):
        world, request_id = begin(operation)
        world.events.clear()
        crashed = crash_at(world, moment, when, who)
        ends_as_it_should(world, operation, request_id, undisturbed[operation])
        assert crashed, f"moment {moment} never came"


def crash_at(world: World, moment: int, when: str, who: str) -> list[str]:
    """Arrange the crash; the list that is returned holds what was struck once it has happened."""
    struck: list[str] = []

    def hook(what: str, at: str) -> None:
        if struck or at != when or len(world.events) - 1 < moment:
            return
        struck.append(what)
        if who == "metadata log":
            world.log_down_until_s = world.now_s + RESTART_S
        else:
            world.replace_brain(zombie="lives on" in who)
            raise Crash

    world.on_event = hook
    return struck


@pytest.mark.parametrize("operation", AFTERWARDS)
def test_a_coordinator_that_crashes_at_every_moment_still_gets_there(
    undisturbed: dict[str, World], operation: str
) -> None:
    world, request_id = begin(operation)
    world.events.clear()
    last = -1

    def hook(what: str, at: str) -> None:
        nonlocal last
        if at == "after" and what.startswith("append") and len(world.epochs) > last:
            last = len(world.epochs) + 1
            world.replace_brain()
            raise Crash

    world.on_event = hook
    ends_as_it_should(world, operation, request_id, undisturbed[operation])
    assert world.image.topology.coordinator.term > (3 if operation == "rebuild" else 5)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", AFTERWARDS)
def test_a_cancel_at_any_moment_restores_or_comes_too_late(
    undisturbed: dict[str, World], operation: str, when: str
) -> None:
    ends = set()
    for moment in range(len(undisturbed[operation].events)):
        world, request_id = begin(operation)
        before = replicas(world)
        world.events.clear()
        done: list[int] = []

        def hook(
            what: str,
            at: str,
            world: World = world,
            done: list[int] = done,
            moment: int = moment,
            request_id: str = request_id,
        ) -> None:
            if not done and at == when and len(world.events) - 1 >= moment:
                done.append(moment)
                world.apply(Cancel(request_id), "cancel")

        world.on_event = hook
        world.run()
        status = status_of(world, request_id)
        ends.add(status)
        wanted = before if status is RequestStatus.CANCELLED else replicas(undisturbed[operation])
        assert replicas(world) == wanted
    assert ends == {RequestStatus.CANCELLED, RequestStatus.DONE}
