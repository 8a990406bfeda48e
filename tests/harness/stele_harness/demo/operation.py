"""Following a topology operation in the demo: its steps, its bytes, and a fault in the middle of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from stele.cli.errors import CliError, UnreachableError
from stele.cli.follow import step_of
from stele.cli.output import duration, size
from stele.domain.model.requests import Request
from stele.domain.model.topology import TransitionSummary
from stele.domain.names import UNFINISHED, OrderKind, ReportStatus, TransitionState
from stele.log.brokers import Brokers
from stele.log.codec import decode_report
from stele.log.ends import read_topic
from stele.log.flows import flow_topic
from stele.runtime.answers.coordinator import Progress, TransitionProgress
from stele.runtime.answers.metadata_log import RequestAnswer
from stele.words.explain import left
from stele.words.facts import EpochRow
from stele_harness.demo.scene import Scene
from stele_harness.demo.site import Answers
from stele_harness.demo.timeline import Bar

TICK_S = 0.05
DEADLINE_S = 600.0
AFTER_STREAMING = frozenset(
    {
        TransitionState.WRITE_BOTH_READ_NEW,
        TransitionState.FINISHING,
        TransitionState.LEFT_TOKEN_RING,
    }
)
"""On a busy machine a look may come only then."""


@dataclass(slots=True)
class Fault:
    """kill -9 of a process while data is being streamed."""

    victim: str
    fired: bool = False
    back: asyncio.Task[None] | None = None

    def is_due(self, transition: TransitionSummary | None) -> bool:
        """True at the first look at a transition that streams, or has streamed: that may take half a second."""
        if self.fired or transition is None:
            return False
        return bool(transition.session) or transition.state in AFTER_STREAMING

    def fire(
        self, scene: Scene, answer: RequestAnswer, progress: TransitionProgress | None
    ) -> None:
        self.fired = True
        killed = scene.site.kill(self.victim)
        moved = ""
        if progress is not None and progress.bytes_done:
            moved = f", {size(progress.bytes_done)} streamed"
        scene.timeline.note(
            f"kill -9 {self.victim} (process {killed.pid}) in "
            f"{step_of(answer.request, answer.transition)}, epoch {answer.epoch}{moved}",
            "bold red",
        )

        async def note_return() -> None:
            took_s = await scene.site.back_after_kill(killed)
            now = scene.site.service(self.victim)
            scene.timeline.note(
                f"{self.victim} is back as process {now.pid} after {took_s:.1f} s", "yellow"
            )
            scene.timeline.figure(f"{self.victim}_back_s", took_s)

        self.back = asyncio.create_task(note_return())


@dataclass(slots=True)
class _Told:
    step: str = ""


async def follow_operation(scene: Scene, request_id: str, fault: Fault | None = None) -> Request:
    """The request once it is finished; a fault has been fired on the way. Raises CliError."""
    end, told = time.monotonic() + DEADLINE_S, _Told()
    last: RequestAnswer | None = None
    with scene.timeline.progress(request_id, None) as bar:
        while True:
            # Side by side: a step may be over while the one waits for the other.
            answer, progress = await asyncio.gather(
                scene.site.request_or_none(request_id), _progress(scene, request_id)
            )
            if answer is not None:
                last = answer
                _tell(scene, answer, progress, told, bar)
                if answer.request.status not in UNFINISHED:
                    break
                if fault is not None and fault.is_due(answer.transition):
                    fault.fire(scene, answer, progress)
            if time.monotonic() > end:
                raise UnreachableError(f"{_where(last, request_id)} after {DEADLINE_S:.0f} s.")
            await asyncio.sleep(TICK_S)
    if fault is not None and fault.back is not None:
        await fault.back
    await _note_steps(scene, answer.request)
    return answer.request


async def _progress(scene: Scene, request_id: str) -> TransitionProgress | None:
    try:
        progress = await scene.site.get(scene.site.url("coordinator", "/v1/progress"), Progress)
    except (*Answers, CliError):
        return None
    return progress.of_request(request_id)


def _tell(
    scene: Scene,
    answer: RequestAnswer,
    progress: TransitionProgress | None,
    told: _Told,
    bar: Bar,
) -> None:
    step = step_of(answer.request, answer.transition)
    if step != told.step:
        told.step = step
        by = f"  (version {answer.transition.entered_version})" if answer.transition else ""
        scene.timeline.note(f"epoch {answer.epoch:>4}  {step}{by}", "cyan")
    if progress is not None:
        eta = "" if progress.eta_s is None else left(progress)
        bar.show(progress.bytes_done, progress.bytes_total, step, eta)


async def _note_steps(scene: Scene, request: Request) -> None:
    """How long the cluster was in each step, by the log's own times."""
    url = f"{scene.site.service('metadata-log').url}/v1/epochs"
    limit = request.finished_epoch - request.started_epoch + 1
    raw = await scene.site.get(
        url, list[EpochRow], **{"from": request.started_epoch, "limit": limit}
    )
    spans = step_durations(raw, request.request_id)
    text = ", ".join(f"{name} {duration(took_s)}" for name, took_s in spans)
    took_s = (request.finished_at_ms - request.started_at_ms) / 1000
    streamed_bytes = await asyncio.to_thread(_streamed_bytes, scene, request.request_id)
    scene.timeline.note(
        f"{request.kind} {request.node_id} is {request.status}: {took_s:.1f} s, "
        f"{limit} epochs, {size(streamed_bytes)} streamed; {text}",
        "green",
    )
    scene.timeline.figure(f"{request.kind}_s", took_s)
    scene.timeline.figure(f"{request.kind}_epochs", limit)
    scene.timeline.figure(f"{request.kind}_streamed_bytes", streamed_bytes)
    for name, step_s in spans:
        scene.timeline.figure(f"{request.kind}_{name}_s", step_s)


def _streamed_bytes(scene: Scene, request_id: str) -> int:
    """What the nodes reported that they pulled for this request."""
    environment = scene.site.stack().environment
    topic = flow_topic(environment["STELE_CLUSTER"], "reports")
    by_node: dict[str, int] = {}
    for _, value in read_topic(Brokers(environment["STELE_KAFKA_BOOTSTRAP"]), topic):
        report = decode_report(value or b"")
        ours = report.request_id == request_id and report.kind is OrderKind.STREAM
        if ours and report.status is ReportStatus.SUCCESS:
            by_node[report.node_id] = report.bytes_done
    return sum(by_node.values())


def step_durations(epochs: list[EpochRow], request_id: str) -> list[tuple[str, float]]:
    """(state, seconds) in the order in which the transition of a request went through them."""
    begun: list[tuple[str, int]] = []
    transition_id = ""
    for row in epochs:
        for fact in row.facts:
            if fact.get("type") == "TransitionOpened" and _carries(fact["transition"], request_id):
                transition_id = fact["transition"]["transition_id"]
                begun.append((fact["transition"]["state"], row.at_ms))
            elif transition_id and fact.get("transition_id") == transition_id:
                if fact.get("type") == "TransitionMoved" and begun[-1][0] != fact["state"]:
                    begun.append((fact["state"], row.at_ms))
                if fact.get("type") == "TransitionFinished":
                    begun.append(("", row.at_ms))
    return [(name, (end - start) / 1000) for (name, start), (_, end) in pairwise(begun)]


def _carries(transition: Mapping[str, Any], request_id: str) -> bool:
    ids = [subject["request_id"] for subject in transition["subjects"]]
    return request_id in (ids or [transition["transition_id"]])


def _where(last: RequestAnswer | None, request_id: str) -> str:
    if last is None:
        return f"The metadata-log does not answer about request {request_id}"
    step = step_of(last.request, last.transition)
    return f"Request {request_id} is {last.request.status} ({step}) at epoch {last.epoch}"
