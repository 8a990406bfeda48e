"""Following several requests at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from stele.cli.errors import UnreachableError
from stele.domain.names import UNFINISHED, RequestStatus
from stele.runtime.answers.metadata_log import RequestAnswer
from stele_harness.demo.operation import DEADLINE_S, TICK_S
from stele_harness.demo.scene import Scene

Look = Callable[[list[RequestAnswer]], bool]


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


async def follow_several(scene: Scene, requests: list[str], look: Look) -> bool:
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
