"""The reason why a request waits, in sentences: pure functions of the coordinator's progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from stele.domain.model.requests import Request
from stele.domain.model.topology import TransitionHead, TransitionSummary
from stele.domain.names import (
    SILENCE,
    UNFINISHED,
    NodeState,
    ReportStatus,
    RequestKind,
    RequestStatus,
    WaitKind,
)
from stele.domain.not_taken import restricted_text
from stele.runtime.answers.coordinator import (
    BlockerAnswer,
    Progress,
    TransitionProgress,
    WaitLimit,
    WaitProgress,
)
from stele.runtime.answers.metadata_log import TopologyAnswer
from stele.runtime.answers.session_guard import NodeLiveness
from stele.words.names import what
from stele.words.units import counted, duration, last_heard, size

if TYPE_CHECKING:
    from stele.domain.topology.operations.base import Operation


STILL_S: Final = 5.0
"""Time without data after which a stream is shown as stalled."""
WORK: Final = (WaitKind.STREAM, WaitKind.CLEANUP)
"""Waits for work. Their ``SILENCE`` limit counts from the last progress, not from the start."""
PASSING: Final = frozenset({WaitKind.LOG, WaitKind.APPLIED, WaitKind.FENCED, WaitKind.REST})
"""Waits that a healthy cluster ends within a second or two."""
PASSES_WITHIN_S: Final = 3.0
"""Time after which such a wait counts as a problem, and its cause is shown."""
DEAD_AFTER_S: Final = 30.0
"""Silence after which a node may be declared dead: the default of ``dead_node_patience_s``. Until
then it may be starting."""
UNKNOWN: Final = "unknown"
BY_LIMIT: Final = "by stream_mib_per_s"
"""Basis of an estimate while only the rate limit is known."""


class Case(msgspec.Struct, frozen=True):
    """A request, the transition that carries it out, and its current wait."""

    request: Request
    transition: TransitionHead | None
    wait: WaitProgress | None

    def undo(self) -> str:
        """Return the advice and command that undo the request; empty if it cannot be undone."""
        cancel = f"`stele cancel {self.request.request_id}`"
        if self.request.status is RequestStatus.PENDING:
            return f"withdraw the request: {cancel}"
        if self.transition is None:
            return f"undo it: {cancel}"
        if self.transition.mark:
            return ""
        state = _operation(self.transition.kind).states[self.transition.state]
        return f"undo it: {cancel}" if state.can_be_cancelled else ""

    def are_past_patience(self, nodes: Sequence[BlockerAnswer]) -> bool:
        """Return True if all these nodes were silent for longer than a start takes.

        A node that never sent a heartbeat counts from the start of the wait.
        """
        waited_s = 0.0 if self.wait is None else self.wait.waited_s or 0.0
        silent = (waited_s if b.silent_for_s is None else b.silent_for_s for b in nodes)
        return all(silent_s > DEAD_AFTER_S for silent_s in silent)

    def nodes_to_attend(self) -> list[BlockerAnswer]:
        """Return the nodes that need attention: the cause, and the nodes that are down."""
        if self.wait is None:
            return []
        return [b for b in self.wait.blockers if b.node_id == self.wait.cause or b.is_down]


def _operation(kind: RequestKind) -> Operation:
    """Return the rules of an operation.

    The import is inside the function, because the table needs the whole domain.
    """
    from stele.domain.topology.operations.table import OPERATIONS  # noqa: PLC0415

    return OPERATIONS[kind]


def passes(wait: WaitProgress) -> bool:
    """Return True for a short wait that ends by itself: its nodes are up and work on it."""
    is_short = wait.waited_s is None or wait.waited_s < PASSES_WITHIN_S
    return wait.kind in PASSING and is_short and not any(b.is_down for b in wait.blockers)


def waiting_line(wait: WaitProgress, verb: str = "waits") -> str:
    """Return one line: the wait, its duration, its cause, the time left and the limit's setting."""
    waits = verb if wait.waited_s is None else f"has waited {duration(wait.waited_s)}"
    if passes(wait):
        return f"{waits} for {wait.waiting_for}; this takes a moment"
    parts = [f"{waits} for {wait.waiting_for}"]
    cause = next((b for b in wait.blockers if b.node_id == wait.cause), None)
    if cause is not None:
        parts.append(f"the cause is {blocker_text(cause)}")
    if wait.detail:
        parts.append(wait.detail)
    if wait.eta_s is not None:
        parts.append(f"about {duration(wait.eta_s)} to go")
    if wait.limit is not None:
        parts.append(limit_text(wait.limit, wait.kind))
    elif wait.blockers and (wait.cause or wait.kind not in WORK):
        parts.append("no setting ends this wait")
    return "; ".join(parts)


def blocker_text(blocker: BlockerAnswer) -> str:
    """Return a node, its problem, and the age of its last ack."""
    if blocker.silent_for_s is None:
        return f"{blocker.node_id}: has not been heard yet, so it may be starting"
    return f"{blocker.node_id}: {blocker.why}, {last_heard(blocker.silent_for_s)}"


def limit_text(limit: WaitLimit, kind: WaitKind) -> str:
    """Return when the wait ends by itself, and what follows. Progress of work extends the limit."""
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
    """Yield why an unfinished request waits, which other nodes block it, and the advice."""
    case = Case(request, transition, progress.wait_of(request.request_id))
    if transition is not None and transition.mark:
        yield "it is going back to the placements of before"
    common = progress.common_wait()
    # Its work is done by other requests, which all wait for the same round.
    if case.wait is not None and case.wait.kind is WaitKind.REST and common is not None:
        yield waiting_line(case.wait)
        case = Case(request, transition, common)
    if case.wait is not None:
        yield waiting_line(case.wait)
    work = progress.of_request(request.request_id)
    streams = work is not None and bool(work.session)
    if case.wait is not None and not passes(case.wait):
        known = {case.wait.cause, *(work.nodes if work is not None and streams else ())}
        for blocker in case.wait.blockers:
            if blocker.node_id not in known:
                yield f"held up by {blocker_text(blocker)}"
    if work is not None and streams:
        yield from moved(work)
    yield f"do: {advice(case)}"


def moved_line(work: TransitionProgress) -> str:
    """Return the bytes streamed, the total and the time left.

    The total is left out when all is streamed, and the time when it is unknown.
    """
    if work.bytes_done >= work.bytes_total:
        return f"{size(work.bytes_done)} streamed"
    rest = "" if work.eta_s is None else f", {_to_go(work)}"
    return f"{size(work.bytes_done)} of {size(work.bytes_total)} streamed{rest}"


def left(work: TransitionProgress) -> str:
    """Return the time left, in few words. It must be known."""
    return f"{'at least ' if work.eta_at_least else ''}{duration(work.eta_s)} to go"


def _to_go(work: TransitionProgress) -> str:
    if work.eta_at_least:
        return f"{left(work)}, {BY_LIMIT}"
    rate = "" if work.bytes_per_s is None else f" at {size(work.bytes_per_s)}/s"
    return f"about {left(work)}{rate}"


def moved(work: TransitionProgress) -> Iterator[str]:
    """Yield the progress of streams by node and in total, and the time left."""
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
        yield "the bytes to stream are unknown: no node has reported yet"
    elif work.eta_s is None:
        when = "lately" if work.bytes_done else "yet"
        yield f"how long it will take is unknown: no data has moved {when}"
    elif work.bytes_total > work.bytes_done:
        yield _to_go(work)
    if work.limit_bytes_per_s is not None and work.bytes_total > work.bytes_done:
        yield f"stream_mib_per_s limits each receiver to {size(work.limit_bytes_per_s)}/s"


def advice(case: Case) -> str:
    """Return the advice for the operator, with the command to type."""
    kind = None if case.wait is None else case.wait.kind
    if case.wait is not None and passes(case.wait):
        return "nothing: it continues by itself"
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
    """Return the advice about a failed request."""
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
    """Return advice that loses no data.

    Exclusion is advised only after the patience, and only where no acknowledged write depends on
    the nodes.
    """
    nodes = case.nodes_to_attend()
    down = [b for b in nodes if b.is_down]
    if down:
        names = [b.node_id for b in down]
        sole = "" if case.wait is None else case.wait.sole_copies
        if sole:
            return f"start {', '.join(names)}: {sole} may have acknowledged writes that no other live node has"
        if not case.are_past_patience(down):
            return f"start {', '.join(names)}, if it is not starting already"
        return f"start {', '.join(names)}; or, if dead for good, `stele exclude {' '.join(names)}`"
    if nodes:
        names = [b.node_id for b in nodes]
        return f"look at the log of {', '.join(names)}; restart it if it hangs"
    return "wait"


def _wait_for_storage(case: Case) -> str:
    """Return advice on nodes that separate their rows for a split, which may take hours."""
    blockers = () if case.wait is None else case.wait.blockers
    if any(b.is_down for b in blockers) or not blockers:
        return _start_nodes(case)
    names = ", ".join(b.node_id for b in blockers)
    return f"wait while {names} prepares its storage; its log shows errors"


def _start_or_cancel(case: Case) -> str:
    """Return advice that could not lose data.

    Exclusion is not advised: an excluded node takes the data that only it has. A replacement or
    removal is refused where it would lose acknowledged writes.
    """
    down = [b.node_id for b in case.nodes_to_attend() if b.is_down]
    if not down or not _operation(case.request.kind).is_of_nodes:
        return _start_nodes(case)
    others = [n for n in down if n != case.request.node_id]
    if not case.are_past_patience([b for b in case.nodes_to_attend() if b.is_down]):
        return _start_nodes(case)
    start = f"start {', '.join(down)}: then it continues"
    if not others:
        return start
    names = ", ".join(others)
    return f"{start}; or, if {names} is dead for good, cancel it and replace or remove {names}"


def _leave_alive(case: Case) -> str:
    """Return advice about nodes that were called dead and are alive."""
    names = [b.node_id for b in case.nodes_to_attend()]
    leave = " and ".join(f"`stele decommission {each}`" for each in names)
    return f"{', '.join(names)} is alive: {leave} moves its data first" if names else "wait"


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


def _check_metadata_log(case: Case) -> str:
    return "wait; if it lasts, see whether a metadata-log runs: `stele stack status`"


def _thaw(case: Case) -> str:
    return "wait until the log is thawed, or agree with whoever restricted it: `stele log thaw`"


def _check_coordinators(case: Case) -> str:
    return "wait; if it lasts, see which coordinator acts: `stele stack status`"


_BY_KIND: Final[dict[WaitKind, Callable[[Case], str]]] = {
    WaitKind.LOG: _check_metadata_log,
    WaitKind.RESTRICTED: _thaw,
    WaitKind.STANDBY: _check_coordinators,
    WaitKind.COMPANY: _wait,
    WaitKind.MEMBERS: _start_or_cancel,
    WaitKind.PREPARED: _wait_for_storage,
    WaitKind.SILENCE: _wait,
    WaitKind.LIVES: _leave_alive,
    WaitKind.ROOM: _make_room,
    WaitKind.APPLIED: _start_nodes,
    WaitKind.FENCED: _start_nodes,
    WaitKind.RECEIVERS: _start_or_cancel,
    WaitKind.STREAM: _start_or_cancel,
    WaitKind.WORK: _start_nodes,
    WaitKind.REST: _wait,
    WaitKind.CLEANUP: _start_nodes,
    WaitKind.ARCHIVE: _start_replicas,
}


# The reason why each request waits: the cause, its duration, and advice.


NO_COORDINATOR: Final = "No coordinator answers: nothing moves on until one does."

Line = tuple[str, str]
"""Text and style of one line."""


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Answers of the services about some requests. ``progress`` None: no coordinator answers."""

    topology: TopologyAnswer
    requests: list[Request]
    finished: list[Request]
    """The newest finished requests; filled when no specific request was named."""
    names: dict[str, str]
    progress: Progress | None
    groups: list[list[str]]
    """Groups of tables that share tablets: see ``StateReading.groups``."""
    no_place: dict[str, str] = field(default_factory=dict)
    """Why no node can take the tablets of a node that leaves, by request, as the balancer says."""
    left: dict[str, int] = field(default_factory=dict)
    """Number of tablets that have no move yet off the node that leaves, by request."""
    down: list[NodeLiveness] = field(default_factory=list)
    """Members that are down; empty if no service reports them. Filled when no request is under
    way."""


def story(known: KnownAnswers) -> Iterator[Line]:
    """Yield the lines of the report."""
    topology, requests, progress = known.topology, known.requests, known.progress
    restricted = restricted_text(topology.commits)
    if restricted:
        yield f"{restricted}; `stele log thaw` opens it", "yellow"
    for request in requests:
        yield from _head(request, topology.by_request.get(request.request_id), known.names)
        yield from _others(request, known)
        if request.request_id in known.no_place:
            yield f"  {known.no_place[request.request_id]}", "yellow"
        if known.left.get(request.request_id):
            left_ = counted(known.left[request.request_id], "tablet is", "tablets are")
            yield f"  {left_} left on {request.node_id}, beside those that move now", ""
        for sentence in sentences(request, topology, progress):
            yield f"  {sentence}", "cyan" if sentence.startswith("do: ") else ""
    if not requests:
        yield "No request is pending or running.", ""
        yield from _down(known.down)
        yield from (_last(request, known.names) for request in known.finished)
        yield from _cleanups(progress)
        yield from _archive(progress)
    unfinished = any(request.status in UNFINISHED for request in requests)
    if progress is None and unfinished:
        yield NO_COORDINATOR, "red"
        yield "  do: `stele stack status` shows the processes; start a coordinator.", ""
    elif progress is not None and not progress.active and unfinished:
        holder = topology.coordinator.holder or "no coordinator"
        yield f"The coordinator that answers is on standby; {holder} holds the term.", "yellow"


def _head(
    request: Request, transition: TransitionSummary | None, names: dict[str, str]
) -> Iterator[Line]:
    since_ms = request.started_at_ms or request.submitted_at_ms
    if request.status not in UNFINISHED:
        status = f", {request.status} at epoch {request.finished_epoch}"
    elif since_ms:
        age = duration(max(0.0, time.time() - since_ms / 1000))
        status = f" has been {request.status} for {age}"
    else:
        status = f" is {request.status}"
    yield f"{what(request, names)}{status}  ({request.request_id})", "bold"
    if request.error:
        yield f"  {request.error}", "yellow"
    if transition is not None:
        others = [n for n in transition.nodes() if n != request.node_id]
        beside = f", together with {', '.join(others)}" if others else ""
        yield f"  in {transition.state} since epoch {transition.entered_epoch}{beside}", ""
        if transition.mark and transition.mark != request.error:
            yield f"  it goes back: {transition.mark}", "yellow"


def _others(request: Request, known: KnownAnswers) -> Iterator[Line]:
    """Yield the tables that are co-located with the table of a request about tablets."""
    about_tablets = request.tablet_count or request.repairs
    table = known.names.get(request.table_id) if about_tablets else None
    for first, *others in known.groups:
        if first == table:
            yield f"  it is about {', '.join(others)} too, co-located with {first}", ""


def sentences(
    request: Request, topology: TopologyAnswer, progress: Progress | None
) -> Iterator[str]:
    """Yield why an unfinished request waits, or what to do about a failed one."""
    if request.status in UNFINISHED:
        if progress is not None:
            yield from explain(request, topology.by_request.get(request.request_id), progress)
    elif request.status is RequestStatus.FAILED:
        yield f"do: {after_failure(request)}"


def _down(nodes: list[NodeLiveness]) -> Iterator[Line]:
    """Yield the members that are down: the next operation waits for them.

    A node without any heartbeat may be starting.
    """
    silent = [n for n in nodes if n.silent_for_s and not n.returning]
    names = [f"{n.node_id} ({last_heard(n.silent_for_s)})" for n in silent]
    if names:
        one, them = ("is", "it") if len(names) == 1 else ("are", "them")
        text = f"{', '.join(names)} {one} down: operations that need {them} will wait"
        yield f"  {text}; `stele nodes` shows more", "yellow"
    back = [node.node_id for node in nodes if node.returning]
    if back:
        yield f"  back, and up once the heartbeats are steady: {', '.join(back)}", "yellow"
    new = [node.node_id for node in nodes if node.silent_for_s is None]
    if new:
        yield f"  no heartbeat yet, perhaps starting: {', '.join(new)}", "yellow"


def _last(request: Request, names: dict[str, str]) -> Line:
    error = f": {request.error}" if request.error else ""
    end = f"{request.status} at epoch {request.finished_epoch}{error}"
    return f"  last: {what(request, names)}, {end}", "dim"


def _archive(progress: Progress | None) -> Iterator[Line]:
    """Yield the waits of the archive. They block no request."""
    for wait in () if progress is None else progress.waits:
        if wait.kind is WaitKind.ARCHIVE:
            yield f"  the archive waits for {wait.waiting_for}", "yellow"


def _cleanups(progress: Progress | None) -> Iterator[Line]:
    cleanups = {} if progress is None else progress.cleanups
    for node_id, cleanup in cleanups.items():
        if cleanup.status == ReportStatus.RUNNING:
            yield (
                f"  {node_id} deletes data that is not its own any more; nothing waits for it",
                "dim",
            )
