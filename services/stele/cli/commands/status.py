"""``stele status``: one look at the whole cluster."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from stele.cli.models import ProgressAnswer, StateView
from stele.cli.optional import ask
from stele.cli.options import Read, Where
from stele.cli.output import console, duration, joined, print_json, size, styled, table
from stele.domain.names import UNFINISHED, NodeState
from stele.runtime.answers import Liveness, NodeLiveness


def status(read: Read = Read(), where: Where = Where()) -> int:  # noqa: B008
    """The cluster at a glance: epoch, members, what is under way.

    Exit status 0 when every member is up, else 1.
    """
    with where.client() as client:
        if read.as_json:
            print_json(read.state_json(client))
            return 0
        view = read.state(client)
        newest = read.epoch is None
        liveness = ask(client, "session-guard", "/v1/nodes", list[NodeLiveness]) if newest else None
        progress = ask(client, "coordinator", "/v1/progress", ProgressAnswer) if newest else None
    console().print(Group(*_lines(view, progress), members(view, liveness)))
    return 1 if any(row.liveness is not Liveness.UP for row in liveness or []) else 0


def _lines(view: StateView, progress: ProgressAnswer | None) -> list[RenderableType]:
    topology = view.topology
    found: list[RenderableType] = [
        Text.assemble(
            (view.cluster, "bold"), f"  epoch {view.epoch}", (f"  {view.hash[:16]}", "dim")
        ),
        Text(
            f"version {topology.version}, fence {topology.fence_version}; term "
            f"{view.coordinator.term} held by {view.coordinator.holder or 'nobody'}; "
            f"keyspaces: {joined(k.name for k in view.keyspaces) or 'none'}"
        ),
    ]
    waiting = [r for r in view.requests if r.status in UNFINISHED]
    if view.operation is None:
        found.append(Text("no operation under way", style="dim"))
    else:
        operation = view.operation
        found.append(
            Text.assemble(
                (f"{operation.kind} {operation.node_id}", "bold cyan"),
                f" in {topology.transition_state}, request {operation.request_id}",
            )
        )
    if view.operation is not None and progress is not None and progress.waiting_for:
        found.append(Text(f"waiting for {progress.waiting_for}{_how_far(progress)}"))
    pending = len(waiting) - (view.operation is not None)
    if pending:
        found.append(Text(f"{pending} requests wait their turn", style="yellow"))
    return found


def _how_far(progress: ProgressAnswer) -> str:
    if not progress.bytes_total:
        return ""
    done = f": {size(progress.bytes_done)} of {size(progress.bytes_total)}"
    return done if progress.eta_s is None else f"{done}, {duration(progress.eta_s)} to go"


def members(view: StateView, liveness: list[NodeLiveness] | None) -> RenderableType:
    """The table of nodes; those that have left are not shown."""
    by_id = {row.node_id: row for row in liveness or []}
    columns = ("node", "", "state", "dc", "rack", "tokens", "epoch", "heard", "address")
    found = table("", *columns, right=("tokens", "epoch"))
    for node in view.nodes:
        if node.state is NodeState.LEFT:
            continue
        alive = by_id.get(node.node_id)
        found.add_row(
            node.node_id,
            styled("" if alive is None else alive.liveness),
            styled(node.state),
            node.dc,
            node.rack,
            str(len(node.tokens)),
            "" if alive is None else str(alive.epoch),
            "" if alive is None else f"{duration(alive.silent_for_s)} ago",
            node.address,
        )
    return found
