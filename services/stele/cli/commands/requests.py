"""``stele requests``, ``stele request show ID``, ``stele request follow ID``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text

from stele.cli.errors import CliError, Exit
from stele.cli.follow import follow
from stele.cli.models import StateView
from stele.cli.options import Read, Where
from stele.cli.output import (
    clock,
    console,
    duration,
    print_json,
    print_value_as_json,
    styled,
    table,
)
from stele.domain.entities import Request
from stele.domain.names import UNFINISHED

app = App(name="request", help="One topology request: show or follow it.")


def requests(
    *,
    unfinished: Annotated[bool, Parameter(name="--unfinished", negative="")] = False,
    read: Read = Read(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Topology requests: who asked for what, why, and how it stands.

    Args:
        unfinished: Only those that are pending or running.
    """
    with where.client() as client:
        if read.as_json:
            print_json(read.state_json(client))
            return
        view = read.state(client)
    columns = ("request", "what", "status", "asked", "took", "by", "reason", "error")
    found = table(f"requests at epoch {view.epoch}", *columns, right=("took",))
    for request in sorted(view.requests, key=lambda r: (r.submitted_epoch, r.request_id)):
        if unfinished and request.status not in UNFINISHED:
            continue
        found.add_row(
            request.request_id,
            f"{request.kind} {request.node_id}",
            styled(request.status),
            f"epoch {request.submitted_epoch}, {clock(request.submitted_at_ms)}",
            _took(request),
            request.actor,
            request.reason,
            request.error,
        )
    console().print(found)


@app.command
def show(
    request_id: str,
    read: Read = Read(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Everything that the state says about one request."""
    with where.client() as client:
        view = read.state(client)
    request = find(view, request_id)
    if read.as_json:
        print_value_as_json(request)
        return
    found = table(f"request {request.request_id}", "", "")
    found.show_header = False
    rows: dict[str, str | Text] = {
        "what": f"{request.kind} {request.node_id}",
        "status": styled(request.status),
        "by": request.actor,
        "reason": request.reason,
        "submitted": _moment(request.submitted_epoch, request.submitted_at_ms),
        "started": _moment(request.started_epoch, request.started_at_ms),
        "finished": _moment(request.finished_epoch, request.finished_at_ms),
        "took": _took(request),
        "error": request.error,
    }
    for name, value in rows.items():
        if value:
            found.add_row(name, value)
    console().print(found)


@app.command(name="follow")
def follow_request(request_id: str, where: Where = Where()) -> int:  # noqa: B008
    """Follow a request until it is finished; exit status 0 only when it was done."""
    with where.client() as client:
        return Exit.OK if follow(client, request_id) else Exit.FAILED


def find(view: StateView, request_id: str) -> Request:
    """The request with this id, or the only one whose id begins so. Raises CliError."""
    exact = view.request(request_id)
    if exact is not None:
        return exact
    alike = [r for r in view.requests if r.request_id.startswith(request_id)]
    if len(alike) == 1:
        return alike[0]
    what = f"{len(alike)} requests begin with" if alike else "There is no request"
    raise CliError(
        f"{what} '{request_id}' at epoch {view.epoch}.", "`stele requests` shows them all."
    )


def _moment(epoch: int, at_ms: int) -> str:
    return f"epoch {epoch}, {clock(at_ms)}" if epoch else ""


def _took(request: Request) -> str:
    if not (request.started_at_ms and request.finished_at_ms):
        return ""
    return duration((request.finished_at_ms - request.started_at_ms) / 1000)
