"""``stele why``: what each request waits for, who holds it up and since when, and what can be done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from stele.cli.client import Client
from stele.cli.commands.requests import what
from stele.cli.optional import ask
from stele.cli.options import Json, Where
from stele.cli.output import console, duration, print_value_as_json, size
from stele.cli.reading import Reading
from stele.domain.names import UNFINISHED, ReportStatus, RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.schema.facts import Keyspace
from stele.domain.topology.facts import TransitionSummary
from stele.domain.topology.operations.table import OPERATIONS
from stele.runtime.answers.coordinator import BlockerAnswer, Progress, WaitProgress
from stele.runtime.answers.metadata_log import TopologyAnswer
from stele.runtime.answers.session_guard import BarrierView

IS_DOWN = "is down"
SILENT_S = 5.0
"""A node that was not heard for longer should be looked after."""
Line = tuple[str, str]
"""Text and style."""


def why(
    request_id: str | None = None,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Why a request does not go on: what it waits for, which nodes hold it up and since when, what to do.

    Args:
        request_id: One request, or the beginning of its id; without it, all that are unfinished.
    """
    with where.client() as client:
        known = look(client, request_id)
    if json.as_json:
        print_value_as_json(
            {
                "epoch": known.topology.epoch,
                "requests": known.requests,
                "transitions": known.topology.transitions,
                "progress": known.progress,
                "barrier": known.barrier,
            }
        )
        return
    out = console()
    for text, style in story(known):
        out.print(Text(text, style=style), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Known:
    """What the services say about some requests; None where a service is silent."""

    topology: TopologyAnswer
    requests: list[Request]
    keyspaces: list[Keyspace]
    progress: Progress | None
    barrier: BarrierView | None


def look(client: Client, request_id: str | None) -> Known:
    """One request, or all that are unfinished. Raises CliError."""
    reading = Reading(client)
    topology = reading.topology()
    requests = (
        reading.requests(unfinished="true") if request_id is None else [reading.find(request_id)]
    )
    return Known(
        topology,
        requests,
        reading.keyspaces() if any(r.keyspace_id for r in requests) else [],
        ask(client, "coordinator", "/v1/progress", Progress),
        ask(client, "session-guard", "/v1/barrier", BarrierView),
    )


def story(known: Known) -> Iterator[Line]:
    """The lines that tell it."""
    topology, requests = known.topology, known.requests
    progress, barrier = known.progress, known.barrier
    unfinished = [request for request in requests if request.status in UNFINISHED]
    for request in requests:
        transition = _transition_of(topology, request)
        yield from _head(request, transition, known.keyspaces)
        if request in unfinished and progress is not None:
            yield from _waits(request, transition, progress, barrier)
    if not requests:
        yield "Nothing is under way.", ""
        yield from _cleanups(progress)
    if progress is None and unfinished:
        yield "No coordinator answers: nothing moves on until one does.", "red"
        yield "  do: `stele stack status` shows the processes; start a coordinator.", ""
    elif progress is not None and not progress.active and unfinished:
        holder = topology.coordinator.holder or "nobody"
        yield f"The coordinator that answers is on standby; {holder} holds the term.", "yellow"
    if barrier is None and unfinished:
        yield "session-guard does not answer: since when nodes hold a barrier up is unknown.", "red"


def _head(
    request: Request, transition: TransitionSummary | None, keyspaces: list[Keyspace]
) -> Iterator[Line]:
    since_ms = request.started_at_ms or request.submitted_at_ms
    if request.status not in UNFINISHED:
        since = f" since epoch {request.finished_epoch}"
    else:
        since = f" for {duration(max(0.0, time.time() - since_ms / 1000))}" if since_ms else ""
    yield f"{what(request, keyspaces)} is {request.status}{since}  ({request.request_id})", "bold"
    if request.error:
        yield f"  {request.error}", "yellow"
    if transition is not None:
        others = [n for n in transition.nodes() if n != request.node_id]
        beside = f", together with {', '.join(others)}" if others else ""
        yield f"  in {transition.state} since epoch {transition.entered_epoch}{beside}", ""
        if transition.mark and transition.mark != request.error:
            yield f"  it goes back: {transition.mark}", "yellow"


def _waits(
    request: Request,
    transition: TransitionSummary | None,
    progress: Progress,
    barrier: BarrierView | None,
) -> Iterator[Line]:
    wait = progress.wait_of(request.request_id)
    if wait is not None:
        yield f"  waits for {wait.waiting_for}", ""
    work = progress.of_request(request.request_id)
    if work is not None:
        for node_id, node in work.nodes.items():
            error = f": {node.error}" if node.error else ""
            done = f"{size(node.bytes_done)} of {size(node.bytes_total)}"
            yield f"  {node_id} {node.kind} {node.status}, {done}{error}", ""
        if work.bytes_total and work.eta_s is not None:
            yield f"  about {duration(work.eta_s)} to go", ""
    blockers = () if wait is None else wait.blockers
    since = {} if barrier is None else {b.node_id: b.blocking_for_s for b in barrier.blockers}
    for blocker in blockers:
        yield f"  {_blocker(blocker, since.get(blocker.node_id))}", ""
    if barrier is not None and not barrier.complete and wait is not None and not wait.request_ids:
        enough = "a quorum has" if barrier.quorum else "not even a quorum has"
        yield f"  {enough} acknowledged version {barrier.version}", ""
    yield f"  do: {advice(request, transition, wait)}", "cyan"


def _blocker(blocker: BlockerAnswer, blocking_for_s: float | None) -> str:
    since = "" if blocking_for_s is None else f", for {duration(blocking_for_s)}"
    heard = blocker.silent_for_s
    last = "never heard" if heard is None else f"last heard {duration(heard)} ago"
    return f"held up by {blocker.node_id}: {blocker.why}{since}; {last}"


def advice(
    request: Request, transition: TransitionSummary | None, wait: WaitProgress | None
) -> str:
    """What the operator can do about it."""
    undo = f"`stele cancel {request.request_id}`"
    down = [b.node_id for b in (() if wait is None else wait.blockers) if _is_silent(b)]
    start = f"start {', '.join(down)}" if down else ""
    if request.status is RequestStatus.PENDING:
        if down:
            return f"{start}, or withdraw the request: {undo}. A node that stays down ends it."
        return f"nothing, it starts by itself; {undo} withdraws it"
    if not _can_be_undone(transition):
        return f"{start or 'wait'}; it is past its point of no return and cannot be undone"
    return f"{start}, or undo it: {undo}" if down else f"wait, or undo it: {undo}"


def _is_silent(blocker: BlockerAnswer) -> bool:
    heard = blocker.silent_for_s
    return blocker.why == IS_DOWN or heard is None or heard > SILENT_S


def _can_be_undone(transition: TransitionSummary | None) -> bool:
    if transition is None:
        return True
    state = OPERATIONS[transition.kind].states[transition.state]
    return state.on_failure is not None and not transition.mark


def _transition_of(topology: TopologyAnswer, request: Request) -> TransitionSummary | None:
    carried = (t for t in topology.transitions if request.request_id in t.request_ids())
    return next(carried, None)


def _cleanups(progress: Progress | None) -> Iterator[Line]:
    cleanups = {} if progress is None else progress.cleanups
    running: Sequence[str] = [n for n, c in cleanups.items() if c.status == ReportStatus.RUNNING]
    for node_id in running:
        yield f"  {node_id} deletes data that is not its own any more; nothing waits for it", "dim"
