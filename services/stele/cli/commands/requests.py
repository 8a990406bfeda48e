"""``stele requests``, ``stele request show ID``, ``stele request follow ID``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text

from stele.cli.errors import Exit
from stele.cli.follow import follow
from stele.cli.history_names import names_of
from stele.cli.options import Read, Where
from stele.cli.output import (
    clock,
    console,
    duration,
    id_table,
    print_fields,
    print_id_table,
    print_value_as_json,
    styled,
)
from stele.cli.reading import Reading
from stele.domain.requests.facts import Request
from stele.words.requests import what

app = App(name="request", help="One topology request: show or follow it.")


def requests(
    *,
    unfinished: Annotated[bool, Parameter(name="--unfinished", negative="")] = False,
    node: Annotated[str | None, Parameter(name="--node")] = None,
    read: Read = Read(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Topology requests: who asked for what, why, and how it stands.

    Args:
        unfinished: Only those that are pending or running.
        node: Only those about this node.
    """
    with where.client() as client:
        reading = read.of(client)
        found = reading.requests(unfinished="true" if unfinished else None, node=node)
        names = names_of(client, reading, found)
    if read.as_json:
        print_value_as_json(
            {
                "epoch": reading.epoch,
                "state_id": reading.state_id,
                "since_epoch": reading.since[0],
                "requests": found,
            }
        )
        return
    columns = ("request", "what", "status", "epoch", "took", "by", "why")
    shown = id_table(f"requests at epoch {reading.epoch}", *columns, right=("epoch", "took"))
    shown.columns[0].min_width = max((len(r.request_id) for r in found), default=0)
    for request in found:
        shown.add_row(
            request.request_id,
            what(request, names),
            styled(request.status),
            str(request.submitted_epoch),
            _took(request),
            request.actor,
            "; ".join(text for text in (request.reason, request.error) if text),
        )
    print_id_table(shown)
    console().print(since_text(*reading.since), soft_wrap=True)


@app.command
def show(
    request_id: str,
    read: Read = Read(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Everything that the state says about one request; the beginning of its id is enough."""
    with where.client() as client:
        reading = read.of(client)
        answer = reading.request(reading.find(request_id).request_id)
        names = names_of(client, reading, [answer.request])
    if read.as_json:
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
    console().print(Text(f"request {request.request_id}", style="bold"), soft_wrap=True)
    print_fields(rows.items())


@app.command(name="follow")
def follow_request(request_id: str, where: Where = Where()) -> int:  # noqa: B008
    """Follow a request until it is finished; exit status 0 only when it was done."""
    with where.client() as client:
        request = Reading(client).find(request_id)
        return Exit.OK if follow(client, request.request_id) else Exit.FAILED


def since_text(epoch: int, ms: int) -> str:
    """How far back finished requests are kept."""
    if not epoch:
        return "goes back to the beginning of the log"
    return f"all since epoch {epoch}, {clock(ms)}; of what ended earlier some are only in `stele epochs`"


def _moment(epoch: int, at_ms: int) -> str:
    return f"epoch {epoch}, {clock(at_ms)}" if epoch else ""


def _took(request: Request) -> str:
    """From the asking to the end."""
    if not (request.submitted_at_ms and request.finished_at_ms):
        return ""
    return duration((request.finished_at_ms - request.submitted_at_ms) / 1000)
