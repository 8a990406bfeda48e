"""``stele status``: a summary of the whole cluster."""

from __future__ import annotations

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from stele.cli.client import ask, is_known, older_log
from stele.cli.options import Json, ReadPoint, Where
from stele.cli.output import (
    NO_ADDRESS,
    ago,
    console,
    joined,
    print_line,
    print_value_as_json,
    size,
    styled,
    table,
)
from stele.domain.model.membership import Node
from stele.domain.model.requests import Request
from stele.domain.model.schema import Keyspace
from stele.domain.model.topology import TransitionSummary
from stele.domain.names import NodeState, RequestStatus
from stele.domain.not_taken import restricted_text
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.metadata_log import TopologyAnswer
from stele.runtime.answers.session_guard import Liveness, NodeLiveness
from stele.words.explain import NO_COORDINATOR, left
from stele.words.names import what


class _ShownHealth(msgspec.Struct, frozen=True):
    """The field of ``runtime.http.Health`` that is shown. That module is slow to import."""

    reason: str = ""


def status(read: ReadPoint = ReadPoint(), json: Json = Json(), where: Where = Where()) -> int:
    """Show the cluster at a glance: epoch, members and open operations.

    Exit status 0 when every member is up and a coordinator answers, else 1. An empty log gives 0, unless a
    catch-up replica holds an older one.
    """
    with where.client() as client:
        newest = read.epoch is None
        reading = read.of(client)
        topology = reading.topology()
        nodes, keyspaces = reading.nodes(), reading.keyspaces()
        waiting = reading.requests(unfinished="true")
        names = reading.names(waiting)
        liveness = ask(client, "session-guard", "/v1/nodes", list[NodeLiveness]) if newest else None
        progress = ask(client, "coordinator", "/v1/progress", Progress) if newest else None
        is_alone = newest and progress is None and is_known(client, "coordinator")
        health = ask(client, "metadata-log", "/healthz", _ShownHealth) if newest else None
        notice = "" if health is None else health.reason
        older = None if topology.cluster else older_log(client)
    if json.as_json:
        print_value_as_json(
            {
                "cluster": topology,
                "nodes": nodes,
                "keyspaces": keyspaces,
                "unfinished": waiting,
                "liveness": liveness,
                "progress": progress,
                "older_log": older,
                "notice": notice,
            }
        )
    elif older is not None:
        print_line(
            f"The log is empty, but catch-up replica {older.replica_id} holds epoch {older.epoch} of log"
            f" {older.log_id}: `stele recover` continues from there."
        )
    elif not topology.cluster:
        print_line("The log is empty: there is no cluster yet. `stele found` creates it.")
    else:
        head = _head(topology, keyspaces, notice)
        under_way = _under_way(topology, waiting, names, progress)
        alone = [Text(f"{NO_COORDINATOR} `stele why`", "red")] if is_alone else []
        alone += [Text(f"  {client.silent['coordinator']}", "dim")] if is_alone else []
        console().print(Group(*head, *alone, *under_way, members(nodes, liveness)))
    is_down = any(row.liveness is not Liveness.UP for row in liveness or [])
    return 1 if is_down or is_alone or older is not None else 0


def _head(answer: TopologyAnswer, keyspaces: list[Keyspace], notice: str) -> list[RenderableType]:
    """Return the head lines. ``notice`` is the reason in the metadata-log's health.

    For a restricted log, that reason starts with the restriction, which is removed here.
    """
    versions, coordinator = answer.topology, answer.coordinator
    restricted = restricted_text(answer.commits)
    notice = notice.removeprefix(restricted).strip()
    return [
        Text.assemble(
            (answer.cluster, "bold"),
            f"  epoch {answer.epoch}",
            (f"  state {answer.state_id}", "dim"),
        ),
        *([Text(f"{restricted}; `stele log thaw` opens it", "yellow")] if restricted else ()),
        *([Text(notice, "yellow")] if notice else ()),
        Text(
            f"version {versions.version}, fence {versions.fence_version}; term "
            f"{coordinator.term} held by {coordinator.holder or 'no coordinator'}; "
            f"keyspaces: {joined(k.name for k in keyspaces) or 'none'}"
        ),
    ]


def _under_way(
    answer: TopologyAnswer,
    waiting: list[Request],
    names: dict[str, str],
    progress: Progress | None,
) -> list[RenderableType]:
    """Return one line per transition, and the number of waiting requests."""
    if not waiting and not answer.transitions:
        return [Text("nothing is under way", style="dim")]
    lines: list[RenderableType] = []
    for transition in answer.transitions:
        carried = [r for r in waiting if r.request_id in transition.request_ids()]
        about = ", ".join(what(r, names) for r in carried)
        state = f" in {transition.state}{' (going back)' if transition.mark else ''}"
        lines.append(
            Text.assemble(
                (about or str(transition.kind), "bold cyan"), state, _how_far(transition, progress)
            )
        )
    pending = sum(request.status is RequestStatus.PENDING for request in waiting)
    if pending:
        requests = "1 request waits" if pending == 1 else f"{pending} requests wait"
        lines.append(Text(f"{requests} to be started: `stele why`", style="yellow"))
    return lines


def _how_far(transition: TransitionSummary, progress: Progress | None) -> str:
    known = [] if progress is None else progress.transitions
    found = next((t for t in known if t.transition_id == transition.transition_id), None)
    if found is None:
        return ""
    waits = f", waiting for {found.waiting_for}" if found.waiting_for else ""
    if not found.bytes_total:
        return waits
    done = f": {size(found.bytes_done)} of {size(found.bytes_total)}"
    eta = "" if found.eta_s is None else f", {left(found)}"
    return f"{waits}{done}{eta}"


def members(nodes: list[Node], liveness: list[NodeLiveness] | None) -> RenderableType:
    """Return the table of nodes, without those that left."""
    by_id = {row.node_id: row for row in liveness or []}
    columns = ("node", "", "state", "dc", "rack", "tokens", "epoch", "heard", "address")
    found = table("", *columns, right=("tokens", "epoch"))
    for node in nodes:
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
            "" if alive is None else ago(alive.silent_for_s),
            node.address or NO_ADDRESS,
        )
    return found
