"""``next_steps``: what the coordinator does now, as a pure function of what it knows.

Everything that matters is in the image, so a coordinator that starts anew goes on where the one before
stopped: it claims the next term and asks this function. ``Memory`` only spaces repetitions out.
"""

from hashlib import blake2b
from typing import Final

import msgspec

from stele.coordinator.knowledge import Limits, Memory, Observed, Steps
from stele.coordinator.work import failure_of, heard_of, work
from stele.domain.acks import Barrier, Blocker, barrier
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
from stele.domain.names import (
    CleanupStatus,
    OrderKind,
    ReportStatus,
    RequestKind,
    RequestStatus,
)
from stele.domain.requests.ids import uuid8
from stele.domain.stages import stage_of

__all__ = ["Limits", "Memory", "Observed", "Steps", "next_steps"]

_PRIORITY: Final = {RequestKind.JOIN: 0, RequestKind.LEAVE: 1}

replace = msgspec.structs.replace


def next_steps(memory: Memory, seen: Observed, limits: Limits) -> Steps:
    """The steps of a coordinator whose term the log still holds; of any other term, none."""
    image, topology = seen.image, seen.image.topology.topology
    if image.topology.coordinator.term != seen.term:
        return Steps(memory, waiting_for="another coordinator holds the term")
    memory = _at_this_step(memory, seen)
    if topology.fence_version < topology.version:
        applied = _barrier(memory, seen, limits, topology.since_epoch)
        if applied.quorum:
            return _submit(memory, seen, limits, AdvanceFence(seen.term, topology.version))
        return _wait(memory, seen, limits, f"version {topology.version} everywhere", applied)
    known = _barrier(memory, seen, limits, topology.fence_epoch)
    if not known.quorum:
        return _wait(memory, seen, limits, "the fence to be known", known)
    if image.topology.operation is not None:
        return _operate(memory, seen, limits, image.topology.operation)
    return _idle(memory, seen, limits)


def _at_this_step(memory: Memory, seen: Observed) -> Memory:
    """What is waited for: a version, its fence or, between operations, the start of the next request.

    Requests that queue up behind it change nothing, or a steady stream of them would make every
    patience endless.
    """
    topology = seen.image.topology.topology
    request = _next_request(seen.image)
    waiting = 0 if request is None else request.submitted_epoch
    step = (seen.term, topology.version, topology.fence_version, waiting)
    if step == memory.step:
        return memory
    return Memory(step=step, since_s=seen.now_s, next_index=memory.next_index)


def _next_request(image: Image) -> Request | None:
    """The request to start next; None while an operation is under way."""
    if image.topology.operation is not None:
        return None
    pending = [r for r in image.requests.unfinished() if r.status is RequestStatus.PENDING]
    return min(pending, key=lambda r: (_PRIORITY[r.kind], r.submitted_epoch), default=None)


def _barrier(memory: Memory, seen: Observed, limits: Limits, epoch: int) -> Barrier:
    """A barrier whose ``quorum`` counts only once everybody has had time to answer."""
    found = barrier(seen.image, seen.acks, epoch, seen.image.topology.topology.version, seen.now_s)
    patient = seen.now_s - memory.since_s < limits.barrier_patience_s
    return replace(found, quorum=found.complete or (found.quorum and not patient))


def _wait(memory: Memory, seen: Observed, limits: Limits, what: str, found: Barrier) -> Steps:
    """The barrier waits, with names. What rests on a node that is dead for good ends meanwhile: an
    operation turns round while it can, a request that would be next is turned down."""
    operation, request = seen.image.topology.operation, _next_request(seen.image)
    if operation is not None and operation.node_id in _gone(memory, seen, limits):
        why = f"node {operation.node_id} has been silent for {limits.dead_node_patience_s:g} s"
        return _rollback(memory, seen, limits, operation, why, what)
    if request is not None and _gone(memory, seen, limits):
        return _turn_down(memory, seen, limits, request)
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
    """Both barriers of the step are behind it: its data, then the next step, or the one back."""
    topology = seen.image.topology.topology
    stage = stage_of(operation.kind, topology.transition_state)
    if stage.streams and not topology.rollback:
        found = work(memory, seen, limits, OrderKind.STREAM, _receivers(operation))
        what = f"stream by {', '.join(b.node_id for b in found.unfinished)}"
        if found.failure:
            steps = _rollback(memory, seen, limits, operation, found.failure, what)
            return replace(steps, blockers=found.unfinished)
        if found.unfinished:
            return Steps(
                found.memory,
                orders=found.orders,
                waiting_for=what,
                blockers=found.unfinished,
            )
        down = _down(seen, limits, operation)
        if down:
            # Reads are about to move to it, after which there is no way back.
            what = f"{operation.node_id} to be up before reads move to it"
            return _wait(memory, seen, limits, what, Barrier(False, False, down))
    return _submit(memory, seen, limits, Advance(seen.term, operation.request_id, topology.version))


def _down(seen: Observed, limits: Limits, operation: Operation) -> tuple[Blocker, ...]:
    """The joining node when it is down."""
    node_id = operation.node_id
    if operation.kind is not RequestKind.JOIN or _is_up(seen, limits, node_id):
        return ()
    return (Blocker(node_id, "is down", seen.acks.silent_for_s(node_id, seen.now_s)),)


def _receivers(operation: Operation) -> list[str]:
    """Nodes that gain ranges; the joining node in any case, so that it shows that it can work."""
    rows = [row for plan in operation.plans.values() for row in plan.rows]
    found = {node for row in rows for node in row.new if node not in row.old}
    if operation.kind is RequestKind.JOIN:
        found.add(operation.node_id)
    return sorted(found)


def _idle(memory: Memory, seen: Observed, limits: Limits) -> Steps:
    """Nothing is in transition: clean up, then take the next request."""
    to_clean = _to_clean(memory, seen, limits)
    if to_clean:
        return _clean_up(memory, seen, limits, to_clean)
    request = _next_request(seen.image)
    if request is None:
        return Steps(memory, waiting_for="requests")
    return _start(memory, seen, limits, request)


def _to_clean(memory: Memory, seen: Observed, limits: Limits) -> list[str]:
    """Nodes that are up and should clean up; those who cannot do not hold up anybody else.

    That is safe: a node deletes only what no placement, present or planned, gives to it.
    """
    normal = seen.image.membership.normal()
    dirty = [n for n, node in normal.items() if node.cleanup is CleanupStatus.NEEDED]
    return [
        node_id
        for node_id in dirty
        if _is_up(seen, limits, node_id)
        and not failure_of(memory, seen, limits, OrderKind.CLEANUP, node_id)
    ]


def _clean_up(memory: Memory, seen: Observed, limits: Limits, nodes: list[str]) -> Steps:
    found = work(memory, seen, limits, OrderKind.CLEANUP, nodes)
    memory, commands = found.memory, list[Envelope]()
    version = seen.image.topology.topology.version
    for node_id in nodes:
        heard = heard_of(seen, OrderKind.CLEANUP, node_id)
        if heard is not None and heard.report.status is ReportStatus.SUCCESS:
            sent = _submit(memory, seen, limits, FinishCleanup(seen.term, node_id, version))
            memory = sent.memory
            commands.extend(sent.commands)
    return Steps(
        memory,
        commands=tuple(commands),
        orders=found.orders,
        waiting_for=f"cleanup by {', '.join(nodes)}",
        blockers=found.unfinished,
    )


def _start(memory: Memory, seen: Observed, limits: Limits, request: Request) -> Steps:
    """Start the request once every node that it needs is up (seed 000); turn it down if one is gone."""
    dead = [n for n in _needed(seen) if not _is_up(seen, limits, n)]
    if not dead:
        return _submit(memory, seen, limits, StartRequest(seen.term, request.request_id))
    if _gone(memory, seen, limits):
        return _turn_down(memory, seen, limits, request)
    blockers = tuple(Blocker(n, "is down", seen.acks.silent_for_s(n, seen.now_s)) for n in dead)
    return Steps(memory, waiting_for=f"dead nodes, to start {request.kind}", blockers=blockers)


def _turn_down(memory: Memory, seen: Observed, limits: Limits, request: Request) -> Steps:
    why = f"Canceled. Dead nodes: {', '.join(_gone(memory, seen, limits))}"
    return _submit(memory, seen, limits, RejectRequest(seen.term, request.request_id, why))


def _needed(seen: Observed) -> list[str]:
    """Nodes without which nothing can start: all members, and the node of the next request."""
    request = _next_request(seen.image)
    asking = () if request is None else (request.node_id,)
    return sorted({*seen.image.membership.taking_part(), *asking})


def _gone(memory: Memory, seen: Observed, limits: Limits) -> list[str]:
    """Needed nodes that were silent for so long, all of it within this wait, that nobody waits on."""
    patience_s = limits.dead_node_patience_s
    if seen.now_s - memory.since_s <= patience_s:
        return []
    return [n for n in _needed(seen) if seen.acks.silent_for_s(n, seen.now_s) > patience_s]


def _is_up(seen: Observed, limits: Limits, node_id: str) -> bool:
    return seen.acks.silent_for_s(node_id, seen.now_s) <= limits.down_after_s


def _submit(memory: Memory, seen: Observed, limits: Limits, command: AnyCommand) -> Steps:
    """Send a command whose id follows from term and state, so that a repetition is the same command.

    On another state it is another command: what was refused on this one may be right then.
    """
    name = command_name(command)
    key = f"{seen.image.cluster_id}/{memory.step}/{command!r}"
    waiting_for = f"{name} to be applied"
    last_s = memory.commands.get(key)
    if last_s is not None and seen.now_s - last_s < limits.resend_s:
        return Steps(memory, waiting_for=waiting_for)
    envelope = Envelope(
        request_id=_request_id(seen.image, key),
        command=command,
        actor="coordinator",
        reason=f"term {seen.term}",
    )
    memory = replace(memory, commands={**memory.commands, key: seen.now_s})
    return Steps(memory, commands=(envelope,), waiting_for=waiting_for)


def _request_id(image: Image, key: str) -> str:
    """The time of the state that was decided on, and a hash of that state and of what is sent."""
    digest = blake2b(image.state_id + key.encode(), digest_size=16).digest()
    return uuid8(int.from_bytes(image.state_id[:6], "big"), digest)
