"""Why a request does not go on, in sentences: pure functions over what the coordinator's progress says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from stele.domain.names import NodeState, RequestKind, RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.topology.heads import TransitionHead
from stele.runtime.answers.coordinator import (
    SILENCE,
    BlockerAnswer,
    Progress,
    TransitionProgress,
    WaitKind,
    WaitLimit,
    WaitProgress,
)
from stele.words.units import duration, last_heard, size

if TYPE_CHECKING:
    from stele.domain.topology.operations.base import Operation

STILL_S: Final = 5.0
"""Streams that have got no data for longer are shown as such."""
WORK: Final = (WaitKind.STREAM, WaitKind.CLEANUP)
"""Waits in which ``SILENCE`` counts from the last progress, and not from the beginning."""
UNKNOWN: Final = "unknown"
BY_LIMIT: Final = "by stream_mib_per_s"
"""How an estimate is made while only the limit is known."""


class Case(msgspec.Struct, frozen=True):
    """A request, the transition that carries it out, and what it waits for."""

    request: Request
    transition: TransitionHead | None
    wait: WaitProgress | None

    def undo(self) -> str:
        """The command that takes the request back; why there is none when it cannot be."""
        cancel = f"`stele cancel {self.request.request_id}`"
        if self.request.status is RequestStatus.PENDING:
            return f"withdraw the request: {cancel}"
        if self.transition is None:
            return f"undo it: {cancel}"
        if self.transition.mark:
            return ""
        state = _operation(self.transition.kind).states[self.transition.state]
        return "" if state.on_failure is None else f"undo it: {cancel}"

    def looked_after(self) -> list[BlockerAnswer]:
        """The nodes that somebody should look at: the cause, and whoever is down."""
        if self.wait is None:
            return []
        return [b for b in self.wait.blockers if b.node_id == self.wait.cause or b.is_down]


def _operation(kind: RequestKind) -> Operation:
    """Its rules; imported when they are asked for, since they need the whole domain."""
    from stele.domain.topology.operations.table import OPERATIONS  # noqa: PLC0415

    return OPERATIONS[kind]


def waiting_line(wait: WaitProgress, verb: str = "waits") -> str:
    """What is waited for, since when, who is the cause, and how long it will go on by which setting."""
    since = "" if wait.waited_s is None else f" for {duration(wait.waited_s)}"
    parts = [f"{verb}{since} for {wait.waiting_for}"]
    cause = next((b for b in wait.blockers if b.node_id == wait.cause), None)
    if cause is not None:
        parts.append(f"the cause is {blocker_text(cause)}")
    if wait.detail:
        parts.append(wait.detail)
    if wait.eta_s is not None:
        parts.append(f"about {duration(wait.eta_s)} to go")
    if wait.limit is not None:
        parts.append(limit_text(wait.limit, wait.kind))
    elif wait.blockers:
        parts.append("no setting ends this wait")
    return "; ".join(parts)


def blocker_text(blocker: BlockerAnswer) -> str:
    """A node, what is the matter with it, and when it was heard."""
    return f"{blocker.node_id}: {blocker.why}, {last_heard(blocker.silent_for_s)}"


def limit_text(limit: WaitLimit, kind: WaitKind) -> str:
    """When the wait ends by itself, and what happens then; progress of work puts that off."""
    by = f" ({limit.setting} is {limit.limit_s:g} s)" if limit.setting else ""
    if limit.left_s <= 0:
        return f"any moment now {limit.then}{by}"
    left = duration(limit.left_s)
    if kind in WORK and limit.setting == SILENCE:
        return f"if it makes no progress for {left} more{by}, {limit.then}"
    return f"{left} more at most{by}, then {limit.then}"


def explain(
    request: Request, transition: TransitionHead | None, progress: Progress
) -> Iterator[str]:
    """Why an unfinished request does not go on, who holds it up besides the cause, and what can be done."""
    case = Case(request, transition, progress.wait_of(request.request_id))
    if transition is not None and transition.mark:
        yield "it is going back to the placements of before"
    if case.wait is not None:
        yield waiting_line(case.wait)
    work = progress.of_request(request.request_id)
    streams = work is not None and bool(work.session)
    if case.wait is not None:
        known = {case.wait.cause, *(work.nodes if work is not None and streams else ())}
        for blocker in case.wait.blockers:
            if blocker.node_id not in known:
                yield f"held up by {blocker_text(blocker)}"
    if work is not None and streams:
        yield from moved(work)
    yield f"do: {advice(case)}"


def moved_line(work: TransitionProgress) -> str:
    """How much of how much, and how long the rest takes; how much alone where that is all, or nobody knows."""
    if work.bytes_done >= work.bytes_total:
        return f"{size(work.bytes_done)} streamed"
    rest = "" if work.eta_s is None else f", {_to_go(work)}"
    return f"{size(work.bytes_done)} of {size(work.bytes_total)} streamed{rest}"


def left(work: TransitionProgress) -> str:
    """How long the rest takes, in few words. It is known."""
    return f"{'at least ' if work.eta_at_least else ''}{duration(work.eta_s)} to go"


def _to_go(work: TransitionProgress) -> str:
    if work.eta_at_least:
        return f"{left(work)}, {BY_LIMIT}"
    rate = "" if work.bytes_per_s is None else f" at {size(work.bytes_per_s)}/s"
    return f"about {left(work)}{rate}"


def moved(work: TransitionProgress) -> Iterator[str]:
    """How much has been streamed, by node and together, and how long the rest will take."""
    for node_id, node in work.nodes.items():
        total = size(node.bytes_total) if node.bytes_total else UNKNOWN
        error = f": {node.error}" if node.error else ""
        still = node.still_for_s
        is_still = still is not None and still > STILL_S and node.status == "running"
        stopped = f", no progress for {duration(still)}" if is_still else ""
        same = f", {size(node.bytes_compared)} are the same" if node.bytes_compared else ""
        streamed = f"{size(node.bytes_done)} of {total}{same}"
        yield f"{node_id} {node.kind} {node.status}, {streamed}{stopped}{error}"
    if not work.nodes:
        yield "how much is to be streamed is unknown: nobody has reported yet"
    elif work.eta_s is None:
        when = "lately" if work.bytes_done else "yet"
        yield f"how long it will take is unknown: no data has moved {when}"
    elif work.bytes_total > work.bytes_done:
        yield _to_go(work)


def advice(case: Case) -> str:
    """What the operator can do now, with the command to type."""
    kind = None if case.wait is None else case.wait.kind
    what = _BY_KIND.get(kind, _wait)(case) if kind is not None else _wait(case)
    undo = case.undo()
    if kind is WaitKind.RESTRICTED:  # a cancel would not be taken either
        return what
    if undo:
        return f"{what}, or {undo}"
    if case.transition is not None and case.transition.mark:
        return f"{what}; it is being undone already"
    return f"{what}; it is past its point of no return and cannot be undone"


def after_failure(request: Request) -> str:
    """What to do about a request that did not come to a good end."""
    operation = _operation(request.kind)
    again = "remove the cause and ask again; `stele plan` says beforehand whether it can finish"
    if NodeState.LEFT in (operation.undone, operation.rejected):
        return (
            f"{again}. The id {request.node_id} cannot be used again: empty the node's data directory"
            " and start it under a new one"
        )
    return f"{again}. The placements are those of before"


def _wait(case: Case) -> str:
    return "wait"


def _start_nodes(case: Case) -> str:
    nodes = case.looked_after()
    down = [b.node_id for b in nodes if b.is_down]
    if down:
        names = " ".join(down)
        return f"start {', '.join(down)}; or, if dead for good, `stele exclude {names}`"
    if nodes:
        return (
            f"look at what {', '.join(b.node_id for b in nodes)} logs, and restart it if it hangs"
        )
    return "wait"


def _stop_nodes(case: Case) -> str:
    names = [b.node_id for b in case.looked_after()]
    leaves = f"`stele decommission {names[0]}`" if len(names) == 1 else "`stele decommission`"
    return (
        f"stop {', '.join(names)} if it cannot be saved; a node that works leaves by {leaves}"
        if names
        else "wait"
    )


def _make_room(case: Case) -> str:
    other = "" if case.wait is None else case.wait.other_request
    if other:
        return (
            f"wait until it has room (`stele why {other}` says what that waits for), or"
            f" `stele cancel {other}` while that can be undone"
        )
    if case.request.removes_node:
        return (
            "wait: `stele balance status` shows its tablets that move; if none does, see whether a"
            " tablet-balancer runs (`stele stack status`)"
        )
    return "wait"


def _start_replicas(case: Case) -> str:
    return "start catch-up replicas, or those that are down: `stele catch-up show` lists them"


def _look_at_the_log(case: Case) -> str:
    return "wait; if it lasts, see whether a metadata-log runs: `stele stack status`"


def _thaw(case: Case) -> str:
    return "wait until the log is thawed, or agree with whoever restricted it: `stele log thaw`"


def _look_at_coordinators(case: Case) -> str:
    return "wait; if it lasts, see which coordinator acts: `stele stack status`"


_BY_KIND: Final[dict[WaitKind, Callable[[Case], str]]] = {
    WaitKind.LOG: _look_at_the_log,
    WaitKind.RESTRICTED: _thaw,
    WaitKind.STANDBY: _look_at_coordinators,
    WaitKind.COMPANY: _wait,
    WaitKind.MEMBERS: _start_nodes,
    WaitKind.PREPARED: _start_nodes,
    WaitKind.SILENCE: _wait,
    WaitKind.LIVES: _stop_nodes,
    WaitKind.ROOM: _make_room,
    WaitKind.APPLIED: _start_nodes,
    WaitKind.FENCED: _start_nodes,
    WaitKind.RECEIVERS: _start_nodes,
    WaitKind.STREAM: _start_nodes,
    WaitKind.WORK: _start_nodes,
    WaitKind.REST: _wait,
    WaitKind.CLEANUP: _start_nodes,
    WaitKind.ARCHIVE: _start_replicas,
}
