"""What each request waits for, who is the cause and since when, and what can be done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from stele.domain.commits.restricted import restricted_text
from stele.domain.names import UNFINISHED, ReportStatus, RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.topology.heads import TransitionSummary
from stele.runtime.answers.coordinator import Progress, WaitKind
from stele.runtime.answers.metadata_log import TopologyAnswer
from stele.runtime.answers.session_guard import NodeLiveness
from stele.words.explain import after_failure, explain
from stele.words.requests import what
from stele.words.units import duration, last_heard

NO_COORDINATOR: Final = "No coordinator answers: nothing moves on until one does."

Line = tuple[str, str]
"""Text and style."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the services say about some requests; ``progress`` is None where no coordinator answers."""

    topology: TopologyAnswer
    requests: list[Request]
    finished: list[Request]
    """The newest that are finished, when no others are asked about."""
    names: dict[str, str]
    progress: Progress | None
    groups: list[list[str]]
    """Tables that have the same tablets: see ``Reading.groups``."""
    down: list[NodeLiveness] = field(default_factory=list)
    """Members that are down; none where nobody tells. Known when no request is under way."""


def story(known: Known) -> Iterator[Line]:
    """The lines that tell it."""
    topology, requests, progress = known.topology, known.requests, known.progress
    restricted = restricted_text(topology.commits)
    if restricted:
        yield f"{restricted}; `stele log thaw` opens it", "yellow"
    for request in requests:
        yield from _head(request, _transition_of(topology, request), known.names)
        yield from _others(request, known)
        for sentence in sentences(request, topology, progress):
            yield f"  {sentence}", "cyan" if sentence.startswith("do: ") else ""
    if not requests:
        yield "Nothing to do: no request is pending or running.", ""
        yield from _down(known.down)
        yield from (_last(request, known.names) for request in known.finished)
        yield from _cleanups(progress)
        yield from _archive(progress)
    unfinished = any(request.status in UNFINISHED for request in requests)
    if progress is None and unfinished:
        yield NO_COORDINATOR, "red"
        yield "  do: `stele stack status` shows the processes; start a coordinator.", ""
    elif progress is not None and not progress.active and unfinished:
        holder = topology.coordinator.holder or "nobody"
        yield f"The coordinator that answers is on standby; {holder} holds the term.", "yellow"


def _head(
    request: Request, transition: TransitionSummary | None, names: dict[str, str]
) -> Iterator[Line]:
    since_ms = request.started_at_ms or request.submitted_at_ms
    if request.status not in UNFINISHED:
        since = f" since epoch {request.finished_epoch}"
    else:
        since = f" for {duration(max(0.0, time.time() - since_ms / 1000))}" if since_ms else ""
    yield f"{what(request, names)} is {request.status}{since}  ({request.request_id})", "bold"
    if request.error:
        yield f"  {request.error}", "yellow"
    if transition is not None:
        others = [n for n in transition.nodes() if n != request.node_id]
        beside = f", together with {', '.join(others)}" if others else ""
        yield f"  in {transition.state} since epoch {transition.entered_epoch}{beside}", ""
        if transition.mark and transition.mark != request.error:
            yield f"  it goes back: {transition.mark}", "yellow"


def _others(request: Request, known: Known) -> Iterator[Line]:
    """The tables that are co-located with that of a request about tablets."""
    about_tablets = request.tablet_count or request.repairs
    table = known.names.get(request.table_id) if about_tablets else None
    for first, *others in known.groups:
        if first == table:
            yield f"  it is about {', '.join(others)} too, co-located with {first}", ""


def sentences(
    request: Request, topology: TopologyAnswer, progress: Progress | None
) -> Iterator[str]:
    """Why it does not go on; or what to do when it has failed."""
    if request.status in UNFINISHED:
        if progress is not None:
            yield from explain(request, _transition_of(topology, request), progress)
    elif request.status is RequestStatus.FAILED:
        yield f"do: {after_failure(request)}"


def _down(nodes: list[NodeLiveness]) -> Iterator[Line]:
    """Members for which the next operation will wait."""
    if nodes:
        names = ", ".join(f"{node.node_id} ({last_heard(node.silent_for_s)})" for node in nodes)
        one, them = ("is", "it") if len(nodes) == 1 else ("are", "them")
        text = f"  {names} {one} down: operations will wait for {them}; `stele nodes` shows more"
        yield text, "yellow"


def _last(request: Request, names: dict[str, str]) -> Line:
    error = f": {request.error}" if request.error else ""
    end = f"{request.status} at epoch {request.finished_epoch}{error}"
    return f"  last: {what(request, names)}, {end}", "dim"


def _transition_of(topology: TopologyAnswer, request: Request) -> TransitionSummary | None:
    carried = (t for t in topology.transitions if request.request_id in t.request_ids())
    return next(carried, None)


def _archive(progress: Progress | None) -> Iterator[Line]:
    """What the archive lacks, which holds up nothing."""
    for wait in () if progress is None else progress.waits:
        if wait.kind is WaitKind.ARCHIVE:
            yield f"  the archive waits for {wait.waiting_for}", "yellow"


def _cleanups(progress: Progress | None) -> Iterator[Line]:
    cleanups = {} if progress is None else progress.cleanups
    for node_id, cleanup in cleanups.items():
        if cleanup.status == ReportStatus.RUNNING:
            yield (
                f"  {node_id} deletes data that is not its own any more; nothing waits for it",
                "dim",
            )
