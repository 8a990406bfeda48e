"""Two nodes join at once, as one transition, while a leave that needs the same ranges waits for room.

The coordinator stands still (SIGSTOP) until all three have asked, so that it sees them together; then it
opens both joins with one plan, and the leave once they are done.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from stele.cli.demo.operation import DEADLINE_S, TICK_S
from stele.cli.demo.scene import Scene
from stele.cli.demo.steps.join import request_of, start_node
from stele.cli.errors import UnreachableError
from stele.domain.commands import Leave
from stele.domain.names import UNFINISHED, NodeState, RequestStatus
from stele.runtime.answers.metadata_log import RequestAnswer

RACKS = ("r2", "r3")
LEAVING = "n2"


class Watch(msgspec.Struct):
    """What was seen of the three requests while they ran."""

    together: bool = False
    """Both joins were one transition."""
    waited: bool = False
    """The leave was pending meanwhile."""
    state: str = ""

    def look(self, joins: list[RequestAnswer], leave: RequestAnswer) -> str:
        """Take note; the joins' state when it is news, else nothing."""
        transitions = [answer.transition for answer in joins]
        first = transitions[0]
        if first is None or any(each != first for each in transitions):
            return ""
        self.together = self.together or len(first.subjects) == len(joins)
        pending = leave.request.status is RequestStatus.PENDING
        self.waited = self.waited or (self.together and pending)
        news = "" if first.state == self.state else str(first.state)
        self.state = str(first.state)
        return news


async def run(scene: Scene) -> None:
    paused = scene.site.pause("coordinator")
    scene.timeline.note("the coordinator stands still while three requests come")
    try:
        names = await asyncio.gather(*(start_node(scene, rack) for rack in RACKS))
        joins = [await request_of(scene, name) for name in names]
        outcome = await scene.site.submit(Leave(LEAVING), "n5 and n6 take over")
    finally:
        scene.site.resume(paused)
    scene.timeline.note(f"{', '.join(names)} and the leave of {LEAVING} are pending: it goes on")
    watch = await _watch(scene, joins, outcome.request_id)
    normal = [await scene.node_is(name, NodeState.NORMAL) for name in names]
    scene.timeline.check(
        "two nodes join as one transition",
        watch.together and all(normal),
        f"{' and '.join(names)} {'shared' if watch.together else 'did not share'} a transition",
    )
    left = await scene.node_is(LEAVING, NodeState.LEFT)
    scene.timeline.check(
        "a leave of the same ranges waits for room, then runs",
        watch.waited and left,
        f"{LEAVING} {'has left' if left else 'is still there'}"
        f"{', after it waited' if watch.waited else '; it was never seen waiting'}",
    )


async def _watch(scene: Scene, joins: list[str], leave: str) -> Watch:
    """Until all three are finished. Raises UnreachableError."""
    watch, end = Watch(), time.monotonic() + 2 * DEADLINE_S
    while True:
        answers = [await scene.site.request_or_none(each) for each in (*joins, leave)]
        known = [answer for answer in answers if answer is not None]
        if len(known) == len(answers):
            news = watch.look(known[:-1], known[-1])
            if news:
                scene.timeline.note(f"epoch {known[0].epoch:>4}  both in {news}", "cyan")
            if all(answer.request.status not in UNFINISHED for answer in known):
                return watch
        if time.monotonic() > end:
            states = ", ".join(f"{a.request.request_id} is {a.request.status}" for a in known)
            raise UnreachableError(f"Waited {2 * DEADLINE_S:.0f} s for three requests: {states}.")
        await asyncio.sleep(TICK_S)
