"""``stele why``: what each request waits for, who is the cause and since when, and what can be done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text

from stele.cli.client import Client
from stele.cli.explain import after_failure, explain
from stele.cli.optional import ask
from stele.cli.options import Json, Where
from stele.cli.output import console, duration, print_value_as_json
from stele.cli.reading import Reading
from stele.cli.request_words import what
from stele.domain.names import UNFINISHED, ReportStatus, RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.topology.heads import TransitionSummary
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.metadata_log import TopologyAnswer

NEWEST = 3
"""So many finished requests are shown when nothing is under way."""
Line = tuple[str, str]
"""Text and style."""


def why(
    request_id: str | None = None,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Why a request does not go on: what it waits for and since when, which node is the cause, how long it
    will go on waiting by which setting, and what to do.

    Args:
        request_id: One request, or the beginning of its id; without it, all that are unfinished.
    """
    with where.client() as client:
        known = look(client, request_id)
    topology, requests, progress = known.topology, known.requests, known.progress
    if json.as_json:
        why_ = {r.request_id: [*_sentences(r, topology, progress)] for r in requests}
        print_value_as_json(
            {
                "epoch": topology.epoch,
                "requests": requests,
                "transitions": topology.transitions,
                "progress": progress,
                "why": why_,
            }
        )
        return
    out = console()
    for text, style in story(known):
        out.print(Text(text, style=style), soft_wrap=True)


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


def look(client: Client, request_id: str | None) -> Known:
    """One request, or all that are unfinished. Raises CliError."""
    reading = Reading(client)
    topology = reading.topology()
    requests = (
        reading.requests(unfinished="true") if request_id is None else [reading.find(request_id)]
    )
    finished = [] if requests else reading.requests()[-NEWEST:]
    shown = [*requests, *finished]
    names = reading.names(shown)
    progress = ask(client, "coordinator", "/v1/progress", Progress)
    groups = reading.groups() if any(request.table_id for request in requests) else []
    return Known(topology, requests, finished, names, progress, groups)


def story(known: Known) -> Iterator[Line]:
    """The lines that tell it."""
    topology, requests, progress = known.topology, known.requests, known.progress
    for request in requests:
        yield from _head(request, _transition_of(topology, request), known.names)
        yield from _others(request, known)
        for sentence in _sentences(request, topology, progress):
            yield f"  {sentence}", "cyan" if sentence.startswith("do: ") else ""
    if not requests:
        yield "Nothing to do: no request is pending or running.", ""
        yield from (_last(request, known.names) for request in known.finished)
        yield from _cleanups(progress)
    unfinished = any(request.status in UNFINISHED for request in requests)
    if progress is None and unfinished:
        yield "No coordinator answers: nothing moves on until one does.", "red"
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


def _sentences(
    request: Request, topology: TopologyAnswer, progress: Progress | None
) -> Iterator[str]:
    """Why it does not go on; or what to do when it has failed."""
    if request.status in UNFINISHED:
        if progress is not None:
            yield from explain(request, _transition_of(topology, request), progress)
    elif request.status is RequestStatus.FAILED:
        yield f"do: {after_failure(request)}"


def _last(request: Request, names: dict[str, str]) -> Line:
    error = f": {request.error}" if request.error else ""
    end = f"{request.status} at epoch {request.finished_epoch}{error}"
    return f"  last: {what(request, names)}, {end}", "dim"


def _transition_of(topology: TopologyAnswer, request: Request) -> TransitionSummary | None:
    carried = (t for t in topology.transitions if request.request_id in t.request_ids())
    return next(carried, None)


def _cleanups(progress: Progress | None) -> Iterator[Line]:
    cleanups = {} if progress is None else progress.cleanups
    for node_id, cleanup in cleanups.items():
        if cleanup.status == ReportStatus.RUNNING:
            yield (
                f"  {node_id} deletes data that is not its own any more; nothing waits for it",
                "dim",
            )
