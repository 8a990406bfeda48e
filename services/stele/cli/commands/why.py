"""``stele why``: why each request waits, the cause and its duration, and advice."""

from __future__ import annotations

from rich.text import Text

from stele.cli.client import Client, ask
from stele.cli.options import Json, Where
from stele.cli.output import print_line, print_value_as_json
from stele.cli.reading import StateReading
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.session_guard import Liveness, NodeLiveness
from stele.runtime.answers.tablet_balancer import BalanceAnswer
from stele.words.explain import KnownAnswers, sentences, story

NEWEST = 3
"""Limit of finished requests shown when nothing is under way."""


def why(
    request_id: str | None = None,
    /,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Explain what a request waits for: the condition, the cause, the time limit, and what to do.

    Args:
        request_id: A request, or a unique prefix of its id; default: all unfinished requests.
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
                "no_place": known.no_place,
                "down": known.down,
                "why": why_,
            }
        )
        return
    for text, style in story(known):
        print_line(Text(text, style=style))


def look(client: Client, request_id: str | None) -> KnownAnswers:
    """Read one request, or all unfinished ones. Raises CliError."""
    reading = StateReading(client)
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
    leaving = [request for request in requests if request.removes_node]
    balance = ask(client, "tablet-balancer", "/v1/balance", BalanceAnswer) if leaving else None
    nodes = {} if balance is None else balance.nodes
    return KnownAnswers(
        topology,
        requests,
        finished,
        names,
        progress,
        groups,
        no_place={} if balance is None else balance.stuck,
        left={r.request_id: nodes[r.node_id].tablets for r in leaving if r.node_id in nodes},
        down=down,
    )


def _down(client: Client, reading: StateReading) -> list[NodeLiveness]:
    """Return the members that are known to be down, for which operations wait."""
    rows = ask(client, "session-guard", "/v1/nodes", list[NodeLiveness]) or []
    down = [row for row in rows if row.liveness is Liveness.DOWN]
    members = (
        {node.node_id for node in reading.nodes() if node.takes_part()} if down else set[str]()
    )
    return [row for row in down if row.node_id in members]
