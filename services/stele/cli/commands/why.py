"""``stele why``: what is being waited for, who holds it up and since when."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from stele.cli.commands.requests import find
from stele.cli.models import ProgressAnswer, StateView
from stele.cli.optional import ask
from stele.cli.options import Json, Where
from stele.cli.output import console, duration, print_value_as_json, size, styled, table
from stele.domain.names import UNFINISHED
from stele.runtime.answers import BarrierView, BlockerView


def why(
    request_id: str | None = None,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Why an operation does not go on: what it waits for, which nodes block it, since when.

    Args:
        request_id: One request; without it, whatever is under way.
    """
    with where.client() as client:
        view = client.get("metadata-log", "/v1/state", StateView, level="barrier")
        progress = ask(client, "coordinator", "/v1/progress", ProgressAnswer)
        barrier = ask(client, "session-guard", "/v1/barrier", BarrierView)
    if json.as_json:
        print_value_as_json({"progress": progress, "barrier": barrier, "epoch": view.epoch})
        return
    lines = [*_request(view, request_id), *_coordinator(view, progress), *_barrier(barrier)]
    console().print(Group(*lines))


def _request(view: StateView, request_id: str | None) -> Iterable[RenderableType]:
    if request_id is not None:
        request = find(view, request_id)
        yield Text.assemble(
            (f"{request.kind} {request.node_id}", "bold"), " is ", styled(request.status)
        )
        if request.error:
            yield Text(f"  {request.error}")
        if request.status not in UNFINISHED:
            return
        if view.operation is not None and view.operation.request_id != request.request_id:
            yield Text(
                f"  it waits for its turn: {view.operation.kind} {view.operation.node_id} "
                f"({view.operation.request_id}) is under way, and one operation runs at a time"
            )
    operation = view.operation
    if operation is None:
        yield Text("No operation is under way.")
        return
    topology = view.topology
    yield Text.assemble(
        (f"{operation.kind} {operation.node_id}", "bold"),
        f" is in {topology.transition_state} since epoch {topology.since_epoch} "
        f"(version {topology.version}, fence {topology.fence_version})",
    )
    if topology.rollback:
        yield Text(f"  it is being undone: {topology.rollback}", style="yellow")


def _coordinator(view: StateView, progress: ProgressAnswer | None) -> Iterable[RenderableType]:
    if progress is None:
        yield Text(
            "No coordinator answers: nothing moves on until one does. `stele stack status` "
            "shows the processes.",
            style="red",
        )
        return
    if not progress.active:
        yield Text(
            f"This coordinator does not hold the newest term; {view.coordinator.holder} does "
            f"(term {view.coordinator.term}).",
            style="yellow",
        )
    if progress.waiting_for and view.operation is not None:
        yield Text(f"waiting for {progress.waiting_for}")
    for node_id, work in progress.nodes.items():
        done = f"{size(work.bytes_done)} of {size(work.bytes_total)}"
        error = f": {work.error}" if work.error else ""
        yield Text(f"  {node_id} {work.kind} {work.status}, {done}{error}")
    if progress.eta_s is not None:
        yield Text(f"  about {duration(progress.eta_s)} to go")
    if progress.blockers:
        yield blockers("holds it up", progress.blockers)


def _barrier(barrier: BarrierView | None) -> Iterable[RenderableType]:
    if barrier is None:
        yield Text("session-guard does not answer: who has applied what is unknown.", style="red")
    elif barrier.complete:
        yield Text("Every node has applied the current version and drained the older ones.")
    else:
        enough = "a quorum has" if barrier.quorum else "not even a quorum has"
        yield Text(f"barrier incomplete ({enough} passed it)")
        yield blockers("blocks the barrier", barrier.blockers)


def blockers(title: str, rows: Iterable[BlockerView]) -> RenderableType:
    """Who, why, since when, and how long it has been silent."""
    found = table("", title, "why", "for", "last heard")
    for row in rows:
        blocking = "" if row.blocking_for_s is None else duration(row.blocking_for_s)
        found.add_row(row.node_id, row.why, blocking, f"{duration(row.silent_for_s)} ago")
    return found
