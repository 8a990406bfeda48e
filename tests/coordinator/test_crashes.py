"""A process crashes at every moment of every operation: around each append, order and report.

Rollbacks are operations here as well. The operation ends as it does without a crash, and the invariants hold
at every epoch (``World`` checks them).
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final, NamedTuple

import pytest

from stele.domain.commands import Cancel
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.topology.operations.table import OPERATIONS
from tests.coordinator.operations import (
    begin,
    begin_undone,
    knows_features,
    serving_ranges,
    undoable,
)
from tests.coordinator.stories import status_of
from tests.coordinator.world import RESTART_S, Crash, World, again
from tests.sampling import sampled

MOMENTS = 60
"""More than there are in any of the operations."""
STEPS = 3
"""Appends by a coordinator, at least, in an operation with a way back."""

COURSES: Final[Mapping[str, Callable[[], tuple[World, str]]]] = {
    **{kind: again(partial(begin, kind)) for kind in OPERATIONS},
    **{
        f"{kind} undone": again(partial(begin_undone, kind))
        for kind in OPERATIONS
        if undoable(kind)
    },
}
"""Every operation to its end, and every one that is cancelled as late as it can be."""
TO_THE_END = [kind for kind in OPERATIONS if undoable(kind)]


@pytest.fixture(autouse=True)
def known_features(monkeypatch: pytest.MonkeyPatch) -> None:
    knows_features(monkeypatch)


@cache
def undisturbed(course: str) -> tuple[tuple[str, ...], RequestStatus, dict[str, object]]:
    """Return the moments of a course, the final status of its request, and the ranges that serve then."""
    world, request_id = COURSES[course]()
    world.events.clear()
    world.run()
    assert 0 < len(world.events) < MOMENTS, world.events
    return tuple(world.events), status_of(world, request_id), serving_ranges(world.image)


def ends_as_it_should(world: World, course: str, request_id: str) -> None:
    _, status, serves = undisturbed(course)
    world.run()
    assert status_of(world, request_id) is status
    assert serving_ranges(world.image) == serves


def test_every_course_ends() -> None:
    for course in COURSES:
        name, _, undone = course.partition(" ")
        kind, expected = RequestKind(name), RequestStatus.DONE
        if undone:
            last = undoable(kind)
            assert last is not None
            # After reads have moved, only dead new replicas cause a rollback, and no cancel does.
            turned_back = OPERATIONS[kind].states[last].reads_have_moved
            expected = RequestStatus.FAILED if turned_back else RequestStatus.CANCELLED
        assert undisturbed(course)[1] is expected, course


class Crashes(NamedTuple):
    """Crashes of ``who`` before or after each moment of a course."""

    course: str
    when: str
    who: str

    @property
    def stem(self) -> str:
        return "-".join(self)


CRASHES: Final = [
    Crashes(course, when, who)
    for who in ("coordinator", "coordinator, which lives on", "metadata log")
    for when in ("before", "after")
    for course in COURSES
]


@pytest.mark.parametrize("crashes", sampled(CRASHES, 5))
def test_crash_at_any_moment_does_not_change_the_result(crashes: Crashes) -> None:
    course, when, who = crashes
    for moment in range(len(undisturbed(course)[0])):
        world, request_id = COURSES[course]()
        world.events.clear()
        crashed = crash_at(world, moment, when, who)
        ends_as_it_should(world, course, request_id)
        assert crashed, f"moment {moment} never came"


def crash_at(world: World, moment: int, when: str, who: str) -> list[str]:
    """Arrange the crash. The returned list contains the event once the crash has happened."""
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


@pytest.mark.parametrize("course", sampled(TO_THE_END, 3))
def test_operation_ends_although_the_coordinator_crashes_at_every_step(course: str) -> None:
    world, request_id = COURSES[course]()
    world.events.clear()
    last = -1

    def hook(what: str, at: str) -> None:
        nonlocal last
        if at == "after" and what.startswith("append") and len(world.epochs) > last:
            last = len(world.epochs) + 1
            world.replace_brain()
            raise Crash

    world.on_event = hook
    ends_as_it_should(world, course, request_id)
    assert world.image.topology.coordinator.term > STEPS


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("course", sampled(TO_THE_END, 5))
def test_cancel_at_any_moment_restores_the_ranges_or_comes_too_late(course: str, when: str) -> None:
    ends = set()
    for moment in range(len(undisturbed(course)[0])):
        world, request_id = COURSES[course]()
        before = serving_ranges(world.image)
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
        cancelled = status is RequestStatus.CANCELLED
        assert serving_ranges(world.image) == (before if cancelled else undisturbed(course)[2])
    assert ends == {RequestStatus.CANCELLED, RequestStatus.DONE}
