"""Two nodes join at once, as one transition; then two leave, and the second waits for the first's ranges.

The coordinator stands still (SIGSTOP) until both have asked, so that it sees them together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from stele.cli.demo.operation import DEADLINE_S, TICK_S
from stele.cli.demo.scene import Scene
from stele.cli.demo.steps.join import request_of, start_node
from stele.cli.errors import UnreachableError
from stele.domain.commands import Leave
from stele.domain.names import UNFINISHED, NodeState, RequestStatus
from stele.runtime.answers.metadata_log import RequestAnswer

RACKS = ("r2", "r3")
LEAVING = ("n2", "n3")
Look = Callable[[list[RequestAnswer]], bool]


async def run(scene: Scene) -> None:
    await _join(scene)
    await _leave(scene)


async def _join(scene: Scene) -> None:
    paused = scene.site.pause("coordinator")
    scene.timeline.note("the coordinator stands still while two nodes ask to join")
    try:
        names = await asyncio.gather(*(start_node(scene, rack) for rack in RACKS))
        requests = [await request_of(scene, name) for name in names]
    finally:
        scene.site.resume(paused)
    scene.timeline.note(f"{' and '.join(names)} are pending: it goes on")
    shared = await _watch(scene, requests, share_a_transition)
    normal = [await scene.node_is(name, NodeState.NORMAL) for name in names]
    scene.timeline.check(
        "two nodes join as one transition",
        shared and all(normal),
        f"{' and '.join(names)} {'shared' if shared else 'did not share'} a transition",
    )


async def _leave(scene: Scene) -> None:
    paused = scene.site.pause("coordinator")
    try:
        outcomes = [
            await scene.site.submit(Leave(name), "the new nodes take over") for name in LEAVING
        ]
    finally:
        scene.site.resume(paused)
    scene.timeline.note(f"{' and '.join(LEAVING)} have asked to leave")
    waited = await _watch(scene, [o.request_id for o in outcomes], one_waits_for_the_other)
    left = [await scene.node_is(name, NodeState.LEFT) for name in LEAVING]
    scene.timeline.check(
        "a leave waits for the ranges of another, then runs",
        waited and all(left),
        f"{' and '.join(LEAVING)} {'have left' if all(left) else 'have not both left'}"
        f"{', one after the other' if waited else '; none was seen waiting'}",
    )


def share_a_transition(answers: list[RequestAnswer]) -> bool:
    """All of them are subjects of one transition, and it has no others."""
    first, *others = (answer.transition for answer in answers)
    return (
        first is not None
        and len(first.subjects) == len(answers)
        and all(each == first for each in others)
    )


def one_waits_for_the_other(answers: list[RequestAnswer]) -> bool:
    """One is pending while another is under way."""
    waiting = [a for a in answers if a.request.status is RequestStatus.PENDING]
    return len(waiting) == 1 and any(a.transition is not None for a in answers)


async def _watch(scene: Scene, requests: list[str], look: Look) -> bool:
    """Whether ``look`` ever held until all were finished. Raises UnreachableError."""
    seen, shown, end = False, dict[str, str](), time.monotonic() + 2 * DEADLINE_S
    while True:
        answers = [await scene.site.request_or_none(each) for each in requests]
        known = [answer for answer in answers if answer is not None]
        if len(known) == len(answers):
            seen = seen or look(known)
            _show(scene, known, shown)
            if all(answer.request.status not in UNFINISHED for answer in known):
                return seen
        if time.monotonic() > end:
            states = ", ".join(f"{a.request.request_id} is {a.request.status}" for a in known)
            raise UnreachableError(f"Waited {2 * DEADLINE_S:.0f} s for the requests: {states}.")
        await asyncio.sleep(TICK_S)


def _show(scene: Scene, answers: list[RequestAnswer], shown: dict[str, str]) -> None:
    for answer in answers:
        request, transition = answer.request, answer.transition
        state = str(transition.state if transition else request.status)
        if shown.get(request.request_id) != state:
            shown[request.request_id] = state
            note = f"epoch {answer.epoch:>4}  {request.kind} {request.node_id}: {state}"
            scene.timeline.note(note, "cyan")
