"""``stele requests``, ``stele request show|follow`` and ``stele id``."""

from __future__ import annotations

import time
from typing import Annotated, Final

from cyclopts import App, Parameter, validators
from rich.text import Text

from stele.cli.errors import Exit
from stele.cli.follow import follow
from stele.cli.history import ShortIds, names_of
from stele.cli.options import FROM_ZERO, Format, Json, ReadPoint, Where, moment_ms
from stele.cli.output import (
    clock,
    duration,
    id_table,
    print_fields,
    print_line,
    print_value_as_json,
    styled,
)
from stele.cli.reading import StateReading
from stele.domain.model.requests import NEWEST_MS, Request
from stele.runtime.request_ids import new_request_id
from stele.words.names import what

DEFAULT_LIMIT: Final = 50

app = App(name="request", help="One topology request: show or follow it.")


def requests(
    *,
    unfinished: Annotated[bool, Parameter(name="--unfinished", negative="")] = False,
    node: Annotated[str | None, Parameter(name="--node")] = None,
    since: Annotated[str, Parameter(name="--since")] = "",
    limit: Annotated[int | None, Parameter(name="--limit", validator=FROM_ZERO)] = None,
    read: ReadPoint = ReadPoint(),
    form: Format = Format(),
    where: Where = Where(),
) -> None:
    """List topology requests: who asked for what and why, and the status.

    Args:
        unfinished: Only pending and running requests.
        node: Only requests about this node.
        since: Only requests submitted since then: 2h (ago), 2026-11-22 or '2026-11-22 08:30'.
        limit: Most requests that are shown, the newest ones; 0 shows all; default: 50, in JSON and YAML all.
    """
    since_ms = moment_ms(since, "--since", time.time_ns() // 1_000_000) if since else 0
    with where.client() as client:
        reading = read.of(client)
        found = reading.requests(unfinished="true" if unfinished else None, node=node)
        found = [request for request in found if request.submitted_at_ms >= since_ms]
        if limit is None and not form.is_document:
            limit = DEFAULT_LIMIT
        older = max(0, len(found) - limit) if limit else 0
        found = found[older:]
        names = names_of(client, reading, found)
    if form.is_document:
        form.print_document(reading.document(since_epoch=reading.since[0], requests=found))
        return
    columns = ("request", "what", "status", "epoch", "took", "by", "why")
    shown = id_table(f"requests at epoch {reading.epoch}", *columns, right=("epoch", "took"))
    ids = [request.request_id for request in found]
    for id_, request in zip(
        ShortIds().shortened(ids) if form.shortens else ids, found, strict=True
    ):
        shown.add_row(
            id_,
            what(request, names),
            styled(request.status),
            str(request.submitted_epoch),
            _took(request),
            request.actor,
            "; ".join(text for text in (request.reason, request.error) if text),
        )
    form.print_table(shown)
    form.note_more(older, "older request")
    form.note(since_text(*reading.since))


@app.command
def show(
    request_id: str,
    /,
    read: ReadPoint = ReadPoint(),
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Show everything that the state has about one request. A unique prefix of its id is enough."""
    with where.client() as client:
        reading = read.of(client)
        answer = reading.request(reading.find(request_id).request_id)
        names = names_of(client, reading, [answer.request])
    if json.as_json:
        print_value_as_json(answer)
        return
    request, transition = answer.request, answer.transition
    state = "" if transition is None else f"{transition.state} (transition"
    rows: dict[str, str | Text] = {
        "what": what(request, names),
        "status": styled(request.status),
        "state": f"{state} {transition.transition_id})" if transition else "",
        "goes back": transition.mark if transition else "",
        "by": request.actor,
        "reason": request.reason,
        "submitted": _moment(request.submitted_epoch, request.submitted_at_ms),
        "started": _moment(request.started_epoch, request.started_at_ms),
        "finished": _moment(request.finished_epoch, request.finished_at_ms),
        "took": _took(request),
        "error": request.error,
    }
    print_line(Text(f"request {request.request_id}", style="bold"))
    print_fields(rows.items())


@app.command(name="follow")
def follow_request(request_id: str, /, where: Where = Where()) -> int:
    """Follow a request until it ends. Exit status 0 only when it succeeded."""
    with where.client() as client:
        request = StateReading(client).find(request_id)
        return Exit.OK if follow(client, request.request_id) else Exit.FAILED


def since_text(epoch: int, ms: int) -> str:
    """Return how far back finished requests are kept."""
    if not epoch:
        return "the list goes back to the beginning of the log"
    ended = f"some requests that ended by epoch {epoch}, {clock(ms)}"
    return f"{ended}, are not listed, such as moves of the balancer: `stele epochs` shows them"


def _moment(epoch: int, at_ms: int) -> str:
    return f"epoch {epoch}, {clock(at_ms)}" if epoch else ""


def _took(request: Request) -> str:
    """Return the time from the request to its end."""
    if not (request.submitted_at_ms and request.finished_at_ms):
        return ""
    return duration((request.finished_at_ms - request.submitted_at_ms) / 1000)


def make_id(
    *, after: Annotated[int, Parameter(validator=validators.Number(gte=-1, lt=NEWEST_MS))] = -1
) -> None:
    """Print a new request id: a UUID of version 7. It has one outcome, however often it is sent.

    Parameters
    ----------
    after
        Milliseconds since 1970 that its time comes after, as the refusal of an id that was too old says.
    """
    print_line(new_request_id(horizon_ms=after))
