"""``next_steps``: what the coordinator does now, as a pure function of what it knows.

Everything that matters is in the image, so a coordinator that starts anew goes on where the one before
stopped: it claims the next term and asks this function. ``Memory`` only spaces repetitions out.
"""

import uuid
from typing import Final

import msgspec

from stele.domain.acks import AckTable, Barrier, Blocker, barrier
from stele.domain.commands import (
    Advance,
    AdvanceFence,
    AnyCommand,
    Envelope,
    FinishCleanup,
    RejectRequest,
    Rollback,
    StartRequest,
    command_name,
)
from stele.domain.entities import Operation, Request
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.names import (
    CleanupStatus,
    OrderKind,
    ReportStatus,
    RequestKind,
    RequestStatus,
)
from stele.domain.reports import Heard, ReportTable
from stele.domain.ring.transition import gained
from stele.domain.stages import stage_of

_IDS: Final = uuid.UUID("0d0ac0de-7c3e-4a53-8f0e-53a0e41f4c55")
_PRIORITY: Final = {RequestKind.JOIN: 0, RequestKind.LEAVE: 1}


class Limits(msgspec.Struct, frozen=True):
    """Patience, in seconds, and how often work is ordered again."""

    resend_s: float = 2.0
    """A command or order that had no visible effect is sent again after this."""
    barrier_patience_s: float = 10.0
    """A barrier waits this long for everybody before a quorum will do; the rest is fenced out."""
    down_after_s: float = 5.0
    """A node that was silent for longer counts as down: ten heartbeats."""
    dead_node_patience_s: float = 30.0
    """Requests wait this long for dead nodes to come back before they are turned down."""
    silence_s: float = 60.0
    """Work without progress for longer has failed."""
    attempts: int = 3
    """Work that failed is ordered again until it was tried so often."""


class Observed(msgspec.Struct, frozen=True):
    """What the coordinator of ``term`` knows at ``now_s`` (seconds of its own monotonic clock)."""

    image: Image
    acks: AckTable
    reports: ReportTable
    term: int
    now_s: float


class Memory(msgspec.Struct, frozen=True):
    """When the present wait began and what was sent during it; forgotten at every change of state."""

    step: tuple[int, ...] = ()
    since_s: float = 0.0
    next_index: int = 1
    sent_at_s: dict[str, float] = {}
    attempts: dict[str, int] = {}


class Steps(msgspec.Struct, frozen=True):
    """Commands for the log and orders for nodes, and in words what is being waited for, and on whom."""

    memory: Memory
    commands: tuple[Envelope, ...] = ()
    orders: tuple[Order, ...] = ()
    waiting_for: str = ""
    blockers: tuple[Blocker, ...] = ()


def next_steps(memory: Memory, seen: Observed, limits: Limits) -> Steps:
    """The steps of a coordinator whose term the log still holds; of any other term, none."""
    topology = seen.image.topology
    if topology.coordinator.term != seen.term:
        return Steps(memory, waiting_for="another coordinator holds the term")
    memory = _at_this_step(memory, seen)
    if topology.topology.fence_version < topology.topology.version:
        return _fence(memory, seen, limits)
    known = _barrier(memory, seen, limits, topology.topology.fence_epoch)
    if not known.quorum:
        return _rollback_if_dead(memory, seen, limits, "the fence to be known", known)
    if topology.operation is not None:
        return _operate(memory, seen, limits, topology.operation)
    return _idle(memory, seen, limits)


def _at_this_step(memory: Memory, seen: Observed) -> Memory:
    topology = seen.image.topology.topology
    unfinished = tuple(r.submitted_epoch for r in seen.image.requests.unfinished())
    step = (seen.term, topology.version, topology.fence_version, *unfinished)
    if step == memory.step:
        return memory
    return Memory(step=step, since_s=seen.now_s, next_index=memory.next_index)


def _barrier(memory: Memory, seen: Observed, limits: Limits, epoch: int) -> Barrier:
    """A barrier whose ``quorum`` counts only once everybody has had time to answer."""
    found = barrier(seen.image, seen.acks, epoch, seen.image.topology.topology.version, seen.now_s)
    patient = seen.now_s - memory.since_s < limits.barrier_patience_s
    passed = found.complete or (found.quorum and not patient)
    return msgspec.structs.replace(found, quorum=passed)


def _fence(memory: Memory, seen: Observed, limits: Limits) -> Steps:
    topology = seen.image.topology.topology
    found = _barrier(memory, seen, limits, topology.since_epoch)
    if found.quorum:
        return _submit(memory, seen, limits, AdvanceFence(seen.term, topology.version))
    return _rollback_if_dead(memory, seen, limits, f"version {topology.version} everywhere", found)


def _rollback_if_dead(
    memory: Memory, seen: Observed, limits: Limits, what: str, found: Barrier
) -> Steps:
    """An operation whose own node is dead turns round while it can; any other wait goes on, with names."""
    operation = seen.image.topology.operation
    waited = seen.now_s - memory.since_s
    if operation is not None and waited > limits.dead_node_patience_s:
        silent_s = seen.acks.silent_for_s(operation.node_id, seen.now_s)
        if silent_s > limits.dead_node_patience_s:
            why = f"node {operation.node_id} has been silent for {limits.dead_node_patience_s:g} s"
            return _rollback(memory, seen, limits, operation, why, what)
    return Steps(memory, waiting_for=what, blockers=found.blockers)


def _rollback(
    memory: Memory, seen: Observed, limits: Limits, operation: Operation, why: str, what: str
) -> Steps:
    topology = seen.image.topology.topology
    stage = stage_of(operation.kind, topology.transition_state)
    if stage.on_failure is None or topology.rollback:
        return Steps(memory, waiting_for=f"{what}; {why}")
    return _submit(memory, seen, limits, Rollback(seen.term, operation.request_id, why))


def _operate(memory: Memory, seen: Observed, limits: Limits, operation: Operation) -> Steps:
    topology = seen.image.topology.topology
    stage = stage_of(operation.kind, topology.transition_state)
    if stage.streams:
        receivers = _receivers(operation)
        done, steps = _work(memory, seen, limits, OrderKind.STREAM, receivers)
        if not done:
            return steps
        memory = steps.memory
    return _submit(memory, seen, limits, Advance(seen.term, operation.request_id, topology.version))


def _receivers(operation: Operation) -> list[str]:
    """Nodes that gain ranges; the joining node in any case, so that it shows that it can work."""
    plans = operation.plans.values()
    nodes = {node for plan in plans for row in plan.rows for node in row.new}
    found = {node for node in nodes if any(gained(plan, node) for plan in plans)}
    if operation.kind is RequestKind.JOIN:
        found.add(operation.node_id)
    return sorted(found)


def _work(
    memory: Memory, seen: Observed, limits: Limits, kind: OrderKind, nodes: list[str]
) -> tuple[bool, Steps]:
    """Order work of every node, again where it failed or was not heard. True when all have done it."""
    orders, unfinished = list[Order](), list[Blocker]()
    for node_id in nodes:
        heard = _heard(seen, kind, node_id)
        if heard is not None and heard.report.status is ReportStatus.SUCCESS:
            continue
        silent_s = seen.acks.silent_for_s(node_id, seen.now_s)
        unfinished.append(Blocker(node_id, _progress(kind, heard), silent_s))
        why = _failure(memory, seen, limits, kind, node_id, heard)
        operation = seen.image.topology.operation
        if why and operation is not None:
            steps = _rollback(memory, seen, limits, operation, why, f"{kind} of {node_id}")
            return False, msgspec.structs.replace(steps, blockers=tuple(unfinished))
        memory, order = _order(memory, seen, limits, kind, node_id, heard)
        orders.extend(order)
    what = f"{kind} by {', '.join(b.node_id for b in unfinished)}"
    return not unfinished, Steps(
        memory, orders=tuple(orders), waiting_for=what, blockers=tuple(unfinished)
    )


def _heard(seen: Observed, kind: OrderKind, node_id: str) -> Heard | None:
    topology = seen.image.topology.topology
    return seen.reports.by_work.get((node_id, kind, topology.version, topology.session))


def _progress(kind: OrderKind, heard: Heard | None) -> str:
    if heard is None:
        return f"has not answered the order to {kind}"
    report = heard.report
    if report.status is ReportStatus.FAILED:
        return f"failed to {kind}: {report.error}"
    return f"{kind}: {report.bytes_done} of {report.bytes_total} bytes"


def _failure(
    memory: Memory,
    seen: Observed,
    limits: Limits,
    kind: OrderKind,
    node_id: str,
    heard: Heard | None,
) -> str:
    """Why the work has failed for good; empty while there is hope."""
    if heard is not None and heard.report.status is ReportStatus.FAILED:
        if memory.attempts.get(node_id, 0) >= limits.attempts:
            return f"{node_id} failed to {kind} {limits.attempts} times: {heard.report.error}"
        return ""
    last_s = memory.since_s if heard is None else max(heard.progress_at_s, memory.since_s)
    if seen.now_s - last_s > limits.silence_s:
        return f"{node_id} made no progress in {kind} for {limits.silence_s:g} s"
    return ""


def _order(
    memory: Memory,
    seen: Observed,
    limits: Limits,
    kind: OrderKind,
    node_id: str,
    heard: Heard | None,
) -> tuple[Memory, list[Order]]:
    key = f"{kind}/{node_id}"
    last_s = memory.sent_at_s.get(key)
    heard_s = float("-inf") if heard is None else heard.at_s
    failed = heard is not None and heard.report.status is ReportStatus.FAILED
    fresh_failure = failed and last_s is not None and heard_s > last_s
    quiet = last_s is None or seen.now_s - max(last_s, heard_s) >= limits.resend_s
    if not quiet and not fresh_failure:
        return memory, []
    topology = seen.image.topology.topology
    operation = seen.image.topology.operation
    order = Order(
        node_id=node_id,
        term=seen.term,
        index=memory.next_index,
        kind=kind,
        epoch=max(topology.since_epoch, topology.fence_epoch),
        version=topology.version,
        session=topology.session,
        request_id=operation.request_id if operation is not None else "",
    )
    tried = memory.attempts.get(node_id, 0) + (1 if failed or last_s is None else 0)
    return msgspec.structs.replace(
        memory,
        next_index=memory.next_index + 1,
        sent_at_s={**memory.sent_at_s, key: seen.now_s},
        attempts={**memory.attempts, node_id: tried},
    ), [order]


def _idle(memory: Memory, seen: Observed, limits: Limits) -> Steps:
    """Nothing is in transition: clean up, then take the next request."""
    to_clean = _to_clean(memory, seen, limits)
    if to_clean:
        return _clean_up(memory, seen, limits, to_clean)
    requests = seen.image.requests.unfinished()
    pending = [r for r in requests if r.status is RequestStatus.PENDING]
    if not pending:
        return Steps(memory, waiting_for="requests")
    chosen = min(pending, key=lambda r: (_PRIORITY[r.kind], r.submitted_epoch))
    return _start(memory, seen, limits, chosen)


def _to_clean(memory: Memory, seen: Observed, limits: Limits) -> list[str]:
    """Nodes that are up and should clean up; those who cannot do not hold up anybody else.

    That is safe: a node deletes only what no placement, present or planned, gives to it.
    """
    found = []
    for node_id, node in seen.image.membership.normal().items():
        if node.cleanup is CleanupStatus.NEEDED and _is_up(seen, limits, node_id):
            heard = _heard(seen, OrderKind.CLEANUP, node_id)
            if not _failure(memory, seen, limits, OrderKind.CLEANUP, node_id, heard):
                found.append(node_id)
    return found


def _clean_up(memory: Memory, seen: Observed, limits: Limits, nodes: list[str]) -> Steps:
    _, steps = _work(memory, seen, limits, OrderKind.CLEANUP, nodes)
    version = seen.image.topology.topology.version
    for node_id in nodes:
        heard = _heard(seen, OrderKind.CLEANUP, node_id)
        if heard is not None and heard.report.status is ReportStatus.SUCCESS:
            finish = FinishCleanup(seen.term, node_id, version)
            sent = _submit(steps.memory, seen, limits, finish)
            commands = (*steps.commands, *sent.commands)
            steps = msgspec.structs.replace(steps, memory=sent.memory, commands=commands)
    return steps


def _start(memory: Memory, seen: Observed, limits: Limits, request: Request) -> Steps:
    """Start the request once every node that it needs is up (seed 000); turn it down if they stay dead."""
    members = [*seen.image.membership.taking_part(), request.node_id]
    dead = sorted({n for n in members if not _is_up(seen, limits, n)})
    if not dead:
        return _submit(memory, seen, limits, StartRequest(seen.term, request.request_id))
    silent_s = min(seen.acks.silent_for_s(n, seen.now_s) for n in dead)
    waited_s = seen.now_s - memory.since_s
    if min(silent_s, waited_s) > limits.dead_node_patience_s:
        why = f"Canceled. Dead nodes: {', '.join(dead)}"
        return _submit(memory, seen, limits, RejectRequest(seen.term, request.request_id, why))
    blockers = tuple(Blocker(n, "is down", seen.acks.silent_for_s(n, seen.now_s)) for n in dead)
    return Steps(memory, waiting_for=f"dead nodes, to start {request.kind}", blockers=blockers)


def _is_up(seen: Observed, limits: Limits, node_id: str) -> bool:
    return seen.acks.silent_for_s(node_id, seen.now_s) <= limits.down_after_s


def _submit(memory: Memory, seen: Observed, limits: Limits, command: AnyCommand) -> Steps:
    """Send a command whose id follows from term and state, so that a repetition is the same command."""
    name = command_name(command)
    key = f"{seen.image.cluster_id}/{memory.step}/{command!r}"
    last_s = memory.sent_at_s.get(key)
    if last_s is not None and seen.now_s - last_s < limits.resend_s:
        return Steps(memory, waiting_for=f"{name} to be applied")
    envelope = Envelope(
        request_id=str(uuid.uuid5(_IDS, key)),
        command=command,
        actor="coordinator",
        reason=f"term {seen.term}",
    )
    memory = msgspec.structs.replace(memory, sent_at_s={**memory.sent_at_s, key: seen.now_s})
    return Steps(memory, commands=(envelope,), waiting_for=f"{name} to be applied")
