"""``stele why``: what each request waits for, who is the cause and since when, and what can be done."""

from __future__ import annotations

from rich.text import Text

from stele.cli.client import Client
from stele.cli.optional import ask
from stele.cli.options import Json, Where
from stele.cli.output import console, print_value_as_json
from stele.cli.reading import Reading
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.session_guard import Liveness, NodeLiveness
from stele.words.why import Known, sentences, story

NEWEST = 3
"""So many finished requests are shown when nothing is under way."""


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
        why_ = {r.request_id: [*sentences(r, topology, progress)] for r in requests}
        print_value_as_json(
            {
                "epoch": topology.epoch,
                "requests": requests,
                "finished": known.finished,
                "transitions": topology.transitions,
                "progress": progress,
                "down": known.down,
                "why": why_,
            }
        )
        return
    out = console()
    for text, style in story(known):
        out.print(Text(text, style=style), soft_wrap=True)


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
    down = [] if requests else _down(client, reading)
    return Known(topology, requests, finished, names, progress, groups, down)


def _down(client: Client, reading: Reading) -> list[NodeLiveness]:
    """Those that are known to be down, of the members that operations wait for."""
    rows = ask(client, "session-guard", "/v1/nodes", list[NodeLiveness]) or []
    down = [row for row in rows if row.liveness is Liveness.DOWN]
    members = (
        {node.node_id for node in reading.nodes() if node.takes_part()} if down else set[str]()
    )
    return [row for row in down if row.node_id in members]
