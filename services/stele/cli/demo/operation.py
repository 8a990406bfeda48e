"""Following a topology operation in the demo: its steps, its bytes, and a fault in the middle of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from stele.cli.demo.scene import Scene
from stele.cli.demo.site import Answers
from stele.cli.demo.timeline import Bar
from stele.cli.errors import CliError, UnreachableError
from stele.cli.facts import EpochRow
from stele.cli.models import ProgressAnswer, StateView
from stele.cli.output import duration, size
from stele.domain.entities import Request
from stele.domain.names import UNFINISHED, OrderKind, ReportStatus, TransitionState
from stele.log.codec import decode_report
from stele.log.flows import flow_topic
from stele.log.topic import read_topic

TICK_S = 0.05
DEADLINE_S = 150.0
STREAMING_SOON_S = 0.25
"""Streaming that has not reported its first bytes by then is hit all the same."""

BEFORE_STREAMING = frozenset({TransitionState.NONE, TransitionState.JOIN_GROUP0})


@dataclass(slots=True)
class Fault:
    """kill -9 of a process while data is being streamed."""

    victim: str
    fired: bool = False
    seen_at: float = 0.0
    back: asyncio.Task[None] | None = None

    def is_due(self, view: StateView, progress: ProgressAnswer | None) -> bool:
        """In write_both_read_old, with data on its way; at the latest in the step after it."""
        state = view.topology.transition_state
        if self.fired or state in BEFORE_STREAMING:
            return False
        self.seen_at = self.seen_at or time.monotonic()
        streaming = progress is not None and 0 < progress.bytes_done < progress.bytes_total
        late = state is not TransitionState.WRITE_BOTH_READ_OLD
        return streaming or late or time.monotonic() - self.seen_at > STREAMING_SOON_S

    def fire(self, scene: Scene, view: StateView, progress: ProgressAnswer | None) -> None:
        self.fired = True
        killed = scene.site.kill(self.victim)
        moved = ""
        if progress is not None and progress.bytes_done:
            moved = f", {size(progress.bytes_done)} streamed"
        scene.timeline.note(
            f"kill -9 {self.victim} (process {killed.pid}) in {view.topology.transition_state}, "
            f"epoch {view.epoch}{moved}",
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


async def follow_operation(scene: Scene, request_id: str, fault: Fault) -> Request:
    """The request once it is finished; the fault has been fired on the way. Raises CliError."""
    end, told = time.monotonic() + DEADLINE_S, _Told()
    with scene.timeline.progress(request_id, None) as bar:
        while True:
            view = await scene.site.view_or_none()
            progress = await _progress(scene)
            if view is not None:
                request = view.request(request_id)
                _tell(scene, view, progress, request, told, bar)
                if request is not None and request.status not in UNFINISHED:
                    break
                if fault.is_due(view, progress):
                    fault.fire(scene, view, progress)
            if time.monotonic() > end:
                raise UnreachableError(f"{_where(view, request_id)} after {DEADLINE_S:.0f} s.")
            await asyncio.sleep(TICK_S)
    if fault.back is not None:
        await fault.back
    await _note_steps(scene, request)
    return request


async def _progress(scene: Scene) -> ProgressAnswer | None:
    try:
        url = f"{scene.site.service('coordinator').url}/v1/progress"
        return await scene.site.get(url, ProgressAnswer)
    except (*Answers, CliError):
        return None


def _tell(
    scene: Scene,
    view: StateView,
    progress: ProgressAnswer | None,
    request: Request | None,
    told: _Told,
    bar: Bar,
) -> None:
    if request is None:
        return
    ours = view.operation is not None and view.operation.request_id == request.request_id
    step = str(view.topology.transition_state) if ours else str(request.status)
    if step != told.step:
        told.step = step
        scene.timeline.note(
            f"epoch {view.epoch:>4}  {step}  (version {view.topology.version}, "
            f"fence {view.topology.fence_version})",
            "cyan",
        )
    if progress is None or progress.request_id != request.request_id:
        return
    eta = "" if progress.eta_s is None else f"{duration(progress.eta_s)} to go"
    bar.show(progress.bytes_done, progress.bytes_total, step, eta)


async def _note_steps(scene: Scene, request: Request) -> None:
    """How long the cluster was in each step, by the log's own times."""
    url = f"{scene.site.service('metadata-log').url}/v1/epochs"
    limit = request.finished_epoch - request.started_epoch + 1
    raw = await scene.site.get(
        url, list[EpochRow], **{"from": request.started_epoch, "limit": limit}
    )
    spans = step_durations(raw, request.finished_epoch)
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
    for _, value in read_topic(environment["STELE_KAFKA_BOOTSTRAP"], topic):
        report = decode_report(value or b"")
        ours = report.request_id == request_id and report.kind is OrderKind.STREAM
        if ours and report.status is ReportStatus.SUCCESS:
            by_node[report.node_id] = report.bytes_done
    return sum(by_node.values())


def step_durations(epochs: list[EpochRow], last: int) -> list[tuple[str, float]]:
    """(step, seconds) in the order in which an operation went through them."""
    begun: list[tuple[str, int]] = []
    end_ms = 0
    for row in epochs:
        if row.epoch == last:
            end_ms = row.at_ms
        for fact in row.facts:
            if fact.get("type") == "TopologyChanged":
                state = fact["topology"]["transition_state"]
                if state and (not begun or begun[-1][0] != state):
                    begun.append((state, row.at_ms))
    ends = [at_ms for _, at_ms in begun[1:]] + [end_ms]
    return [(name, (end - start) / 1000) for (name, start), end in zip(begun, ends, strict=True)]


def _where(view: StateView | None, request_id: str) -> str:
    if view is None:
        return "The metadata-log does not answer"
    request = view.request(request_id)
    status = "unknown" if request is None else request.status
    return (
        f"Request {request_id} is {status} in '{view.topology.transition_state}' at epoch "
        f"{view.epoch}"
    )
